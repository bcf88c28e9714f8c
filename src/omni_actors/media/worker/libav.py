"""Opening of untrusted files with libav, for sound and for pictures.

Containers that can point at other files or hosts (playlists, concatenations, session descriptions) are on no list of
formats, and no protocol is allowed, so that an upload can never read another file.
"""

from __future__ import annotations

import ctypes
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import av

from omni_actors.media.worker.jpeg import is_endless_frame

MAX_ALLOCATION = 32 << 20
"""Bytes of one allocation inside libav, at most.

A container's header of a kilobyte can announce billions of packets. Without a bound, libav would build their index, and
fill the memory, before it reads a packet."""

MAX_STREAMS = 16
"""The number of streams in one file, at most, since each stream has an index."""

ERRORS = (av.FFmpegError, ValueError, OSError, MemoryError)
"""The exceptions that a damaged or hostile file can raise."""

log = logging.getLogger(__name__)


def bound_allocations() -> None:
    """Enforce :data:`MAX_ALLOCATION` in the whole process from now on.

    PyAV has no function for the bound, so ``av_max_alloc`` of the loaded library is called. Without such a library
    there is a warning, and the other limits still hold.
    """
    mapped = {line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if "libavutil" in line}
    for path in mapped:
        ctypes.CDLL(path).av_max_alloc(ctypes.c_size_t(MAX_ALLOCATION))
    if not mapped:
        log.warning("libavutil was not found: what a media file's header makes libav allocate is not bounded")


def open_untrusted(source: IO[bytes], containers: str, codecs: tuple[str, ...], **options: str) -> Any:
    """Open a file as one of ``containers``, without opening another decoder than ``codecs``.

    Raises one of :data:`ERRORS`.
    """
    bounds = {
        "format_whitelist": containers,
        "codec_whitelist": ",".join(codecs),
        "protocol_whitelist": "",
        "probesize": str(1 << 20),
        "analyzeduration": "1000000",
        "max_streams": str(MAX_STREAMS),
    }
    return av.open(source, "r", options=bounds | options, metadata_errors="ignore", buffer_size=1 << 16)


def packets_of(container: Any, stream: Any) -> Iterator[Any]:
    """Yield a stream's packets, also of a truncated file, with ``None`` in place of packets of other streams."""
    packets = container.demux(stream)
    while True:
        try:
            packet = next(packets)
        except IndexError:
            # A stream that was not there at the beginning (transport streams have such): not the one that is read.
            packets = container.demux(stream)
            yield None
            continue
        except (StopIteration, *ERRORS):
            return
        yield packet


def frames_of(container: Any, stream: Any) -> Iterator[Any]:
    """Yield the decodable frames, with a ``None`` after each packet.

    Damaged packets are skipped, and so are packets that would keep the decoder in one call for minutes.
    """
    jpeg = stream.codec_context.name == "mjpeg"
    for packet in packets_of(container, stream):
        try:
            if packet is not None and not (jpeg and is_endless_frame(bytes(packet))):
                yield from packet.decode()
        except ERRORS:
            pass
        yield None
