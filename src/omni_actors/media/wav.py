"""WAV and raw PCM, which need no codec library. Both halves write WAV and PCM with this code, so the bytes are
equal."""

from __future__ import annotations

import struct

UNKNOWN_SIZE = 0xFFFFFFFF
"""The value of both size fields of a streamed WAV, whose length is unknown when the header is sent.

Readers that know the convention (libav, libsndfile, browsers) read until the end of the file."""

HEADER_BYTES = 44


def wav_header(sample_rate: int, channels: int, data_bytes: int | None) -> bytes:
    """Return the 44-byte RIFF header of 16-bit PCM. ``data_bytes=None``: not yet known (:data:`UNKNOWN_SIZE`)."""
    riff = UNKNOWN_SIZE if data_bytes is None else data_bytes + HEADER_BYTES - 8
    data = UNKNOWN_SIZE if data_bytes is None else data_bytes
    if riff > UNKNOWN_SIZE:
        raise ValueError("a WAV file cannot hold 4 GiB")
    frame = 2 * channels
    return struct.pack(
        "<4sI4s4sIHHIIHH4sI",
        b"RIFF", riff, b"WAVE", b"fmt ", 16, 1, channels, sample_rate, sample_rate * frame, frame, 16, b"data", data,
    )  # fmt: skip


class PcmEncoder:
    """An encoder of ``wav`` or ``pcm`` from little-endian 16-bit PCM in pieces of any size.

    The output has whole frames only; an incomplete frame at the end is dropped. Streamed WAV is one header, in the same
    piece as the first samples, then samples. :meth:`finish` returns a WAV that is not streamed, with its exact sizes.
    """

    def __init__(self, format: str, sample_rate: int, channels: int, streaming: bool) -> None:
        self._frame = 2 * channels
        self._rate = sample_rate
        self._channels = channels
        self._wav = format == "wav"
        self._streaming = streaming
        self._begun = False
        self._held = bytearray()

    @property
    def nbytes(self) -> int:
        return len(self._held)

    def feed(self, pcm: bytes) -> bytes:
        self._held += pcm
        return self._whole_frames() if self._streaming else b""

    def finish(self) -> bytes:
        if self._streaming:
            data = b"" if self._begun else self._head(None)
            self._held.clear()
            return data
        del self._held[len(self._held) - len(self._held) % self._frame :]
        data = self._head(len(self._held)) + bytes(self._held)
        self._held.clear()
        return data

    def _head(self, data_bytes: int | None) -> bytes:
        return wav_header(self._rate, self._channels, data_bytes) if self._wav else b""

    def _whole_frames(self) -> bytes:
        end = len(self._held) - len(self._held) % self._frame
        if not end:
            return b""
        data = bytes(self._held[:end])
        del self._held[:end]
        if not self._begun:
            self._begun = True
            data = self._head(None) + data
        return data
