"""Text completions: prompts of every kind, several at once, one failing."""

from __future__ import annotations

import math
from typing import Any

import pytest
import trio
from tests.entrypoints.fakes import TEXT, Step, answer, served
from tests.entrypoints.test_chat import events_of
from tests.entrypoints.test_middleware import error_of

from omni_actors.protocol.errors import stage_failed
from omni_actors.protocol.request import Completed, Request, TextDelta, TokenLogprob

PATH = "/v1/completions"


async def test_prompts_of_every_kind() -> None:
    async with served() as server:
        for prompt, texts, tokens in (
            ("one", ["one"], []),
            (["one", "two"], ["one", "two"], []),
            ([1, 2], [], [[1, 2]]),
            ([[1, 2], [3]], [], [[1, 2], [3]]),
            (["one", [3]], ["one"], [[3]]),
        ):
            assert (await server.post(PATH, {"prompt": prompt})).status_code == 200
            prompts = [request.params["prompt"] for request in server.orchestrator.requests]
            server.orchestrator.requests.clear()
            assert sorted(it.text for it in prompts if it.text is not None) == texts
            assert sorted(it.token_ids for it in prompts if it.token_ids is not None) == tokens


async def test_defaults_and_fields() -> None:
    async with served() as server:
        await server.post(PATH, {"prompt": "one"})
        await server.post(PATH, {"prompt": "one", "max_tokens": 3, "echo": True, "logprobs": 0, "best_of": 1})
        await server.post(PATH, {"prompt": "one", "max_tokens": 0, "echo": True})  # scores a prompt
        assert server.orchestrator.requests.pop().params["sampling"].max_tokens == 0
        first, second = [request.params["sampling"] for request in server.orchestrator.requests]
    assert (first.max_tokens, first.echo, first.logprobs) == (16, False, None)
    assert (second.max_tokens, second.echo, second.logprobs) == (3, True, 0)


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"prompt": ""}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": ["a", ""]}, "prompt[1]"),
        ({"prompt": [[]]}, "prompt[0]"),
        ({"prompt": [1, "a"]}, "prompt[0]"),
        ({"prompt": [-1]}, "prompt[0]"),
        ({"prompt": None}, "prompt"),
        ({"prompt": ["a"] * 129}, "prompt"),
        ({"prompt": ["a"] * 2, "n": 65}, "n"),
        ({"suffix": "end"}, "suffix"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"best_of": 2}, "best_of"),
        ({"best_of": True}, "best_of"),
        ({"messages": []}, "messages"),
    ],
)
async def test_what_is_refused_is_named(change: dict[str, Any], param: str) -> None:
    async with served() as server:
        assert error_of(await server.post(PATH, {"prompt": "x", **change}), 400)["param"] == param
        assert not server.orchestrator.requests


async def test_one_failing_prompt_ends_all() -> None:
    """With its status when whole, in-band when streamed; nothing keeps running."""
    never = trio.Event()

    def script(request: Request) -> list[Step]:
        if request.params["prompt"].text == "bad":
            return [0.05, stage_failed("llm")]
        steps = answer(request)
        return [*steps[:2], never, *steps[2:]]

    async with served(script) as server:
        body = {"prompt": ["good", "bad", "good"]}
        error_of(await server.post(PATH, body), 500)
        with trio.fail_after(5):
            await server.orchestrator.idle.wait()
        assert server.orchestrator.completed == 1  # the failed one has said its last word
        assert server.orchestrator.cancelled == 2


async def test_log_probabilities_that_json_has_no_number_for() -> None:
    """The first token of an echoed prompt has none, a token that was ruled out has minus infinity."""
    scores = [TokenLogprob(1, b"a", math.nan), TokenLogprob(2, b"b", -math.inf, ((2, b"b", -math.inf),))]
    script: list[Step] = [TextDelta(0, 0, "ab", [2], "stop", scores), Completed({})]
    async with served(lambda request: list(script)) as server:
        body = {"prompt": "a", "echo": True, "logprobs": 1}
        (choice,) = (await server.post(PATH, body)).json()["choices"]
        assert choice["logprobs"] == {
            "tokens": ["a", "b"],
            "token_logprobs": [None, -9999.0],
            "top_logprobs": [None, {"b": -9999.0}],
            "text_offset": [0, 1],
        }


async def test_choices_are_numbered_across_prompts() -> None:
    async with served() as server:
        response = await server.post(PATH, {"prompt": ["a", "b"], "n": 2, "stream": True})
        *chunks, done = events_of(response.text)
        assert done == "[DONE]"
        texts = ["", "", "", ""]
        for chunk in chunks:
            texts[chunk["choices"][0]["index"]] += chunk["choices"][0]["text"]
        assert texts == [TEXT] * 4
