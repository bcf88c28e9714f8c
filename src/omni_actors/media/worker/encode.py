"""Streaming encoders: they take 16-bit PCM in pieces of any size, and return bytes as soon as the codec has some.

==========  ===================================  =================================================================
format      container and codec                  the decoded length
==========  ===================================  =================================================================
mp3         MPEG audio layer III (LAME), CBR     whole: the exact length (its header tells the padding);
                                                 streamed: up to three codec frames longer, as nothing can tell
opus        Ogg, Opus                            the exact length; one page per 20 ms when streamed
aac         ADTS, AAC-LC                         up to two codec frames longer (ADTS cannot tell the padding)
flac        FLAC, 16 bit                         the very samples
wav, pcm    (:mod:`omni_actors.media.wav`)       the very samples
==========  ===================================  =================================================================

PCM is regrouped into blocks of 20 ms before the codec, so that the bytes do not depend on the cutting of the input.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, field
from fractions import Fraction
from io import BytesIO
from typing import Any, Protocol

import av
import numpy as np

from omni_actors.media.limits import FORMATS, PIECE, unknown_format
from omni_actors.media.wav import PcmEncoder
from omni_actors.protocol.errors import OmniError, invalid_request

MIN_RATE, MAX_RATE = 8_000, 192_000
"""Hz of the incoming PCM."""


@dataclass(frozen=True, slots=True)
class Codec:
    container: str
    encoder: str
    bit_rate: int = 0
    """Bits per second and channel; 0 is the codec's default."""
    options: dict[str, str] = field(default_factory=dict)
    whole: dict[str, str] = field(default_factory=dict)
    streamed: dict[str, str] = field(default_factory=dict)


_MP3 = {"id3v2_version": "0"}
CODECS = {
    "mp3": Codec("mp3", "libmp3lame", 64_000, whole=_MP3, streamed={**_MP3, "write_xing": "0"}),
    "opus": Codec("ogg", "libopus", 48_000, {"frame_duration": "20"}, streamed={"page_duration": "20000"}),
    "aac": Codec("adts", "aac", 64_000),
    "flac": Codec("flac", "flac"),
}


class Encoder(Protocol):
    """The interface of an encoder. ``feed`` and ``finish`` are slices of work; ``take`` returns the output in
    pieces."""

    @property
    def nbytes(self) -> int: ...
    def feed(self, pcm: bytes) -> Generator[None, None, None]: ...
    def finish(self) -> Generator[None, None, None]: ...
    def take(self) -> tuple[bytes, bool]:
        """Return up to :data:`PIECE` bytes, and whether more bytes are ready."""
        ...


def open_encoder(format: str, sample_rate: int, channels: int, streaming: bool) -> Encoder:
    """Open an encoder for one of :data:`FORMATS`. Raises :class:`OmniError` (400)."""
    check_shape(format, sample_rate, channels)
    if format in ("wav", "pcm"):
        return PlainEncoder(format, sample_rate, channels, streaming)
    try:
        return CodecEncoder(CODECS[format], sample_rate, channels, streaming)
    except (av.FFmpegError, ValueError):
        raise unavailable(format) from None


def check_shape(format: str, sample_rate: int, channels: int) -> None:
    if format not in FORMATS:
        raise unknown_format(format)
    if not MIN_RATE <= sample_rate <= MAX_RATE or channels not in (1, 2):
        raise invalid_request(
            f"Audio of {sample_rate} Hz and {channels} channels cannot be encoded.", "response_format"
        )


def unavailable(format: str) -> OmniError:
    return invalid_request(f"This server has no encoder for {format!r}.", "response_format", "encoder_unavailable")


def working_formats() -> tuple[str, ...]:
    """Return the formats whose encoders work in this build of libav: each encodes a moment of silence."""
    working = []
    for format in FORMATS:
        try:
            encoder = open_encoder(format, 24_000, 1, streaming=True)
            for _ in encoder.feed(bytes(4_800)):
                pass
            for _ in encoder.finish():
                pass
        except (OmniError, av.FFmpegError, ValueError):
            continue
        working.append(format)
    return tuple(working)


class PlainEncoder:
    """An encoder of ``wav`` and ``pcm``."""

    def __init__(self, format: str, sample_rate: int, channels: int, streaming: bool) -> None:
        self._pcm = PcmEncoder(format, sample_rate, channels, streaming)
        self._sink = Pipe()

    @property
    def nbytes(self) -> int:
        return self._pcm.nbytes + self._sink.nbytes

    def feed(self, pcm: bytes) -> Generator[None, None, None]:
        self._sink.write(self._pcm.feed(pcm))
        yield

    def finish(self) -> Generator[None, None, None]:
        self._sink.write(self._pcm.finish())
        yield

    def take(self) -> tuple[bytes, bool]:
        return self._sink.take()


class CodecEncoder:
    """An encoder of one of :data:`CODECS`. A whole file goes to a seekable buffer, so that its header has the
    length."""

    def __init__(self, codec: Codec, sample_rate: int, channels: int, streaming: bool) -> None:
        self._rate = sample_rate
        self._layout = "mono" if channels == 1 else "stereo"
        self._frame = 2 * channels
        self._block = sample_rate // 50 * self._frame
        self._held = bytearray()
        self._samples = 0
        self._sink: Pipe | Buffer = Pipe() if streaming else Buffer()
        # Without bitexact an Ogg's serial number is random and the same sound would never be the same file.
        options = {"fflags": "+bitexact", "flush_packets": "1", **(codec.streamed if streaming else codec.whole)}
        self._container = av.open(self._sink, "w", format=codec.container, container_options=options)
        # The encoder's own name, not the file's: the rate is what the codec can do, libav resamples up to it.
        rate = nearest_rate(codec.encoder, sample_rate)
        self._stream: Any = self._container.add_stream(
            codec.encoder, rate=rate, options=codec.options, layout=self._layout
        )
        self._stream.codec_context.flags |= av.codec.context.Flags.bitexact
        if codec.bit_rate:
            self._stream.bit_rate = codec.bit_rate * channels

    @property
    def nbytes(self) -> int:
        return len(self._held) + self._sink.nbytes

    def feed(self, pcm: bytes) -> Generator[None, None, None]:
        self._held += pcm
        whole = len(self._held) - len(self._held) % self._block
        for at in range(0, whole, self._block):
            self._encode(bytes(self._held[at : at + self._block]))
            yield
        del self._held[:whole]

    def finish(self) -> Generator[None, None, None]:
        """Encode the buffered PCM and flush the codec. An incomplete frame at the end is dropped."""
        rest = bytes(self._held[: len(self._held) - len(self._held) % self._frame])
        self._held.clear()
        if rest:
            self._encode(rest)
        if not self._samples:
            # Some codecs cannot be flushed without input, and a file without any frame is refused by most players.
            self._encode(bytes(self._block))
        for packet in self._stream.encode(None):
            self._container.mux(packet)
        self._container.close()
        self._sink.end()
        yield

    def take(self) -> tuple[bytes, bool]:
        return self._sink.take()

    def _encode(self, block: bytes) -> None:
        samples = np.frombuffer(block, "<i2").reshape(1, -1)
        frame = av.AudioFrame.from_ndarray(samples, "s16", self._layout)
        frame.sample_rate = self._rate
        frame.time_base = Fraction(1, self._rate)
        frame.pts = self._samples
        self._samples += len(block) // self._frame
        for packet in self._stream.encode(frame):
            self._container.mux(packet)


def nearest_rate(encoder: str, sample_rate: int) -> int:
    """Return ``sample_rate`` if the codec supports it, otherwise the next higher supported rate, or the highest
    rate."""
    rates: list[int] = sorted(av.Codec(encoder, "w").audio_rates or (sample_rate,))
    return next((rate for rate in rates if rate >= sample_rate), rates[-1])


class Pipe:
    """A sink without seeking, whose bytes can be taken at once."""

    def __init__(self) -> None:
        self._bytes = bytearray()

    @property
    def nbytes(self) -> int:
        return len(self._bytes)

    def write(self, data: bytes) -> int:
        self._bytes += data
        return len(data)

    def end(self) -> None:
        """Do nothing: a pipe holds no bytes back."""

    def take(self) -> tuple[bytes, bool]:
        piece = bytes(self._bytes[:PIECE])
        del self._bytes[:PIECE]
        return piece, bool(self._bytes)


class Buffer(BytesIO):
    """A sink with seeking, whose bytes can be taken at the end, after the header is rewritten."""

    def __init__(self) -> None:
        super().__init__()
        self._ended = False

    @property
    def nbytes(self) -> int:
        return self.getbuffer().nbytes

    def end(self) -> None:
        self._ended = True
        self.seek(0)

    def take(self) -> tuple[bytes, bool]:
        if not self._ended:
            return b"", False
        piece = self.read(PIECE)
        return piece, self.tell() < self.nbytes
