"""How untrusted files are opened with libav, for sound and for pictures.

Containers that can point at other files or hosts (playlists, concatenations, session descriptions) are on no list of
formats, and no protocol is allowed, so that an upload is never a way to read something else.
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
"""Bytes of one allocation inside libav. A container's header of a kilobyte can announce billions of packets, whose
index would be built, and would fill the memory, before a byte of them is looked at."""

MAX_STREAMS = 16
"""Of one file: each has its own index."""

ERRORS = (av.FFmpegError, ValueError, OSError, MemoryError)
"""What a damaged or hostile file can raise."""

log = logging.getLogger(__name__)


def bound_allocations() -> None:
    """From now on hold :data:`MAX_ALLOCATION`, in the whole process. PyAV has no word for it, so the library that it
    has loaded is asked (``av_max_alloc``); where none is found there is a warning, and the rest of the limits."""
    mapped = {line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if "libavutil" in line}
    for path in mapped:
        ctypes.CDLL(path).av_max_alloc(ctypes.c_size_t(MAX_ALLOCATION))
    if not mapped:
        log.warning("libavutil was not found: what a media file's header makes libav allocate is not bounded")


def open_untrusted(source: IO[bytes], containers: str, codecs: tuple[str, ...], **options: str) -> Any:
    """A file's container, if it is one of ``containers``; no other decoder than ``codecs`` is opened to look at it.
    Raises one of :data:`ERRORS`."""
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
    """A stream's packets up to its end, also of a file that was cut short, with ``None`` where others interrupt."""
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
    """The decodable frames, with a ``None`` after each packet. Damaged packets are skipped, and such as would keep the
    decoder in one call for minutes."""
    jpeg = stream.codec_context.name == "mjpeg"
    for packet in packets_of(container, stream):
        try:
            if packet is not None and not (jpeg and is_endless_frame(bytes(packet))):
                yield from packet.decode()
        except ERRORS:
            pass
        yield None
