"""``serve`` with vLLM as the engine, over HTTP: it is chosen, says what vLLM says, and survives its worker's death."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.demo.server import Server, serving
from tests.vllm.conftest import Direct

from omni_actors.pipelines.factory import resolve

pytestmark = [pytest.mark.deadline(600), pytest.mark.weights]

QUICK = (
    *("--set", "stages.llm.options.arguments={enforce_eager: true}"),
    *("--set", "stages.llm.options.max_model_len=512"),
    *("--set", "limits.resume_wait_s=280"),  # vLLM's start takes its time
    *("--set", "stages.llm.threads=1"),  # beside other tests a second one is waited for longer than it helps
)
QUESTION = [{"role": "user", "content": "Write three sentences about rivers."}]
TOKENS = 32


@pytest.fixture(scope="module")
def model(demo_weights: Path) -> Path:
    """SmolLM2."""
    return demo_weights / "llm"


@pytest.fixture(scope="module")
def server(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("served")
    with serving(folder, str(model), "--platform", "cpu", "--admin-key", "boss", *QUICK, start_s=300) as found:
        yield found


@pytest.fixture(autouse=True)
def no_process_left() -> None:
    """The server outlives each test here."""


def stream(server: Server, **body: Any) -> Iterator[dict[str, Any]]:
    """The events of a streamed chat. Closed early, the client goes away."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=300)
    try:
        asked = json.dumps({"model": "llm", "messages": QUESTION, "stream": True, "max_tokens": TOKENS, **body})
        connection.request("POST", "/v1/chat/completions", asked, {"content-type": "application/json"})
        response = connection.getresponse()
        assert response.status == 200, response.read()
        for line in response:
            if line.startswith(b"data: {"):
                yield json.loads(line[6:])
            elif line.startswith(b"data: [DONE]"):
                return
        raise AssertionError("the stream broke off")
    finally:
        connection.close()


def text_of(events: Iterator[dict[str, Any]]) -> str:
    pieces = []
    for event in events:
        assert "error" not in event, event
        pieces += [choice["delta"].get("content") or "" for choice in event["choices"]]
    return "".join(pieces)


def ask(server: Server, **body: Any) -> dict[str, Any]:
    asked = {"model": "llm", "messages": QUESTION, "max_tokens": TOKENS, "temperature": 0, **body}
    status, answer = server.post("/v1/chat/completions", asked)
    assert status == 200, answer
    found: dict[str, Any] = answer
    return found


def gauge(server: Server, name: str) -> float:
    _, body = server.get("/metrics")
    return sum(map(float, re.findall(rf"^omni_actors_stage_{name}{{.*}} (\S+)$", body.decode(), re.MULTILINE)))


def test_auto_takes_vllm_and_says_why(model: Path) -> None:
    plan = resolve(str(model), platform="cpu")
    assert plan.stages[0].engine == "omni_actors.worker.engines.vllm:VllmEngine"
    assert "vLLM" in str(plan.provenance["stages.llm.engine"])
    torch = resolve(str(model), platform="cpu", overrides=["stages.llm.engine=torch"])
    assert torch.stages[0].engine.endswith(":AutoregressiveEngine")


def test_a_greedy_answer_is_what_vllm_says_by_itself(server: Server, model: Path, direct: Direct) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model, local_files_only=True)
    prompt = tokenizer.apply_chat_template(QUESTION, tokenize=False, add_generation_prompt=True)
    tokens = tokenizer.encode(prompt, add_special_tokens=False)
    (expected,) = direct(model, [{"tokens": tokens, "sampling": {"temperature": 0.0, "max_tokens": TOKENS}}])
    answer = ask(server, logprobs=True)
    assert answer["choices"][0]["message"]["content"] == expected["text"]
    assert answer["usage"]["prompt_tokens"] == len(tokens)
    assert len(answer["choices"][0]["logprobs"]["content"]) >= 20


def test_streamed_is_whole_and_seeds_repeat(server: Server) -> None:
    for sampling in ({"temperature": 0}, {"temperature": 1.0, "seed": 4}):
        whole = ask(server, **sampling)["choices"][0]["message"]["content"]
        assert text_of(stream(server, **sampling)) == whole
    assert ask(server, temperature=1.0, seed=5) != whole


def test_a_client_that_leaves_takes_its_blocks_along(server: Server) -> None:
    events = stream(server, max_tokens=400, ignore_eos=True, temperature=0)
    next(events)
    next(events)
    assert gauge(server, "kv_blocks_used") > 0
    events.close()  # type: ignore[attr-defined]
    server.wait_for(lambda: gauge(server, "kv_blocks_used") == 0, 20)
    assert gauge(server, "requests") == 0


def test_it_sleeps_and_wakes_by_command(server: Server) -> None:
    def command(**body: Any) -> tuple[int, Any]:
        return server.post("/admin/replicas", {"stage": "llm", "index": 0, **body}, authorization="Bearer boss")

    expected = ask(server)["choices"]
    assert command(action="sleep", level=1)[0] == 400, "there is no device memory to give back"
    status, answer = command(action="sleep")
    assert (status, answer["replicas"][0]["state"]) == (200, "asleep")
    assert command(action="wake")[1]["replicas"][0]["state"] == "ready"
    assert ask(server)["choices"] == expected


def test_an_answer_has_the_form_that_is_asked_for(server: Server) -> None:
    schema = {"type": "object", "properties": {"river": {"type": "string", "maxLength": 12}}, "required": ["river"]}
    form = {"type": "json_schema", "json_schema": {"name": "river", "schema": schema | {"additionalProperties": False}}}
    answer = ask(server, response_format=form, max_tokens=64)["choices"][0]
    assert list(json.loads(answer["message"]["content"])) == ["river"]
    chosen = ask(server, structured_outputs={"choice": ["Rhine", "Danube"]})["choices"][0]
    assert chosen["message"]["content"] in ("Rhine", "Danube")
    broken = {"messages": QUESTION, "structured_outputs": {"regex": "(a"}}
    assert server.post("/v1/chat/completions", broken)[0] == 400


@pytest.mark.parametrize("sampling", [{"temperature": 0}, {"temperature": 1.0, "seed": 11, "presence_penalty": 0.5}])
def test_an_answer_goes_on_when_its_worker_is_killed(server: Server, sampling: dict[str, Any]) -> None:
    body = {"max_tokens": 64, "ignore_eos": True, **sampling}
    whole = text_of(stream(server, **body))
    events = stream(server, **body)
    begun = "".join(next(events)["choices"][0]["delta"].get("content") or "" for _ in range(8))
    pids = re.findall(r"llm#0@\d+ is ready \(pid (\d+)\)", server.log.read_text())
    os.kill(int(pids[-1]), signal.SIGKILL)
    assert begun + text_of(events) == whole
    server.wait_for(server.healthy, 280)
