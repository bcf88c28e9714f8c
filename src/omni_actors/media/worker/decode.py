"""Decoding of a client's file, by modality."""

from __future__ import annotations

from collections.abc import Callable, Generator

from omni_actors.media.limits import CLIP_RATE, Limits
from omni_actors.media.questions import How
from omni_actors.media.worker.audio import BodyFile, Samples, decode
from omni_actors.media.worker.decoder_thread import DecoderThread
from omni_actors.media.worker.held import Blob, Clip, Medium, Picture, Reserve
from omni_actors.media.worker.images import decode_image
from omni_actors.media.worker.video import Wanted, decode_video
from omni_actors.protocol.errors import invalid_request

MODALITIES = ("audio", "image", "video")


class Decoding:
    """The decoding of one file. ``nbytes`` is the memory of the work, beside the file.

    ``max_seconds`` bounds the sound; ``afford`` raises when there is no room for more bytes; ``decoder_thread`` makes
    the calls that cannot be sliced. Raises :class:`OmniError` (400) for an unknown modality.
    """

    def __init__(
        self,
        modality: str,
        how: How,
        limits: Limits,
        max_seconds: float,
        afford: Callable[[int], None],
        decoder_thread: DecoderThread,
        param: str | None,
    ) -> None:
        if modality not in MODALITIES:
            raise invalid_request(f"unknown modality {modality[:40]!r}")
        self._modality = modality
        self._how = how
        self._limits = limits
        self._param = param
        rate = CLIP_RATE if how.rate is None else how.rate
        if not limits.min_rate <= rate <= limits.max_rate:
            raise invalid_request(f"A clip cannot be resampled to {rate} Hz.", param)
        self._samples = Samples(max_seconds, param, rate)
        self._reserve = Reserve(afford)
        self._decoder_thread = decoder_thread

    @property
    def nbytes(self) -> int:
        return self._samples.nbytes + self._reserve.nbytes

    def run(self, blob: Blob, content_type: str | None, filename: str | None) -> Generator[None, None, Medium]:
        """Decode the file. Raises :class:`OmniError` (400) for a bad file."""
        limits, param = self._limits, self._param
        if self._modality == "image":
            thread, reserve, how = self._decoder_thread, self._reserve, self._how
            return Picture((yield from decode_image(blob.pieces, thread, reserve, limits, param, how)))
        source = BodyFile(blob.pieces)
        if self._modality == "video":
            most = limits.max_video_frames
            wanted = Wanted(
                fps=self._how.fps or limits.video_fps,
                max_frames=most if self._how.max_frames is None else min(most, self._how.max_frames),
                sound=self._how.sound,
            )
            return (yield from decode_video(source, wanted, self._reserve, self._samples, limits, param))
        yield from decode(source, self._samples, limits, content_type, filename, param)
        return Clip((yield from self._samples.join()), self._samples.rate)
