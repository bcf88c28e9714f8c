"""The adapter of codec decoders that work in windows: codes arrive on a chunk port, and sound leaves meanwhile.

Codes gather per request. When there are enough frames for a piece (:class:`Ramp` says how many), a window of frames is
decoded: the frames of the piece, the frames whose samples were not settled the time before, and the earlier frames on
which these samples depend (*context*). Only settled samples leave, so the sound does not depend on the cuts of windows.

A decoder with a memory of earlier frames (:meth:`CodecAdapter.remember`) decodes each frame once, without context;
such a decoder uses windows only in deployments that set a context.

Pieces of several requests run as one batch. A payload's credit goes back at once: codes are small, and a talker must
not wait because a piece is not full.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch

from omni_actors.connectors.payload import Payload
from omni_actors.protocol.errors import ErrorInfo, OmniError
from omni_actors.protocol.frames import Hello
from omni_actors.protocol.options import defaults_of, filled
from omni_actors.protocol.request import Usage
from omni_actors.worker.checks import OutputError, TensorSpec, WarmUpError, check_input
from omni_actors.worker.engine import Work
from omni_actors.worker.engines.oneshot.adapter import GenerationAdapter
from omni_actors.worker.engines.oneshot.options import CODEC_OPTIONS
from omni_actors.worker.engines.oneshot.outputs import Result, audio_piece
from omni_actors.worker.engines.oneshot.ramp import Ramp
from omni_actors.worker.returned import facts_of, kind_of, wrong

Codes = np.ndarray[Any, np.dtype[np.int64]]
Samples = np.ndarray[Any, np.dtype[np.float32]]

_SILENCE: Samples = np.empty(0, np.float32)


@dataclass(slots=True)
class CodeStream:
    """The codes of one request.

    ``codes`` holds frames from number ``base`` on. ``decoded`` is the number of frames that were part of a piece,
    ``sent`` the number of samples that have left. ``memory`` is the decoder's memory of the decoded frames. ``origin``
    is the number of samples of a clip; ``counted`` is the number of samples in the usage. While the stream ``skips``,
    it waits for the frames whose sound the client has.
    """

    work: Work
    ramp: Ramp
    codes: Codes
    base: int = 0
    decoded: int = 0
    sent: int = 0
    memory: torch.Tensor | None = None
    origin: int = 0
    counted: int = 0
    skips: bool = False
    ended: bool = False
    busy: bool = False

    @property
    def received(self) -> int:
        return self.base + len(self.codes)


@dataclass(frozen=True, slots=True)
class Window:
    """A part of a stream that is decoded at once: frames ``begin … end - 1``, of which samples ``first … last - 1``
    leave. Frames and samples are counted from the begin of the stream."""

    stream: CodeStream
    begin: int
    end: int
    first: int
    last: int


class CodecAdapter(GenerationAdapter[CodeStream, CodeStream]):
    """The adapter of a codec. A family sets the attributes below in :meth:`prepare` and implements :meth:`decode`.

    Options are in :mod:`omni_actors.worker.engines.oneshot.options`. The section ``speech``, if the stage reads it, may
    set the number of frames of the first piece. ``context`` in the first payload's metadata is the number of leading
    frames that belong to a clip, which the sound continues.
    """

    sample_rate: int
    samples_per_frame: int
    groups: int
    """The number of codes in a frame."""
    codebook_size: int
    """The upper bound of codes, exclusive."""
    sufficient_context: int
    """The number of earlier frames that a frame's samples depend on. With less context the samples change."""
    unsettled: int | None = None
    """The number of last samples of a window, counted back from ``frames * samples_per_frame``, that change when more
    frames follow. ``None`` for a decoder that always leaves these samples out."""
    paddable: bool = True
    """Whether padding frames behind a row change none of the row's samples, so that rows of a batch may be padded."""
    tensor: ClassVar[str] = "codes"
    """The name of the tensor in payloads."""

    def __init__(self, hello: Hello) -> None:
        super().__init__(hello)
        self._options = defaults_of(CODEC_OPTIONS)
        self._missing = self._unsettled = self._context = 0
        self._blank: torch.Tensor | None = None

    @abstractmethod
    def prepare(self, progress: Callable[[str, float | None], None]) -> dict[str, Any]:
        """Load the codec and set the attributes. Return further facts for the serving process."""

    @abstractmethod
    def decode(self, codes: torch.Tensor) -> torch.Tensor:
        """Decode codes int64 [batch, frames, groups] on the stage's device to samples float [batch, n], where ``n`` is
        ``frames * samples_per_frame`` less a constant."""

    def decode_after(self, codes: torch.Tensor, context: int, begins: torch.Tensor) -> torch.Tensor:
        """Decode without the samples of the first ``context`` frames.

        ``begins`` int64 [batch] is the number of each row's first frame in its stream. For decoders whose later layers
        need less context than their earlier layers, and for decoders that count positions.
        """
        return self.decode(codes)[:, context * self.samples_per_frame :]

    def remember(self) -> torch.Tensor | None:
        """Return the memory of a new stream, a zero tensor [size]; ``None`` for a decoder without a memory."""
        return None

    def decode_next(
        self, codes: torch.Tensor, begins: torch.Tensor, memories: torch.Tensor, fresh: bool
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Decode the next frames of streams with memories [batch, size], from frame ``begins`` on.

        ``fresh`` says that all streams begin with their first frame. Returns the newly settled samples, and the new
        memories.
        """
        raise NotImplementedError(f"{type(self).__name__} remembers nothing")

    def recall(self, codes: torch.Tensor, begins: torch.Tensor, memories: torch.Tensor, fresh: bool) -> torch.Tensor:
        """Return the memories [batch, size] after frames whose samples are not needed, as after :meth:`decode_next`."""
        return self.decode_next(codes, begins, memories, fresh)[1]

    def load(self, progress: Callable[[str, float | None], None]) -> dict[str, Any]:
        torch.set_num_threads(self.hello.threads)
        info = facts_of(self, self.prepare(progress), "prepare")
        self._check_attributes()
        progress("warming up", None)
        self._measure()
        self.configure(self.hello.options)
        return {
            "sample_rate": self.sample_rate,
            "channels": 1,
            "samples_per_frame": self.samples_per_frame,
            "left_context_frames": self._context,
            "sufficient_context_frames": self.sufficient_context,
            **info,
        }

    def _check_attributes(self) -> None:
        for name in ("sample_rate", "samples_per_frame", "groups", "codebook_size", "sufficient_context"):
            value = getattr(self, name, None)
            if type(value) is not int or value < (0 if name == "sufficient_context" else 1):
                raise OutputError(f"{type(self).__name__}.prepare set '{name}' to {kind_of(value)}; expected an int")

    def configure(self, options: Mapping[str, Any]) -> None:
        """Use these options for requests opened from now on. Missing options have their defaults."""
        self._options = filled(CODEC_OPTIONS, options)
        context = self._options["left_context_frames"]
        self._context = self.sufficient_context if context is None else context
        self._blank = self.remember() if context is None else None

    def prove(self) -> None:
        self._measure()

    @torch.inference_mode()
    def _measure(self) -> None:
        """Measure how many samples the decoder leaves out at the end.

        Raises when the number is not constant, since each cut would be audible, and when samples are not finite.
        """
        missing = set()
        for frames in (4, 7):
            codes = torch.zeros(2, frames, self.groups, dtype=torch.int64, device=self.hello.device)
            begins = torch.zeros(2, dtype=torch.int64, device=self.hello.device)
            made = self._checked("decode", self.decode_after(codes, 0, begins), 2)
            if not made.isfinite().all():
                raise WarmUpError("samples")
            missing.add(frames * self.samples_per_frame - made.shape[1])
        if len(missing) != 1 or min(missing) < 0:
            raise OmniError(
                ErrorInfo(
                    message=f"{type(self).__name__} does not make {self.samples_per_frame} samples of each frame",
                    code="bad_model",
                    status=500,
                )
            )
        self._missing = missing.pop()
        self._unsettled = self._missing if self.unsettled is None else self.unsettled

    def _checked(self, method: str, samples: Any, rows: int) -> torch.Tensor:
        """Return the decoder's output of a batch, after a check that it is samples [rows, n]."""
        if not isinstance(samples, torch.Tensor):
            raise wrong(self, method, kind_of(samples), f"a tensor of samples [{rows}, n]")
        if samples.ndim != 2 or len(samples) != rows:
            raise wrong(self, method, f"a tensor of shape {list(samples.shape)}", f"samples [{rows}, n]")
        return samples

    def open(self, work: Work) -> tuple[CodeStream, Sequence[CodeStream]]:
        blank = np.empty((0, self.groups), np.int64)
        return CodeStream(work, self.ramp(work), blank, memory=self._blank, skips=work.delivered > 0), ()

    def ramp(self, work: Work) -> Ramp:
        """Return the ramp of this request's pieces."""
        options = self._options
        speech = work.params.get("speech")
        asked = None if speech is None else speech.initial_chunk_frames
        # Fewer frames settle no sample at the begin of a stream, and a memory without a sample is useless.
        least = self._missing // self.samples_per_frame + 1
        most = max(least, options["chunk_frames"])
        first = options["first_chunk_frames"] if options["ramp"] else most
        return Ramp(
            self.samples_per_frame / self.sample_rate,
            max(least, asked or first),
            options["min_chunk_frames"],
            most,
            options["ramp"],
        )

    def feed(self, state: CodeStream, port: str, payload: Payload | None, end: bool) -> Sequence[CodeStream]:
        if payload is not None:
            check_input(payload, {self.tensor: TensorSpec("int64", (None, self.groups), 0, self.codebook_size)})
            state.codes = np.concatenate((state.codes, payload.tensors[self.tensor]))
            if heard := payload.meta.get("context", 0):
                self._hear(state, heard)
        state.ended |= end
        if state.skips:
            self._skip(state)
        return self.more(state)

    @torch.inference_mode()
    def _hear(self, stream: CodeStream, frames: int) -> None:
        """Take the stream's first frames as a clip's, which the sound continues: their settled samples are not sent."""
        if stream.memory is not None:
            self._remember(stream, 0, frames, stream.memory)
        stream.decoded = frames
        stream.sent = stream.origin = stream.counted = max(0, frames * self.samples_per_frame - self._unsettled)

    @torch.inference_mode()
    def _skip(self, stream: CodeStream) -> None:
        """Continue behind the frames whose sound the client has, once these frames have arrived.

        Their memory or context is computed again, but not their sound. The last frame is decoded once more, so that the
        stream has a piece to finish with.
        """
        rate = self.samples_per_frame
        done = (stream.origin + stream.work.delivered + self._unsettled) // rate - 1
        if stream.ended:
            done = min(done, stream.received - 1)
        elif stream.received <= done:
            return
        stream.skips = False
        sent = done * rate - self._unsettled
        if sent <= stream.sent:
            return
        if stream.memory is None:
            self._forget(stream, max(stream.base, sent // rate - self._context))
        else:
            begin, memory = max(0, sent // rate - self.sufficient_context), self._blank
            if begin <= stream.decoded or memory is None:
                begin, memory = stream.decoded, stream.memory
            self._remember(stream, begin, done, memory)
        stream.decoded, stream.sent = done, sent

    def _remember(self, stream: CodeStream, begin: int, end: int, memory: torch.Tensor) -> None:
        """Store the memory after frames ``begin … end - 1``. Earlier memories are not needed any more."""
        codes = torch.from_numpy(stream.codes[None, begin - stream.base : end - stream.base]).to(self.hello.device)
        begins = torch.tensor([begin], device=codes.device)
        (stream.memory,) = self.recall(codes, begins, memory[None], begin == 0)
        self._forget(stream, end)

    def _forget(self, stream: CodeStream, keep: int) -> None:
        """Drop the frames before number ``keep``."""
        stream.codes, stream.base = stream.codes[keep - stream.base :], keep

    def more(self, state: CodeStream) -> Sequence[CodeStream]:
        if state.skips:
            return ()
        waiting = state.received - state.decoded
        left = waiting > 0 or state.sent < self._settled(state, state.received)
        due = waiting >= state.ramp.wanted or (state.ended and left)
        if state.busy or not due:
            return ()
        state.busy = True
        return (state,)

    @torch.inference_mode()
    def run(self, items: Sequence[CodeStream]) -> Sequence[Result | OmniError]:
        pieces = [self._cut(stream) for stream in items]
        samples = {id(piece): _SILENCE for piece in pieces}
        memories: dict[int, torch.Tensor] = {}
        for group in self._groups([piece for piece in pieces if piece.last > piece.first]):
            if group[0].stream.memory is None:
                decoded = self._decode(group)
            else:
                decoded, then = self._go_on(group)
                memories |= zip(map(id, group), then, strict=True)
            samples |= zip(map(id, group), decoded, strict=True)
        results = [self._result(piece, samples[id(piece)]) for piece in pieces]
        for piece in pieces:
            self._advance(piece, memories.get(id(piece)))
        return results

    # -- a piece

    def _settled(self, stream: CodeStream, frames: int) -> int:
        """Return the number of settled samples of a stream after ``frames`` decoded frames."""
        whole = stream.ended and frames == stream.received
        return max(stream.sent, frames * self.samples_per_frame - (self._missing if whole else self._unsettled))

    def _cut(self, stream: CodeStream) -> Window:
        end = stream.decoded + stream.ramp.take(stream.received - stream.decoded)
        begin = stream.decoded
        if stream.memory is None:
            begin = max(0, stream.sent // self.samples_per_frame - self._context)
        return Window(stream, begin, end, stream.sent, self._settled(stream, end))

    def _groups(self, pieces: Sequence[Window]) -> Iterable[list[Window]]:
        """Group pieces into batches: pieces of equal length, or, with padding, of lengths within a factor of two."""
        groups: dict[Any, list[Window]] = {}
        for piece in pieces:
            frames = piece.end - piece.begin
            skipped = piece.first // self.samples_per_frame - piece.begin
            key: tuple[int, int]
            if piece.stream.memory is not None:
                key = (frames, int(piece.begin == 0))
            else:
                key = (frames.bit_length(), skipped.bit_length()) if self.paddable else (frames, skipped)
            groups.setdefault(key, []).append(piece)
        return groups.values()

    def _go_on(self, pieces: Sequence[Window]) -> tuple[list[Samples], list[torch.Tensor]]:
        """Return each piece's samples, and the new memory of its stream."""
        device = self.hello.device
        codes = np.stack([p.stream.codes[p.begin - p.stream.base : p.end - p.stream.base] for p in pieces])
        begins = torch.tensor([piece.begin for piece in pieces], device=device)
        memories = torch.stack([piece.stream.memory for piece in pieces if piece.stream.memory is not None])
        made = self.decode_next(torch.from_numpy(codes).to(device), begins, memories, pieces[0].begin == 0)
        if not isinstance(made, tuple) or len(made) != 2:
            raise wrong(self, "decode_next", kind_of(made), "a tuple of samples [batch, n] and memories [batch, size]")
        decoded, then = self._checked("decode_next", made[0], len(pieces)), made[1]
        if not isinstance(then, torch.Tensor) or then.shape != memories.shape:
            got = list(then.shape) if isinstance(then, torch.Tensor) else kind_of(then)
            raise wrong(self, "decode_next", f"memories that are {got}", f"a tensor {list(memories.shape)}")
        count = pieces[0].last - pieces[0].first
        if decoded.shape[1] != count:
            raise OutputError(f"{codes.shape[1]} frames became {decoded.shape[1]} samples, not {count}")
        samples = decoded.to("cpu", torch.float32).numpy()
        # Copies: a stream must not keep the memories of other rows alive.
        return [np.ascontiguousarray(row) for row in samples], [row.clone() for row in then]

    def _decode(self, pieces: Sequence[Window]) -> list[Samples]:
        """Return each piece's samples."""
        rate = self.samples_per_frame
        codes = np.zeros((len(pieces), max(p.end - p.begin for p in pieces), self.groups), np.int64)
        for row, piece in zip(codes, pieces, strict=True):
            base = piece.stream.base
            row[: piece.end - piece.begin] = piece.stream.codes[piece.begin - base : piece.end - base]
        context = min(piece.first // rate - piece.begin for piece in pieces)
        begins = torch.tensor([piece.begin for piece in pieces], device=self.hello.device)
        made = self.decode_after(torch.from_numpy(codes).to(self.hello.device), context, begins)
        decoded = self._checked("decode", made, len(pieces))
        samples = decoded.to("cpu", torch.float32).numpy()
        origins = [(piece.begin + context) * rate for piece in pieces]
        return [
            np.ascontiguousarray(row[piece.first - origin : piece.last - origin])
            for row, piece, origin in zip(samples, pieces, origins, strict=True)
        ]

    def _result(self, piece: Window, samples: Samples) -> Result:
        stream = piece.stream
        meta = {"start": piece.first - stream.origin} if stream.work.delivered else {}
        sent = [audio_piece(stream.work, samples, self.sample_rate, **meta)] if len(samples) else []
        return Result(sent, Usage(audio_output_s=(piece.last - stream.counted) / self.sample_rate))

    def _advance(self, piece: Window, memory: torch.Tensor | None) -> None:
        stream = piece.stream
        stream.ramp.cut(piece.end - stream.decoded, (piece.last - piece.first) / self.sample_rate)
        stream.decoded, stream.sent, stream.counted, stream.busy = piece.end, piece.last, piece.last, False
        # Frames that no later piece reads.
        if memory is not None:
            stream.memory, keep = memory, piece.end
        else:
            keep = max(stream.base, stream.sent // self.samples_per_frame - self._context)
        self._forget(stream, keep)
