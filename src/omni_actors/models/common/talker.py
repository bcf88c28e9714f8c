"""Shared parts of talkers: a decoder over codec frames that takes in its text while it speaks.

A step's input is the sum of the last frame's embeddings (all its codes) and of the next piece of text; when the text is
over, of an end mark once, then of padding. The talker samples a frame's first code, a code predictor the others, if
there are more. So a request can continue only when its next piece of text has arrived, or when the text has ended.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from omni_actors.connectors.payload import Payload
from omni_actors.models.common.depth import DepthDecoder, DepthSampling, Draw
from omni_actors.models.common.features import Features, multi_axis_positions
from omni_actors.models.common.layers import Layers, join
from omni_actors.models.common.rotary import Rotary
from omni_actors.platforms.runtime import Graphs
from omni_actors.platforms.runtime.kernels import Kernels, Linear
from omni_actors.protocol.frames import Hello, Prefix
from omni_actors.protocol.options import filled
from omni_actors.protocol.params import Sampling, Speech
from omni_actors.worker.engine import Work
from omni_actors.worker.engines.autoregressive.adapter import AutoregressiveAdapter, Release, SampledToken
from omni_actors.worker.engines.autoregressive.decoder import Attention, Span, StepInputs, StepOutput
from omni_actors.worker.engines.autoregressive.options import OPTIONS
from omni_actors.worker.engines.autoregressive.sampling import resolve
from omni_actors.worker.tensors import tensor_payload

RESIDUAL_TOP_K, RESIDUAL_TOP_P = 50, 0.8
"""Sampling parameters of residual codes: both reference implementations use these values, whatever the first code's
settings."""


class Rows:
    """Rows [width] of one request, by place, as long as the request lives: a preempted request computes them again.

    Rows arrive as views of a step's tensor for all requests, and would keep that tensor in memory. So rows are copied
    once there are :attr:`TOGETHER` of them.
    """

    TOGETHER = 32

    def __init__(self) -> None:
        self._copied: list[torch.Tensor] = []  # [TOGETHER, width]
        self._latest: list[torch.Tensor] = []

    def __len__(self) -> int:
        return len(self._copied) * self.TOGETHER + len(self._latest)

    def __getitem__(self, place: int) -> torch.Tensor:
        block, at = divmod(place, self.TOGETHER)
        return self._latest[at] if block == len(self._copied) else self._copied[block][at]

    def append(self, row: torch.Tensor) -> None:
        self._latest.append(row)
        if len(self._latest) == self.TOGETHER:
            self._copied.append(torch.stack(self._latest))
            self._latest.clear()

    def extend(self, rows: Iterable[torch.Tensor]) -> None:
        for row in rows:
            self.append(row)


@dataclass(slots=True)
class Speaking:
    """One request. Rows are [width] in the talker's width, on its device.

    ``prompt`` [n, width] is the embedded prompt. ``text`` are the pieces of text to be spoken, the end mark among them
    when ``ended``; ``pending`` are pieces that are not projected yet. ``frames`` are the sums of each frame's
    embeddings, ``unsent`` frames' codes; ``unrecorded`` are the codes of new frames, for frames with several codes.
    """

    seed: int
    depth: DepthSampling
    prompt: torch.Tensor | None = None
    text: Rows = field(default_factory=Rows)
    pending: list[torch.Tensor] = field(default_factory=list)
    ended: bool = False
    frames: Rows = field(default_factory=Rows)
    unsent: list[torch.Tensor] = field(default_factory=list)
    unrecorded: list[torch.Tensor] = field(default_factory=list)

    @property
    def ready(self) -> bool:
        """Whether the text for the last frame has arrived."""
        return self.ended or len(self.text) + len(self.pending) >= len(self.frames)


class TalkerDecoder:
    """A :class:`~omni_actors.worker.engines.autoregressive.decoder.CapturableDecoder` over codec frames. The owner
    fills ``requests``.

    ``embeddings`` [codes and marks, width] and ``head`` are of the first code; ids in ``suppressed`` are never chosen.
    ``pad`` [width] goes with frames after the text. ``project`` maps pieces of text to the embeddings' width if the
    widths differ, ``mix`` the sum of both to the layers'.
    """

    def __init__(
        self,
        embeddings: torch.Tensor,
        layers: Layers,
        norm: torch.Tensor,
        head: Linear,
        rotary: Rotary,
        suppressed: torch.Tensor,
        pad: torch.Tensor,
        project: Linear | None = None,
        mix: Linear | None = None,
    ) -> None:
        self.device = embeddings.device
        self.vocab_size = embeddings.shape[0]
        self.kv_shape = layers.kv_shape()
        self.embeddings = embeddings
        self.requests: dict[int, Speaking] = {}
        self.features: dict[int, Features] = {}
        self._layers = layers
        self._norm = norm
        self._head = head
        self._rotary = rotary
        self._suppressed = suppressed
        self._pad = pad
        self._project = project
        self._mix = mix
        self.width = layers.width

    def forward(self, inputs: StepInputs, attention: Attention) -> StepOutput:
        return self.compute(self.prepare(inputs), inputs.rows, attention)

    def prepare(self, inputs: StepInputs) -> tuple[torch.Tensor, ...]:
        self._hear([s for span in inputs.spans if (s := self.requests.get(span.key)) is not None and s.pending])
        positions = multi_axis_positions(inputs, self.features) if self.features else inputs.positions
        return self._inputs(inputs.spans), *self._rotary.at(positions)

    def compute(
        self, prepared: tuple[torch.Tensor, ...], rows: torch.Tensor | None, attention: Attention
    ) -> StepOutput:
        x, cos, sin = prepared
        x = self._layers(x, cos, sin, attention)
        x = x if rows is None else x.index_select(0, rows)
        hidden = torch.rms_norm(x, (x.shape[1],), self._norm, self._layers.eps)
        logits = self._head(hidden).index_fill(1, self._suppressed, -torch.inf)
        return StepOutput(logits, hidden)

    def _hear(self, requests: Sequence[Speaking]) -> None:
        """Project new text of all requests at once."""
        if not requests:
            return
        if self._project is None:
            for s in requests:
                s.text.extend(s.pending)
                s.pending.clear()
            return
        rows = self._project(torch.stack([row for s in requests for row in s.pending]))
        at = 0
        for s in requests:
            s.text.extend(rows[at : at + len(s.pending)])
            at += len(s.pending)
            s.pending.clear()

    def _inputs(self, spans: Sequence[Span]) -> torch.Tensor:
        pieces: list[torch.Tensor] = []
        frames: list[torch.Tensor] = []
        texts: list[torch.Tensor] = []

        def flush() -> None:
            if frames:
                sums = torch.stack(frames) + torch.stack(texts)
                pieces.append(sums if self._mix is None else self._mix(sums))
                frames.clear()
                texts.clear()

        for span in spans:
            s = self.requests.get(span.key)
            if s is None or s.prompt is None:  # the engine warms up
                flush()
                pieces.append(torch.zeros(span.count, self.width, dtype=self.embeddings.dtype, device=self.device))
                continue
            known, end = len(s.prompt), span.start + span.count
            if span.start < known:
                flush()
                pieces.append(s.prompt[span.start : end])
            for place in range(max(span.start, known) - known, end - known):
                frames.append(s.frames[place])
                texts.append(s.text[place] if place < len(s.text) else self._pad)
        flush()
        return pieces[0] if len(pieces) == 1 else torch.cat(pieces)


class Talker(AutoregressiveAdapter):
    """The talker stage. A family builds ``decoder`` in ``load``, and ``depth`` if a frame has more than one code;
    ``open`` and ``feed`` take the text to speak."""

    decoder: TalkerDecoder
    depth: DepthDecoder | None = None
    vocabulary = None

    def __init__(self, hello: Hello) -> None:
        super().__init__(hello)
        self.options = filled(OPTIONS, hello.options)
        self.sampling_defaults: Mapping[str, Any] = {}

    @property
    def requests(self) -> dict[int, Speaking]:
        return self.decoder.requests

    def sampling(self, work: Work) -> Sampling:
        return speech_sampling(work.params.get("speech") or Speech())

    def begin(self, work: Work) -> Speaking:
        """Store a new request's state, under its key."""
        sampling = self.sampling(work)
        greedy = resolve(sampling, self.options["sampling"], self.sampling_defaults).greedy
        depth = DepthSampling(0.0 if greedy else 1.0, RESIDUAL_TOP_K, RESIDUAL_TOP_P)
        made = Speaking((work.params.get("speech") or Speech()).seed, depth)
        self.requests[work.key] = made
        return made

    def place(self, key: int, prompt: torch.Tensor, features: Features | None = None) -> None:
        """Set the request's embedded prompt [n, width], with its positions if they are not 0, 1, 2, …"""
        self.requests[key].prompt = prompt
        if features is not None:
            self.decoder.features[key] = features

    def ready(self, key: int) -> bool:
        return self.requests[key].ready

    def capture(self, graphs: Graphs, most: int) -> None:
        if self.depth is not None:
            self.depth.capture(graphs, most)

    def sampled(self, drawn: Sequence[SampledToken], output: StepOutput) -> None:
        frames = [it for it in drawn if not it.ends]
        if not frames:
            return
        first = torch.tensor([it.token for it in frames], device=self.decoder.device)
        total = F.embedding(first, self.decoder.embeddings)
        codes = first.unsqueeze(1)
        requests = [self.requests[it.key] for it in frames]
        if self.depth is not None:
            draws = [Draw(s.depth, s.seed, it.position) for s, it in zip(requests, frames, strict=True)]
            residuals, others = self.depth(_rows(output, frames), total, draws)
            total, codes = total + others, torch.cat((codes, residuals), 1)
        codes = codes.cpu()
        for i, s in enumerate(requests):
            s.frames.append(total[i])
            s.unsent.append(codes[i])
            if self.depth is not None:
                s.unrecorded.append(codes[i])

    def record(self, key: int) -> bytes:
        """Return whole frames, all their codes, int32 little-endian [frames, codes]; empty for frames with one code,
        which is the token."""
        s = self.requests[key]
        if not s.unrecorded:
            return b""
        data: bytes = torch.stack(s.unrecorded).numpy().astype("<i4").tobytes()
        s.unrecorded.clear()
        return data

    @torch.inference_mode()
    def restore(self, key: int, prefix: Prefix) -> None:
        firsts = [token for token in prefix.tokens[0] if token not in self.eos]
        if not firsts:
            return
        codes = torch.tensor(firsts).unsqueeze(1)
        if self.depth is not None:
            codes = torch.from_numpy(np.frombuffer(prefix.data, "<i4").astype(np.int64)).view(len(firsts), -1)
            if codes[:, 0].tolist() != firsts:
                raise ValueError("frames that are not those of their tokens")
        there = codes.to(self.decoder.device)
        total = F.embedding(there[:, 0], self.decoder.embeddings)
        if self.depth is not None:
            total = total + self.depth.embed(there[:, 1:])
        s = self.requests[key]
        s.frames.extend(total)
        s.unsent += codes

    def output(self, release: Release) -> Payload | None:
        s = self.requests[release.key]
        if not s.unsent:
            return None
        codes = torch.stack(s.unsent)
        s.unsent.clear()
        return tensor_payload("codes", {}, {"codes": codes})

    def close(self, key: int) -> None:
        self.requests.pop(key, None)
        self.decoder.features.pop(key, None)


def _rows(output: StepOutput, frames: Sequence[SampledToken]) -> torch.Tensor:
    """Return the hidden states from which these tokens were drawn."""
    hidden = output.hidden
    assert hidden is not None
    rows = [it.row for it in frames]
    return (
        hidden if rows == list(range(len(hidden))) else hidden.index_select(0, torch.tensor(rows, device=hidden.device))
    )


def speech_sampling(speech: Speech) -> Sampling:
    """Return the sampling parameters of frames: the request's, ``None`` where the request leaves the choice to the
    stage."""
    return Sampling(
        max_tokens=speech.max_tokens,
        temperature=speech.temperature,
        top_k=speech.top_k,
        top_p=speech.top_p,
        repetition_penalty=speech.repetition_penalty,
        seed=speech.seed,
    )


def resize_mlp(module: Any, kernels: Kernels) -> Linear:
    """Return a projection of two linear layers with SiLU between them, as one function."""
    first, second = join(module.linear_fc1, kernels=kernels), join(module.linear_fc2, kernels=kernels)
    return lambda x: second(F.silu(first(x)))
