"""What a worker has told of its model is held against a request."""

from __future__ import annotations

from typing import Any

import pytest

from omni_actors.orchestrator.known import check_known
from omni_actors.protocol.errors import OmniError
from omni_actors.protocol.params import Prompt, Sampling
from omni_actors.protocol.request import Request

FACTS: dict[str, Any] = {
    "vocab_size": 100,
    "max_model_len": 64,
    "longest_token": 4,
    "reserved_variables": ["chat_template", "messages"],
}


READ = ("prompt", "sampling")


def asked(content: Any = "hello", sampling: Sampling | None = None, **variables: Any) -> Request:
    messages = [{"role": "user", "content": content}]
    prompt = Prompt(messages=messages, chat_template_kwargs=variables)
    return Request(task="chat", params={"prompt": prompt, "sampling": sampling or Sampling()})


WRONG: dict[str, tuple[Request, str, str | None]] = {
    "a stop token": (asked(sampling=Sampling(stop_token_ids=[100])), "stop_token_ids", None),
    "a token with a bias": (asked(sampling=Sampling(logit_bias={-1: 1.0})), "logit_bias", None),
    "a reserved variable": (asked(messages=[]), "chat_template_kwargs.messages", None),
    "an answer as long as the context": (
        asked(sampling=Sampling(max_tokens=64)),
        "messages",
        "context_length_exceeded",
    ),
    "a text over the context": (asked("x" * 257), "messages", "context_length_exceeded"),
    "texts beside media over the context": (
        asked([{"type": "image", "index": 0}, {"type": "text", "text": "x" * 257}]),
        "messages",
        "context_length_exceeded",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_a_stage_is_sure_to_refuse_is_refused(name: str) -> None:
    request, param, code = WRONG[name]
    with pytest.raises(OmniError) as refused:
        check_known(request, FACTS, READ)
    assert (refused.value.info.status, refused.value.info.param, refused.value.info.code) == (400, param, code)


@pytest.mark.parametrize("name", WRONG)
def test_what_a_worker_has_not_told_or_does_not_read_is_left_to_it(name: str) -> None:
    check_known(WRONG[name][0], {}, READ)
    check_known(WRONG[name][0], FACTS, ("speech",))


def test_what_may_be_right_passes() -> None:
    fits = Sampling(max_tokens=63, stop_token_ids=[0, 99], logit_bias={99: 1.0})
    check_known(
        asked([{"type": "image", "index": 0}, {"type": "text", "text": "x" * 256}], fits, tools=[]), FACTS, READ
    )
    check_known(Request(task="completion", params={"prompt": Prompt(text="x" * 999), "sampling": fits}), FACTS, READ)
    check_known(Request(task="echo", params={"stub": {"text": "x"}}), FACTS, READ)
