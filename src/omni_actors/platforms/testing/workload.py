"""A tiny language model by the real engine, on a platform's device: what it says, greedily.

Run by :func:`omni_actors.plugins.subprocess_probe.run_probes`: see :mod:`omni_actors.platforms.testing.kit`.
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
"""Many times what the requests take."""

CHOICES = 2
"""Logarithms of probabilities that are told of each token: of the best and the next."""


def answer(argument: dict[str, Any]) -> list[list[dict[str, Any]]]:
    """What a worker of :func:`hello_of` would say."""
    return say(argument)


def hello_of(argument: Mapping[str, Any]) -> Hello:
    """What a worker would be told, but for the model. ``argument``: ``platform`` and ``engine`` (dotted names),
    ``device`` (as the worker calls it), ``options`` (the platform's) and ``dtype``."""
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
    """What each of :data:`PROMPTS` is answered with, all computed together: its tokens, each ``{"token": id, "top":
    [[id, logprob], …]}``. The model is the same wherever the same versions are installed."""
    from omni_actors.protocol.params import Prompt, Sampling

    hello = hello_of(argument)
    # The worker's rooms, and those of the models, are above this one: by name.
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
    """An :class:`~omni_actors.worker.engine.Outbox` that keeps what is said."""

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
