"""The stage that turns a talker's frames into samples while they come.

Each request has a :class:`SampleStream` of its own, which keeps what the codec must remember between chunks. Chunks
begin small, so that sound is heard early, and double up to a bound, so that the codec works with little overhead.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Protocol

import numpy as np
import torch

from omni_actors.connectors.payload import Payload
from omni_actors.models.common.speech import BREAK, Frames, Samples, folder_of, prepare_torch
from omni_actors.protocol.errors import OmniError
from omni_actors.protocol.params import Speech
from omni_actors.protocol.request import Usage
from omni_actors.worker.engine import Work
from omni_actors.worker.engines.generation import GenerationAdapter
from omni_actors.worker.engines.outputs import OutputError, Result, audio_piece


class SampleStream(Protocol):
    """Decodes one utterance from its begin to its end. What comes out does not depend on how it is cut, within 1e-4 of
    full scale."""

    def push(self, frames: torch.Tensor | None, end: bool) -> torch.Tensor:
        """The next frames [n, width] (none, perhaps, at the end) → the samples [m] that are certain now; all with
        ``end``. Nothing comes after the end."""
        ...


@dataclass(slots=True)
class Decoding:
    """One request's state. ``held`` are frames of a chunk that is not whole yet, which will be ``wanted`` frames."""

    work: Work
    stream: SampleStream
    wanted: int
    held: list[Frames] = field(default_factory=list)
    begun: bool = False

    @property
    def count(self) -> int:
        return sum(map(len, self.held))


@dataclass(frozen=True, slots=True)
class Chunk:
    """An item: consecutive frames [n, width] of one request, ``None`` for an end without any."""

    request: Decoding
    stream: SampleStream
    frames: Frames | None
    end: bool


class CodecStage(GenerationAdapter[Decoding, Chunk]):
    """A family gives :meth:`start` (load) and :meth:`stream`. Options: ``first_frames`` of an utterance's first chunk,
    ``chunk_frames`` of its longest."""

    frames: ClassVar[str]
    """The name of the payloads' one tensor, [frames, width]."""

    sample_rate: int

    def load(self, progress: Callable[[str, float | None], None]) -> dict[str, Any]:
        prepare_torch(self.hello)
        progress("loading the codec", None)
        self.start(folder_of(self.hello))
        return {"sample_rate": self.sample_rate, "channels": 1}

    @abstractmethod
    def start(self, folder: Path) -> None:
        """Load the codec and set :attr:`sample_rate`."""

    @abstractmethod
    def stream(self) -> SampleStream:
        """The decoder of a new utterance."""

    def open(self, work: Work) -> tuple[Decoding, Sequence[Chunk]]:
        speech: Speech = work.params.get("speech") or Speech()
        first = speech.initial_chunk_frames or int(self.hello.options["first_frames"])
        return Decoding(work, self.stream(), first), ()

    def feed(self, state: Decoding, port: str, payload: Payload | None, end: bool) -> Sequence[Chunk]:
        anew = payload is not None and BREAK in payload.meta
        if payload is not None and not anew:
            state.held.append(payload.tensors[self.frames])
        if not (end or anew or state.count >= state.wanted):
            return ()
        if not state.held and not state.begun:
            return ()
        frames = np.concatenate(state.held) if state.held else None
        chunk = Chunk(state, state.stream, frames, end or anew)
        state.held = []
        state.begun = not anew
        state.wanted = min(2 * state.wanted, int(self.hello.options["chunk_frames"]))
        if anew:
            state.stream = self.stream()
        return (chunk,)

    def batch_key(self, item: Chunk) -> Hashable:
        return id(item)  # each stream has its own memory

    def run(self, items: Sequence[Chunk]) -> Sequence[Result | OmniError]:
        return [self._decode(item) for item in items]

    @torch.inference_mode()
    def _decode(self, chunk: Chunk) -> Result:
        frames = None if chunk.frames is None else torch.from_numpy(chunk.frames).to(self.hello.device)
        made: Samples = chunk.stream.push(frames, chunk.end).to("cpu", torch.float32).numpy()
        if made.ndim != 1:
            raise OutputError(f"the codec gave samples of shape {list(made.shape)}, not [n]")
        if not len(made):
            return Result()
        usage = Usage(audio_output_s=len(made) / self.sample_rate)
        return Result([audio_piece(chunk.request.work, np.ascontiguousarray(made), self.sample_rate)], usage)
