"""A language model with planted faults, each of one request."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from typing import Any

import torch

from omni_actors.connectors.payload import Payload
from omni_actors.models.causal_lm.adapter import CausalLM
from omni_actors.protocol.request import TextDelta
from omni_actors.worker.engines.autoregressive.adapter import Release, SampledToken
from omni_actors.worker.engines.autoregressive.decoder import Attention, Decoder, StepInputs, StepOutput

PLACES = ("prefill", "decode", "nan", "sampled", "ready", "output", "shown", "close")


class Planted(RuntimeError):
    """What a planted fault raises. Its words are not for clients."""


class FaultyDecoder:
    """``inner`` with the faults of ``owner``. ``memory`` bounds the tokens of a pass."""

    def __init__(self, inner: Decoder, owner: FaultyLM) -> None:
        self.kv_shape, self.vocab_size, self.device = inner.kv_shape, inner.vocab_size, inner.device
        self.passes: list[int] = []
        """Tokens of each pass that came through."""
        self._inner, self._owner = inner, owner

    def forward(self, inputs: StepInputs, attention: Attention) -> StepOutput:
        owner = self._owner
        output = self._inner.forward(inputs, attention)  # whatever is wrong is so after keys and values are written
        if owner.broken is not None:
            raise owner.broken
        if len(inputs.tokens) > owner.memory or any(span.key in owner.hungry for span in inputs.spans):
            raise MemoryError("planted")
        rows = inputs.rows.tolist()
        for span in inputs.spans:
            place = owner.faults.get(span.key)
            if (place == "prefill" and span.start == 0) or (place == "decode" and span.start >= owner.late):
                raise Planted(f"secret of {span.key}")
            if place == "nan" and span.start >= owner.late:
                output.logits[[i for i, row in enumerate(rows) if span.at <= row < span.at + span.count]] = math.nan
        self.passes.append(len(inputs.tokens))
        return output


class FaultyLM(CausalLM):
    """``faults`` says of a request (by key) where it fails; ``late`` is the place from which decodes do. ``hungry``
    requests fit into no memory, whoever is beside them. ``broken`` is what every pass raises."""

    decoder: FaultyDecoder  # type: ignore[assignment]

    @classmethod
    def of(cls, adapter: CausalLM, faults: dict[int, str] | None = None, late: int = 0) -> FaultyLM:
        made: Any = copy.copy(adapter)
        made.__class__ = cls
        made.decoder = FaultyDecoder(adapter.decoder, made)
        made.faults, made.late, made.memory, made.hungry, made.broken = faults or {}, late, 1 << 30, set(), None
        made.told = []
        result: FaultyLM = made
        return result

    faults: dict[int, str]
    late: int
    memory: int
    hungry: set[int]
    broken: Exception | None
    told: list[int]

    def sampled(self, drawn: Sequence[SampledToken], output: StepOutput) -> None:
        for it in drawn:
            self._fail_at("sampled", it.key)
        self.told += [it.key for it in drawn]

    def ready(self, key: int) -> bool:
        self._fail_at("ready", key)
        return True

    def output(self, release: Release) -> Payload | None:
        self._fail_at("output", release.key)
        return super().output(release)

    def shown(self, delta: TextDelta) -> TextDelta:
        self._fail_at("shown", delta.key)
        return delta

    def close(self, key: int) -> None:
        super().close(key)
        self._fail_at("close", key)

    def _fail_at(self, place: str, key: int) -> None:
        if self.faults.get(key) == place:
            raise Planted(f"secret of {key}")


def caches_are_finite(layers: Sequence[torch.Tensor]) -> bool:
    return all(bool(layer.isfinite().all()) for layer in layers)
