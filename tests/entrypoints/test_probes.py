"""What operators see: liveness, readiness, health by stage, and metrics that come back to zero."""

from __future__ import annotations

import logging
import sys
from io import StringIO

import pytest
import trio
from prometheus_client.parser import text_string_to_metric_families
from tests.entrypoints.fakes import FakeOrchestrator, message, served

from omni_actors.entrypoints.options import ServerOptions
from omni_actors.entrypoints.probes import public
from omni_actors.protocol.errors import ErrorInfo, overloaded
from omni_actors.protocol.status import WorkerExit
from omni_actors.telemetry import logs
from omni_actors.version import __version__


async def test_health_names_the_stage_without_a_live_replica() -> None:
    async with served() as server:
        assert (await server.get("/health")).json()["status"] == "ok"
        stages = server.orchestrator.stages
        stages["vocoder"].live = 0
        response = await server.get("/health")
        assert response.status_code == 503
        assert response.json()["unavailable"] == ["vocoder"]
        assert "vocoder" in response.json()["error"]["message"]
        stages["llm"].wanted, stages["llm"].live = 2, 1
        stages["vocoder"].live = 1
        assert (await server.get("/health")).status_code == 200


async def test_health_says_since_when_why_and_until_when_without_giving_paths_away() -> None:
    async with served() as server:
        error = ErrorInfo(message="cannot read /srv/secret/llm/x.bin: no such file\nTraceback (most recent call last):")
        stage = server.orchestrator.stages["llm"]
        stage.live, stage.restarts, stage.progress = 0, 3, "starting"
        stage.down_s, stage.attempt_s, stage.next_s = 12.5, 4.0, 9.2
        stage.last_exit = WorkerExit("start", error, trio.current_time() - 1, 0.0, None, 0)
        response = await server.get("/health")
        assert (response.status_code, response.headers["retry-after"]) == (503, "10")
        shown = response.json()["stages"]["llm"]
        assert (shown["restarts"], shown["down_s"], shown["next_attempt_s"], shown["ready_in_s"]) == (3, 12.5, 4.0, 9.2)
        assert shown["last_end"]["cause"] == "start"
        assert shown["last_end"]["message"] == "cannot read …/x.bin: no such file"


async def test_a_stage_that_is_being_replaced_is_no_outage() -> None:
    async with served() as server:
        stage = server.orchestrator.stages["llm"]
        stage.live, stage.replacing = 0, True
        response = await server.get("/health")
        assert response.status_code == 200
        assert response.json()["stages"]["llm"]["replacing"] is True
        assert "chat" in (await server.get("/ready")).json()["tasks"]


async def test_health_knows_links_too() -> None:
    async with served() as server:
        server.orchestrator.stages["llm"].unlinked = ("vocoder",)
        response = await server.get("/health")
        assert response.status_code == 503
        assert response.json()["unlinked"] == {"llm": ["vocoder"]}
        assert "No link: llm with vocoder." in response.json()["error"]["message"]


@pytest.mark.parametrize(
    ("message", "shown"),
    [
        ("OSError: /a/b/c.txt", "OSError: …/c.txt"),
        ("in '/home/x y/z'", "in '…/x y/z'"),
        ("3/4 of the layers", "3/4 of the layers"),
        ("see http://host/path/page", "see http://host/path/page"),
        ("first\nsecond", "first"),
        ("x" * 400, "x" * 299 + "…"),
    ],
)
def test_what_everybody_may_see_of_a_workers_message(message: str, shown: str) -> None:
    assert public(message) == shown


async def test_ready_is_any_task_and_live_is_the_process() -> None:
    async with served() as server:
        stages = server.orchestrator.stages
        stages["llm"].live = 0
        ready = await server.get("/ready")
        assert ready.status_code == 200
        assert ready.json()["tasks"] == ["transcription", "speech", "translation"]
        for stage in stages.values():
            stage.live = 0
        assert (await server.get("/ready")).status_code == 503
        assert (await server.get("/live")).status_code == 200
        assert (await server.get("/version")).json() == {"version": __version__}


async def test_many_scrapes_ask_the_workers_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Anybody may read metrics. All who wait have one answer, which is none from before they asked."""
    begun, go_on = 0, trio.Event()

    async def counters(orchestrator: FakeOrchestrator) -> dict[str, list[dict[str, float]]]:
        nonlocal begun
        begun += 1
        await go_on.wait()
        return {"llm": [{"scrape": float(begun)}]}

    monkeypatch.setattr(FakeOrchestrator, "counters", counters)
    async with served() as server:
        told: list[str] = []

        async def scrape() -> None:
            response = await server.get("/metrics")
            told.append(response.text.partition('omni_actors_stage_scrape{replica="0",stage="llm"} ')[2].split()[0])

        async with trio.open_nursery() as nursery:
            with trio.move_on_after(0.1):
                await server.get("/metrics")  # its client leaves
            for _ in range(20):
                nursery.start_soon(scrape)
            await trio.sleep(0.1)
            go_on.set()
        assert begun <= 3  # for who left, for who had asked when the second began, for the others
        await scrape()
    assert begun <= 4
    assert float(told[-1]) == begun


async def test_metrics_count_each_request_once() -> None:
    async with served() as server:
        await server.post("/v1/chat/completions", message(modalities=["text", "audio"]))
        server.orchestrator.script = lambda request: [overloaded("full")]
        await server.post("/v1/chat/completions", message())
        await server.get("/v1/nowhere/at/all")
        response = await server.get("/metrics")
        assert response.headers["content-type"].startswith("text/plain; version=0.0.4")
        values = {
            (sample.name, *sorted(sample.labels.items())): sample.value
            for family in text_string_to_metric_families(response.text)
            for sample in family.samples
        }

    def value(name: str, **labels: str) -> float:
        return values[("omni_actors_" + name, *sorted(labels.items()))]

    chat = {"route": "/v1/chat/completions", "method": "POST"}
    assert value("http_requests_total", **chat, status="200") == 1
    assert value("http_requests_total", **chat, status="429") == 1
    assert value("http_requests_total", route="unmatched", method="GET", status="404") == 1
    assert value("http_requests_in_flight") == 1  # the scrape itself
    assert value("requests_total", task="chat", outcome="completed") == 1
    assert value("requests_total", task="chat", outcome="failed") == 1
    assert value("num_requests_running", task="chat") == 0
    for clock in ("time_to_first_token", "time_to_first_audio", "e2e_request_latency", "request_queue_time"):
        assert value(f"{clock}_seconds_count", task="chat") == 1
    assert value("prompt_tokens_total", stage="llm") == 11
    assert value("generation_tokens_total", stage="llm") == 7
    assert value("audio_output_seconds_total", stage="vocoder") == 0.5
    assert value("stage_live_replicas", stage="llm") == 1
    assert value("stage_kv_blocks", stage="llm", replica="0") == 7
    assert value("stage_steps_total", stage="llm", replica="0") == 3
    assert "# TYPE omni_actors_stage_steps_total counter" in response.text


async def test_methods_that_clients_make_up_are_one_series() -> None:
    """Our own server refuses them before they are counted; another would not."""
    async with served(options=ServerOptions(server="hypercorn")) as server:
        for number in range(5):
            await server.client.request(f"MADEUP{number}", "/live")
        text = (await server.get("/metrics")).text
        assert "MADEUP" not in text
        assert 'omni_actors_http_requests_total{method="other",route="unmatched",status="405"} 5.0' in text


async def test_models_that_are_not_there() -> None:
    async with served() as server:
        response = await server.get("/v1/models/none/such")
        assert response.status_code == 404
        assert response.json()["error"]["code"] == "model_not_found"


@pytest.mark.parametrize(
    "secret", ["Authorization: Bearer abc.def", "api_key=abc.def", '"api-key": "abc.def"', "key sk-abc.def"]
)
def test_a_log_line_names_its_request_and_hides_keys(secret: str) -> None:
    stream = StringIO()
    root = logging.getLogger()
    before, level = list(root.handlers), root.level
    try:
        logs.configure("debug", process="llm#0", stream=stream)
        logs.configure("debug", process="llm#0", stream=stream)
        token = logs.current_request.set("req-1:mine")
        logging.getLogger("omni_actors.test").info("sent %s", secret)
        logs.current_request.reset(token)
        logging.getLogger("omni_actors.test").debug("other", extra={"request": "req-2"})
        logging.getLogger("elsewhere").info("not ours")
    finally:
        root.handlers[:] = before
        root.setLevel(level)
        logging.getLogger("omni_actors").setLevel(logging.NOTSET)
    first, second = stream.getvalue().splitlines()
    assert " INFO llm#0[" in first
    assert "omni_actors.test req-1:mine: sent" in first
    assert "abc" not in first
    assert "***" in first
    assert "req-2: other" in second
    assert sys.stderr is not stream
