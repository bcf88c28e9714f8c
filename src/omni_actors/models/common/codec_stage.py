"""The stage that turns a talker's frames into samples as they arrive, for codecs that remember.

Each request has a :class:`SampleStream` of its own, which keeps the codec's state of the frames before (keys and
values, the past of its convolutions). So a frame is decoded once, and however far the codec looks back, the samples are
those of decoding in one go. For codecs that only look a few frames around see
:mod:`omni_actors.worker.engines.oneshot.codec`, which decodes windows of several requests at once.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Protocol

import numpy as np
import torch

from omni_actors.connectors.payload import Payload
from omni_actors.models.common.speech import BREAK, Frames, Samples, folder_of, prepare_torch
from omni_actors.protocol.errors import OmniError
from omni_actors.protocol.frames import Hello
from omni_actors.protocol.options import filled
from omni_actors.protocol.request import Usage
from omni_actors.worker.checks import OutputError, TensorSpec, check_input
from omni_actors.worker.engine import Work
from omni_actors.worker.engines.oneshot.adapter import GenerationAdapter
from omni_actors.worker.engines.oneshot.options import CODEC_OPTIONS
from omni_actors.worker.engines.oneshot.outputs import Result, audio_piece
from omni_actors.worker.engines.oneshot.ramp import Ramp


class SampleStream(Protocol):
    """A decoder of frames from the first to the last. The output does not depend on the cutting of the input, within
    1e-4 of full scale."""

    def push(self, frames: torch.Tensor) -> torch.Tensor:
        """Decode the next frames [n, width], n > 0, on the stage's device, and return their samples [m]."""
        ...


@dataclass(slots=True)
class Segment:
    """Frames that belong together. Waiting frames are in ``held``."""

    stream: SampleStream
    held: list[Frames] = field(default_factory=list)
    ended: bool = False

    @property
    def waiting(self) -> int:
        return sum(map(len, self.held))


@dataclass(slots=True)
class Decoding:
    """One request's state. Frames are added to the last of ``segments``."""

    work: Work
    ramp: Ramp
    segments: deque[Segment]
    busy: bool = False


class CodecStage(GenerationAdapter[Decoding, Decoding]):
    """The codec stage. A family implements :meth:`start` (load) and :meth:`stream`. Options: those of
    :mod:`omni_actors.worker.engines.oneshot.options`, except the context."""

    frames: ClassVar[str]
    """The name of the payloads' one tensor, [frames, width]."""
    frame: TensorSpec
    """The declaration of a frame's tensor."""

    sample_rate: int
    samples_per_frame: int

    def __init__(self, hello: Hello) -> None:
        super().__init__(hello)
        self._options = filled(CODEC_OPTIONS, hello.options)

    def load(self, progress: Callable[[str, float | None], None]) -> dict[str, Any]:
        prepare_torch(self.hello)
        progress("loading the codec", None)
        self.start(folder_of(self.hello))
        return {"sample_rate": self.sample_rate, "channels": 1, "samples_per_frame": self.samples_per_frame}

    @abstractmethod
    def start(self, folder: Path) -> None:
        """Load the codec and set :attr:`frame`, :attr:`sample_rate` and :attr:`samples_per_frame`."""

    @abstractmethod
    def stream(self) -> SampleStream:
        """Return a decoder for frames that begin anew."""

    def open(self, work: Work) -> tuple[Decoding, Sequence[Decoding]]:
        options, speech = self._options, work.params.get("speech")
        most = options["chunk_frames"]
        ramp = Ramp(
            self.samples_per_frame / self.sample_rate,
            (speech and speech.initial_chunk_frames) or (options["first_chunk_frames"] if options["ramp"] else most),
            options["min_chunk_frames"],
            most,
            options["ramp"],
        )
        return Decoding(work, ramp, deque([Segment(self.stream())])), ()

    def feed(self, state: Decoding, port: str, payload: Payload | None, end: bool) -> Sequence[Decoding]:
        last = state.segments[-1]
        if payload is not None and BREAK in payload.meta:
            last.ended = True
            state.segments.append(Segment(self.stream()))
        elif payload is not None:
            check_input(payload, {self.frames: self.frame})
            last.held.append(payload.tensors[self.frames])
        state.segments[-1].ended |= end
        return self.more(state)

    def more(self, state: Decoding) -> Sequence[Decoding]:
        head = state.segments[0]
        while head.ended and not head.held and len(state.segments) > 1:
            state.segments.popleft()
            head = state.segments[0]
        due = head.waiting >= (1 if head.ended else state.ramp.wanted)
        if state.busy or not due:
            return ()
        state.busy = True
        return (state,)

    def batch_key(self, item: Decoding) -> Hashable:
        return id(item)  # each stream has its own memory

    def run(self, items: Sequence[Decoding]) -> Sequence[Result | OmniError]:
        return [self._decode(item) for item in items]

    @torch.inference_mode()
    def _decode(self, state: Decoding) -> Result:
        head = state.segments[0]
        count = state.ramp.take(head.waiting)
        held = np.concatenate(head.held)
        frames = torch.from_numpy(held[:count]).to(self.hello.device)
        made: Samples = head.stream.push(frames).to("cpu", torch.float32).numpy()
        if made.ndim != 1:
            raise OutputError(f"the codec gave samples of shape {list(made.shape)}, not [n]")
        head.held = [held[count:]] if count < len(held) else []
        seconds = len(made) / self.sample_rate
        state.ramp.cut(count, seconds)
        state.busy = False
        pieces = [audio_piece(state.work, np.ascontiguousarray(made), self.sample_rate)] if len(made) else []
        return Result(pieces, Usage(audio_output_s=seconds))
