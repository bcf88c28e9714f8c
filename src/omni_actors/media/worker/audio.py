"""Decoding of any audio file to mono float32 at 16 kHz, in slices.

The bytes decide the format of a file; its name and declared type do not (browsers send ``audio/webm;codecs=opus``,
``audio/x-m4a`` or nothing). Only for raw PCM, whose bytes declare no format, the declared type counts.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Generator, Sequence
from io import RawIOBase
from itertools import accumulate
from typing import IO, Any, cast

import av
import numpy as np
import numpy.typing as npt
import soxr

from omni_actors.media.limits import CLIP_RATE, Limits
from omni_actors.media.worker.libav import ERRORS, frames_of, open_untrusted
from omni_actors.media.worker.mixing import Float32, Mixer
from omni_actors.protocol.errors import OmniError, invalid_request

Slices = Generator[None, None, None]
"""Work in slices of a few milliseconds: at each ``yield`` the process may do other work."""

_CONTAINERS = (
    "wav,w64,mp3,ogg,flac,mov,mp4,m4a,3gp,3g2,mj2,matroska,webm,aac,caf,aiff,au,amr,amrnb,amrwb,asf,avi,flv,mpegts,"
    "mpeg,ac3,eac3,wv,ape,tta,dts,gsm,voc"
)
_DECLARED = ("wav", "w64", "flac", "ogg", "mov,mp4,m4a,3gp,3g2,mj2", "matroska,webm", "aiff", "caf", "au")
"""Formats with the duration in the header. For others libav guesses the duration from the first frame's bit rate."""
_BATCH = CLIP_RATE // 4
"""Input samples that are mixed and resampled at once, because the calls for small frames would cost more than the
work."""


class BodyFile(RawIOBase):
    """A seekable file over a body's pieces, without joining them."""

    def __init__(self, pieces: Sequence[bytes]) -> None:
        self._pieces = pieces
        self._ends = list(accumulate(map(len, pieces)))
        self._at = 0

    @property
    def size(self) -> int:
        return self._ends[-1] if self._ends else 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = 0) -> int:
        self._at = max(0, (0, self._at, self.size)[whence] + offset)
        return self._at

    def read(self, size: int | None = -1) -> bytes:
        end = self.size if size is None or size < 0 else min(self.size, self._at + size)
        parts = []
        number = bisect_right(self._ends, self._at)
        while self._at < end:
            piece = self._pieces[number]
            start = self._ends[number] - len(piece)
            parts.append(piece[self._at - start : end - start])
            self._at += len(parts[-1])
            number += 1
        return parts[0] if len(parts) == 1 else b"".join(parts)


class Samples:
    """A growing clip at ``rate`` Hz. ``nbytes`` is its current size."""

    def __init__(self, max_seconds: float, param: str | None, rate: int = CLIP_RATE) -> None:
        self.rate = rate
        self._pieces: list[Float32] = []
        self._count = 0
        self.max_seconds = max_seconds
        self._param = param

    @property
    def nbytes(self) -> int:
        return self._count * 4

    @property
    def seconds(self) -> float:
        return self._count / self.rate

    def add(self, samples: Float32) -> None:
        """Append samples. NaN becomes silence, and values are clipped to [-1, 1]."""
        if len(samples):
            self._pieces.append(np.clip(np.nan_to_num(samples, copy=False), -1.0, 1.0))
            self._count += len(samples)
            if self._count > self.max_seconds * self.rate:
                raise too_long(self.max_seconds, self._param)

    def join(self) -> Generator[None, None, Float32]:
        """Return all samples as one contiguous array, and empty the clip."""
        whole = np.empty(self._count, np.float32)
        at = 0
        for number, piece in enumerate(self._pieces):
            whole[at : at + len(piece)] = piece
            at += len(piece)
            if number % 64 == 63:
                yield
        self._pieces.clear()
        return whole


def unreadable(reason: str, param: str | None) -> OmniError:
    return invalid_request(f"The audio cannot be used: {reason}.", param, "invalid_audio")


def too_long(max_seconds: float, param: str | None) -> OmniError:
    return invalid_request(f"The audio is longer than {max_seconds:g} s.", param, "audio_too_long")


def decode(
    source: BodyFile,
    samples: Samples,
    limits: Limits,
    content_type: str | None,
    filename: str | None,
    param: str | None,
) -> Slices:
    """Decode ``source`` into ``samples``. Raises :class:`OmniError` (400) for a bad file.

    Damaged packets are skipped, and a truncated file gives its decodable part. A file without a decodable packet is
    refused.
    """
    if not source.size:
        raise unreadable("it is empty", param)
    raw = _raw_pcm(source, content_type, filename, limits, param)
    yield from _decode_raw(source, samples, *raw, param) if raw else decode_track(source, samples, limits, param)
    if not samples.nbytes:
        raise unreadable("it holds no samples", param)


def _raw_pcm(
    source: BodyFile, content_type: str | None, filename: str | None, limits: Limits, param: str | None
) -> tuple[str, int, int] | None:
    """Return (numpy dtype, rate, channels) if the hints declare headerless PCM and the bytes do not contradict."""
    kind, _, rest = (content_type or "").lower().partition(";")
    kind = kind.strip().removeprefix("audio/").removeprefix("x-")
    suffix = (filename or "").lower().rpartition(".")[2]
    if kind not in ("pcm", "pcm16", "l16") and suffix not in ("pcm", "pcm16"):
        return None
    magic = source.read(4)
    source.seek(0)
    if magic in (b"RIFF", b"OggS", b"fLaC", b"\x1a\x45\xdf\xa3") or magic[:3] == b"ID3":
        return None
    given = dict(part.strip().partition("=")[::2] for part in rest.split(";"))
    try:
        rate, channels = int(given.get("rate", "24000")), int(given.get("channels", "1"))
    except ValueError:
        raise unreadable("its declared rate or channel count is no number", param) from None
    _check_shape(rate, channels, limits, param)
    if source.size % (2 * channels):
        raise unreadable("16-bit PCM must be a whole number of frames", param)
    return (">i2" if kind == "l16" else "<i2"), rate, channels


def _decode_raw(source: BodyFile, samples: Samples, dtype: str, rate: int, channels: int, param: str | None) -> Slices:
    track = Track(rate, channels, samples)
    step = rate // 4 * channels * 2
    while piece := source.read(step):
        track.add(_scale(np.frombuffer(piece, dtype).reshape(-1, channels)).T)
        yield
    track.finish()


def decode_track(source: BodyFile, samples: Samples, limits: Limits, param: str | None) -> Slices:
    """Decode the first audio stream of a file from its beginning."""
    try:
        container = open_untrusted(cast(IO[bytes], source), _CONTAINERS, AUDIO_CODECS)
    except ERRORS:
        raise unreadable("it is damaged or in a format that this server does not read", param) from None
    with container:
        if not container.streams.audio:
            raise unreadable("the file has no audio stream", param)
        stream = container.streams.audio[0]
        context = stream.codec_context
        if context is None:
            raise unreadable("its codec is not one that this server reads", param)
        if context.sample_rate and context.channels:
            _check_shape(context.sample_rate, context.channels, limits, param)
        if container.format.name in _DECLARED:
            seconds = (container.duration or 0) / 1e6
            if seconds > samples.max_seconds + 1:
                raise too_long(samples.max_seconds, param)
            _check_work(int(seconds * (context.sample_rate or 0) * (context.channels or 0)), limits, param)
        yield
        track: Track | None = None
        work = 0
        for frame in frames_of(container, stream):
            if frame is None:
                yield
                continue
            rate, channels = frame.sample_rate, frame.layout.nb_channels
            _check_shape(rate, channels, limits, param)
            work += frame.samples * channels
            _check_work(work, limits, param)
            sound = heard(frame)
            if track is None or track.shape != (rate, len(sound)):
                # A chained Ogg changes its rate in the middle; HE-AAC declares half of what it decodes to.
                if track is not None:
                    track.finish()
                track = Track(rate, len(sound), samples)
            track.add(sound)
        if track is None:
            raise unreadable("nothing in it could be decoded", param)
        track.finish()


def _audio_codecs() -> tuple[str, ...]:
    names = []
    for name in sorted(av.codecs_available):
        try:
            codec = av.Codec(name, "r")
        except ValueError:
            continue  # An encoder.
        if codec.type == "audio":
            names.append(name)
    return tuple(names)


AUDIO_CODECS = _audio_codecs()
"""The decoders in this build of libav."""


def _check_shape(rate: int, channels: int, limits: Limits, param: str | None) -> None:
    if not limits.min_rate <= rate <= limits.max_rate:
        raise unreadable(f"its sample rate of {rate} Hz is outside {limits.min_rate} to {limits.max_rate}", param)
    if not 1 <= channels <= limits.max_channels:
        raise unreadable(f"it has {channels} channels, of at most {limits.max_channels}", param)


def _check_work(count: int, limits: Limits, param: str | None) -> None:
    """Raise 400 for a file of more samples, all channels together, than the limit.

    A file that declares too many samples is refused before any of them is decoded, another file as soon as the decoded
    samples are too many.
    """
    if count > limits.max_samples:
        message = f"The audio has more than {limits.max_samples:,} samples (its seconds × rate × channels)."
        raise invalid_request(message, param, "audio_too_long")


def heard(frame: Any) -> Float32:
    """Return a frame's channels, float32 in [-1, 1], [channels, samples]; a bass channel beside others is left out."""
    if frame.format.name in ("s64", "s64p"):  # numpy has it, PyAV's conversion has not
        [frame] = av.AudioResampler("dblp", frame.layout, frame.sample_rate).resample(frame)
    array = _scale(frame.to_ndarray())
    channels = frame.layout.nb_channels
    by_channel = array if frame.format.is_planar else array.reshape(-1, channels).T
    if channels < 3:
        return by_channel
    kept = [i for i, channel in enumerate(frame.layout.channels) if not channel.name.startswith("LFE")]
    return by_channel[kept] if 0 < len(kept) < channels else by_channel


def _scale(array: npt.NDArray[Any]) -> Float32:
    if array.dtype.kind == "f":
        # Before anything is mixed: one channel's NaN would silence the others.
        return np.nan_to_num(array.astype(np.float32, copy=False), nan=0.0, posinf=1.0, neginf=-1.0)
    if array.dtype.kind == "u":
        return (array.astype(np.float32) - 128.0) / np.float32(128.0)
    return array.astype(np.float32) / np.float32(-float(np.iinfo(array.dtype).min))


class Track:
    """The way of sound with ``channels`` channels at ``rate`` Hz into a clip: mixing, then resampling."""

    def __init__(self, rate: int, channels: int, into: Samples) -> None:
        self.shape = rate, channels
        self._mixer = Mixer(rate, channels)
        self._resampler = Resampler(rate, into)

    def add(self, sound: Float32) -> None:
        """Mix and resample samples [channels, n]."""
        if len(mixed := self._mixer.add(sound)):
            self._resampler.add(mixed)

    def finish(self) -> None:
        self._resampler.add(self._mixer.finish())
        self._resampler.finish()


class Resampler:
    """A resampler of mono float32 at ``rate`` to the rate of a clip. Its output does not depend on the cutting of
    input."""

    def __init__(self, rate: int, into: Samples) -> None:
        self.rate = rate
        self._into = into
        self._soxr = (
            soxr.ResampleStream(rate, into.rate, 1, dtype="float32", quality="HQ") if rate != into.rate else None
        )
        self._batch: list[Float32] = []
        self._batched = 0

    def add(self, samples: Float32) -> None:
        self._batch.append(samples)
        self._batched += len(samples)
        if self._batched >= _BATCH:
            self._flush(last=False)

    def finish(self) -> None:
        self._flush(last=True)

    def _flush(self, last: bool) -> None:
        samples = np.concatenate(self._batch) if self._batch else np.empty(0, np.float32)
        self._batch.clear()
        self._batched = 0
        # NaN would stay in the resampler's memory for ever.
        self._into.add(self._soxr.resample_chunk(np.nan_to_num(samples), last=last) if self._soxr else samples)
