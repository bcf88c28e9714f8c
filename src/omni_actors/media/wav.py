"""WAV and raw PCM, which need no codec library: both sides write them with this code, so the bytes are the same."""

from __future__ import annotations

import struct

UNKNOWN_SIZE = 0xFFFFFFFF
"""Both size fields of a streamed WAV: the length is not known when the header leaves. Readers that know the convention
(libav, libsndfile, browsers) read until the end; the file is otherwise an ordinary one."""

HEADER_BYTES = 44


def wav_header(sample_rate: int, channels: int, data_bytes: int | None) -> bytes:
    """The 44-byte RIFF header of 16-bit PCM. ``data_bytes=None``: not known yet (:data:`UNKNOWN_SIZE`)."""
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
    """``wav`` or ``pcm`` out of little-endian 16-bit PCM that comes in pieces of any size.

    What comes out is whole frames only. A frame that is incomplete at the end is no sound and is dropped. Nothing
    follows the samples. Streamed WAV is one header, in the same piece as the first samples, then samples; a WAV that is
    not streamed comes out of :meth:`finish` with its exact sizes.
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
