"""A text decoder for prompts with features: at some places features of images, sound or video replace token
embeddings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from omni_actors.models.common.embedding import embed
from omni_actors.models.common.layers import Layers
from omni_actors.models.common.rotary import Rotary
from omni_actors.platforms.runtime.kernels import Linear
from omni_actors.worker.collectives import ALONE, Group
from omni_actors.worker.engines.autoregressive.decoder import Attention, Span, StepInputs, StepOutput


@dataclass(frozen=True, slots=True)
class Features:
    """The features in one request's prompt.

    ``features`` [m, width] stand at the prompt's ``places`` (int64 [m], ascending) in place of token embeddings.
    ``positions`` float32 [3, prompt] are the prompt's M-RoPE positions; a later token's position is its place plus
    ``delta``. ``deepstack`` [levels, m, width] is added at those places after each of the first layers.
    """

    places: np.ndarray[Any, np.dtype[np.int64]]
    features: torch.Tensor
    positions: torch.Tensor | None = None
    delta: float = 0.0
    deepstack: torch.Tensor | None = None


def without_features(delta: float) -> Features:
    """Return the part of a request's features that the answer needs once the prompt is computed."""
    return Features(np.empty(0, np.int64), torch.empty(0), delta=delta)


@dataclass(slots=True)
class _Step:
    """The features among one step's tokens."""

    rows: torch.Tensor
    features: torch.Tensor
    deepstack: torch.Tensor | None


class FeatureDecoder:
    """A :class:`~omni_actors.worker.engines.autoregressive.decoder.CapturableDecoder` for prompts with features.

    ``requests`` maps keys to the :class:`Features` of requests with features; the owner of the decoder fills it.

    ``side`` is the width of the output of :meth:`side` for the next stage, 0 for none; :meth:`side` gets the input of
    layer ``capture`` (the last layer's normed output for ``len(layers)``), before deep features are added.

    ``embeddings``, ``layers`` and ``head`` may be one rank's of ``group``. Only the first rank knows requests.
    """

    def __init__(
        self,
        embeddings: torch.Tensor,
        layers: Layers,
        norm: torch.Tensor,
        head: Linear,
        rotary: Rotary,
        vocab_size: int,
        *,
        side: int = 0,
        capture: int | None = None,
        group: Group = ALONE,
    ) -> None:
        self.device = embeddings.device
        self.vocab_size = vocab_size
        self.kv_shape = layers.kv_shape(side)
        self.requests: dict[int, Features] = {}
        self.embeddings = embeddings
        self._layers = layers
        self._norm = norm
        self._head = head
        self._rotary = rotary
        self._side = side
        self._capture = capture
        self._group = group

    def side(self, embedded: torch.Tensor, captured: torch.Tensor, rows: torch.Tensor | None) -> torch.Tensor:
        """Return [tokens, side] for the next stage. ``embedded`` [tokens, width] are the inputs of the first layer,
        ``rows`` the tokens with features."""
        raise NotImplementedError

    def known(self, inputs: StepInputs) -> dict[str, torch.Tensor]:
        """See :class:`~omni_actors.worker.engines.autoregressive.decoder.LeadingDecoder`."""
        if not self.requests:
            return {}
        step, found = self._features(inputs), {"positions": self._positions(inputs)}
        if step is not None:
            found |= {"rows": step.rows, "features": step.features}
            found |= {} if step.deepstack is None else {"deepstack": step.deepstack}
        return found

    def forward(self, inputs: StepInputs, attention: Attention) -> StepOutput:
        step = self._features(inputs)
        prepared = self._prepared(inputs)
        if step is not None:
            prepared[0].index_copy_(0, step.rows, step.features)
        return self._run(prepared, inputs.rows, attention, step)

    def prepare(self, inputs: StepInputs) -> tuple[torch.Tensor, ...] | None:
        """Return ``None`` for a step with features: features deep in the layers are not part of a captured graph."""
        return None if self._features(inputs) is not None else self._prepared(inputs)

    def compute(
        self, prepared: tuple[torch.Tensor, ...], rows: torch.Tensor | None, attention: Attention
    ) -> StepOutput:
        return self._run(prepared, rows, attention, None)

    def _prepared(self, inputs: StepInputs) -> tuple[torch.Tensor, ...]:
        positions = self._positions(inputs)
        return embed(inputs.tokens, self.embeddings, self._group), *self._rotary.at(positions)

    def _run(
        self,
        prepared: tuple[torch.Tensor, ...],
        rows: torch.Tensor | None,
        attention: Attention,
        step: _Step | None,
    ) -> StepOutput:
        x, cos, sin = prepared
        embedded = x
        captured = embedded if self._capture == 0 else None

        def after(layer: int, x: torch.Tensor) -> torch.Tensor:
            nonlocal captured
            deep = None if step is None or step.deepstack is None else step.deepstack[layer : layer + 1]
            if layer + 1 == self._capture:
                captured = x
            if step is not None and deep is not None and len(deep):
                x = x.index_add(0, step.rows, deep[0])
            return x

        x = self._layers(x, cos, sin, attention, after)
        width, eps = (x.shape[1],), self._layers.eps
        if self._side and self._capture == len(self._layers):
            x = captured = torch.rms_norm(x, width, self._norm, eps)
            x = x if rows is None else x.index_select(0, rows)
        else:
            x = torch.rms_norm(x if rows is None else x.index_select(0, rows), width, self._norm, eps)
        if self._side:
            assert captured is not None
            attention.keep(self.side(embedded, captured, None if step is None else step.rows))
        return StepOutput(self._group.gather(self._head(x))[:, : self.vocab_size])

    def _features(self, inputs: StepInputs) -> _Step | None:
        known = inputs.known
        if known is not None:
            return _Step(known["rows"], known["features"], known.get("deepstack")) if "rows" in known else None
        if not self.requests:
            return None
        rows: list[np.ndarray[Any, np.dtype[np.int64]]] = []
        features: list[torch.Tensor] = []
        deepstack: list[torch.Tensor | None] = []
        for span in inputs.spans:
            if (has := self.requests.get(span.key)) is not None:
                low, high = np.searchsorted(has.places, (span.start, span.start + span.count))
                if low < high:
                    rows.append(has.places[low:high] - span.start + span.at)
                    features.append(has.features[low:high])
                    deepstack.append(None if has.deepstack is None else has.deepstack[:, low:high])
        if not rows:
            return None
        return _Step(
            torch.from_numpy(np.concatenate(rows)).to(self.device), torch.cat(features), _stack(deepstack, features)
        )

    def _positions(self, inputs: StepInputs) -> torch.Tensor:
        """Return positions [tokens], or [3, tokens] if positions of a prompt with features are among them."""
        if inputs.known is not None:
            return inputs.known.get("positions", inputs.positions)
        if not self.requests:
            return inputs.positions
        return multi_axis_positions(inputs, self.requests)


def multi_axis_positions(inputs: StepInputs, requests: Mapping[int, Features]) -> torch.Tensor:
    """Return the step's positions with the requests' own positions in place: int64 [tokens] for whole numbers without
    axes, else float32 [tokens], or [3, tokens] with positions of a prompt.

    Whole numbers are below the context's length, as a table needs them: a short video of much time leaves text
    positions beyond it.
    """
    positions = inputs.positions
    found = [(span, has) for span in inputs.spans if (has := requests.get(span.key)) is not None]
    if any(has.positions is not None and span.start < has.positions.shape[1] for span, has in found):
        positions = positions.float().repeat(3, 1)
    elif any(has.delta > 0 or not float(has.delta).is_integer() for _, has in found):
        positions = positions.float()
    elif any(has.delta for _, has in found):
        positions = positions.clone()
    else:
        return positions
    for span, has in found:
        _place(positions, span, has)
    return positions


def _place(positions: torch.Tensor, span: Span, has: Features) -> None:
    prompt = 0
    if has.positions is not None:
        prompt = max(0, min(has.positions.shape[1] - span.start, span.count))
        if prompt:
            positions[:, span.at : span.at + prompt] = has.positions[:, span.start : span.start + prompt]
    rest = positions[..., span.at + prompt : span.at + span.count]
    rest += has.delta if positions.is_floating_point() else int(has.delta)


def _stack(deepstack: list[torch.Tensor | None], features: list[torch.Tensor]) -> torch.Tensor | None:
    """Return tensors side by side [levels, m, width], with zeros for features without levels."""
    levels = max((len(d) for d in deepstack if d is not None), default=0)
    if not levels:
        return None
    return torch.cat(
        [f.new_zeros(levels, *f.shape) if d is None else d for d, f in zip(deepstack, features, strict=True)],
        1,
    )
