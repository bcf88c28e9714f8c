"""The workload of the kit: a tiny language model in the real engine on a platform's device, with greedy sampling.

:mod:`omni_actors.platforms.testing.kit` runs this file as a subprocess probe.
"""

from __future__ import annotations

import tempfile
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

from omni_actors.protocol.frames import PROTOCOL_VERSION, Hello

PROMPTS = ("The water of the sea", "A robot and a bird", "one", "Why is the sky blue, and the grass green? " * 4)
TOKENS = 24

STEPS = 5000
"""Most steps for all requests together: many times as many as the requests take."""

CHOICES = 2
"""Log-probabilities reported per token: of the best token and the next."""


def answer(argument: dict[str, Any]) -> list[list[dict[str, Any]]]:
    """Return the tokens that a worker of :func:`hello_of` would report."""
    return say(argument)


def hello_of(argument: Mapping[str, Any]) -> Hello:
    """Return the configuration of a worker, without the model. ``argument`` has ``platform`` and ``engine`` (dotted
    names), ``device`` (the worker's name for it), ``options`` (of the platform) and ``dtype``."""
    return Hello(
        version=PROTOCOL_VERSION,
        stage="llm",
        replica=0,
        incarnation=1,
        engine=argument["engine"],
        adapter="omni_actors.models.causal_lm.adapter:CausalLM",
        device=argument["device"],
        dtype=argument["dtype"],
        platform=argument["platform"],
        platform_options=argument["options"],
    )


def say(argument: Mapping[str, Any]) -> list[list[dict[str, Any]]]:
    """Return the answer to each of :data:`PROMPTS`, all computed together: tokens as ``{"token": id, "top": [[id,
    logprob], …]}``. The model is the same wherever the same versions are installed."""
    from omni_actors.protocol.params import Prompt, Sampling

    hello = hello_of(argument)
    # By name, since platforms must not import the packages of workers and models.
    with tempfile.TemporaryDirectory() as folder:
        resolve_name("omni_actors.models.tiny:build")("causal-lm", Path(folder))
        hello.model = folder
        resolve_name("omni_actors.worker.device:runtime_of")(hello)
        engine = resolve_name(argument["engine"])(hello)
        engine.load(lambda text, fraction: None)
    work = resolve_name("omni_actors.worker.engine:Work")
    for key, prompt in enumerate(PROMPTS):
        sampling = Sampling(temperature=0.0, max_tokens=TOKENS, ignore_eos=True, logprobs=CHOICES)
        params = {"prompt": Prompt(text=prompt), "sampling": sampling}
        engine.admit(work(key, f"request-{key}", params, visible=True))
    out = _Out()
    for _ in range(STEPS):
        if not engine.runnable:
            break
        engine.step(out)
    if out.failed:
        raise RuntimeError(f"a request failed: {next(iter(out.failed.values()))}")
    engine.close()
    return [out.said[key] for key in range(len(PROMPTS))]


class _Out:
    """An :class:`~omni_actors.worker.engine.Outbox` that keeps the outputs."""

    def __init__(self) -> None:
        self.said: dict[int, list[dict[str, Any]]] = defaultdict(list)
        self.failed: dict[int, str] = {}

    def ready(self, key: int) -> bool:
        return True

    def text(self, delta: Any) -> None:
        for it in delta.logprobs or ():
            self.said[delta.key].append({"token": it.token_id, "top": [[one[0], one[2]] for one in it.top]})

    def ledger(self, key: int, index: int, tokens: list[int], data: bytes = b"") -> None:
        pass

    def finish(self, key: int, usage: Any) -> None:
        pass

    def fail(self, key: int, error: Any) -> None:
        self.failed[key] = error.message
