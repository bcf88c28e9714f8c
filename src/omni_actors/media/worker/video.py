"""Decoding of any video file to evenly spaced frames, RGB, and to sound.

The frames are the frames that a player would show at the times 0, d/n, 2d/n, … of a video of d seconds. Qwen's
processors choose frames in the same way (``transformers`` ``Qwen2VLVideoProcessor.sample_frames``), but by number; the
choice by time suits the recordings of browsers, which have no constant rate.

The file is read twice: once without decoding, to learn the times of its frames (many files do not say how many frames
there are), and once to decode. Every frame up to the last chosen frame must be decoded, since frames build on earlier
frames; only the chosen frames are converted.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Generator
from dataclasses import dataclass
from typing import IO, Any, cast

import av
import numpy as np

from omni_actors.media.limits import Limits
from omni_actors.media.worker.audio import AUDIO_CODECS, BodyFile, Samples, decode_track
from omni_actors.media.worker.held import Reserve, UInt8, Video
from omni_actors.media.worker.libav import ERRORS, frames_of, open_untrusted, packets_of
from omni_actors.protocol.errors import OmniError, invalid_request

CONTAINERS = "mov,mp4,m4a,3gp,3g2,mj2,matroska,webm,avi,ogg"
"""Containers with their streams in the header. For others libav would decode pictures of unbounded size first."""
CODECS = (
    "h264", "hevc", "vp8", "vp9", "libdav1d", "av1", "mpeg4", "mpeg1video", "mpeg2video", "mjpeg", "theora", "h263",
    "msmpeg4", "msmpeg4v2",
)  # fmt: skip
"""Decoders of the codecs that clients send; the other hundreds of decoders are never opened."""

_MAX_PACKETS = 1_000_000
_SCAN = 256
"""Packets that one slice examines, in about a millisecond."""
_MARGIN_S = 1e-3
"""Seconds by which timestamps may differ, since timestamps are rounded to the file's clock, often of milliseconds."""
_GROUP = 2
"""The number of sampled frames is a multiple of this where the video has enough frames: models merge pairs."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """The sampling of a video: ``fps`` frames a second, at least ``limits.min_video_frames`` and at most
    ``max_frames``; ``sound`` asks for the audio track."""

    fps: float
    max_frames: int
    sound: bool = False


@dataclass(frozen=True, slots=True)
class _Scan:
    """The times of a video's frames. ``times``: the time of each frame in seconds from the first frame, ascending.
    ``origin``: the first frame's own time, ``None`` when the file has no times (then the frames are counted)."""

    times: list[float]
    seconds: float
    origin: float | None
    has_sound: bool


def unreadable(reason: str, param: str | None) -> OmniError:
    return invalid_request(f"The video cannot be used: {reason}.", param, "invalid_video")


def decode_video(
    source: BodyFile, wanted: Wanted, reserve: Reserve, samples: Samples, limits: Limits, param: str | None
) -> Generator[None, None, Video]:
    """Decode the sampled frames, and the sound if asked for and present. Raises :class:`OmniError` (400).

    ``reserve`` and ``samples`` account for the memory. A frame of more pixels than its share of ``limits`` is shrunk; a
    video that is too long or has too large pictures is refused. Damaged packets are skipped, and a truncated file gives
    its decodable part.
    """
    if not source.size:
        raise unreadable("it is empty", param)
    scan = yield from _scan(source, limits, param)
    shown = choose_frames(scan.times, scan.seconds, wanted.fps, limits.min_video_frames, wanted.max_frames)
    frames = yield from _decode(source, scan, shown, reserve, limits, param)
    fps = len(shown) / scan.seconds
    video = Video(frames, fps, len(frames) / fps)
    if wanted.sound and scan.has_sound:
        source.seek(0)
        yield from decode_track(source, samples, limits, param)
        video.samples = yield from samples.join()
    return video


def choose_frames(times: list[float], seconds: float, fps: float, least: int, most: int) -> list[int]:
    """Return the numbers of the frames shown at evenly spaced times from 0 on."""
    total = len(times)
    count = math.floor(min(max(seconds * fps, least), most, total))
    count = max(1, count // _GROUP * _GROUP)
    return [max(0, bisect_right(times, place * seconds / count + _MARGIN_S) - 1) for place in range(count)]


def _open(source: BodyFile, limits: Limits, param: str | None) -> Any:
    source.seek(0)
    bound = {"max_pixels": str(limits.max_frame_pixels)}
    try:
        container = open_untrusted(cast(IO[bytes], source), CONTAINERS, (*CODECS, *AUDIO_CODECS), threads="1", **bound)
    except ERRORS:
        raise unreadable("it is damaged or in a format that this server does not read", param) from None
    pictures = [stream for stream in container.streams.video if not _is_cover(stream)]
    if not pictures:
        container.close()
        raise unreadable("the file has no video stream", param)
    stream = pictures[0]
    context = stream.codec_context
    if context is None or (context.codec is not None and context.codec.name not in CODECS):
        container.close()
        raise unreadable("its codec is not one that this server reads", param)
    if context.width * context.height > limits.max_frame_pixels:
        container.close()
        raise unreadable(
            f"its pictures have {context.width} × {context.height} pixels, of at most {limits.max_frame_pixels:,}",
            param,
        )
    context.options = bound
    context.thread_count = 1
    return container, stream


def _is_cover(stream: Any) -> bool:
    """Whether a stream is the cover picture of a music file."""
    return bool(int(stream.disposition) & int(av.stream.Disposition.attached_pic))


def _scan(source: BodyFile, limits: Limits, param: str | None) -> Generator[None, None, _Scan]:
    container, stream = _open(source, limits, param)
    stamps: list[float] = []
    total = 0
    with container:
        rate = float(stream.average_rate or stream.guessed_rate or 25)
        has_sound = bool(container.streams.audio)
        yield
        for packet in packets_of(container, stream):
            if packet is None or not packet.size or packet.is_discard:
                continue
            total += 1
            if packet.pts is not None:
                stamps.append(float(packet.pts * packet.time_base))
            if total > _MAX_PACKETS:
                raise unreadable(f"it has more than {_MAX_PACKETS:,} frames", param)
            if total % _SCAN == 0:
                yield
    if not total:
        raise unreadable("it holds no frames", param)
    timed = len(stamps) == total
    stamps.sort()
    times = [stamp - stamps[0] for stamp in stamps] if timed else [number / rate for number in range(total)]
    # The last frame is shown for as long as the others are on average.
    seconds = times[-1] * total / (total - 1) if total > 1 and times[-1] > 0 else total / rate
    if seconds > limits.max_video_seconds:
        raise invalid_request(f"The video is longer than {limits.max_video_seconds:g} s.", param, "video_too_long")
    return _Scan(times, seconds, stamps[0] if timed else None, has_sound)


def _decode(
    source: BodyFile, scan: _Scan, shown: list[int], reserve: Reserve, limits: Limits, param: str | None
) -> Generator[None, None, UInt8]:
    container, stream = _open(source, limits, param)
    frames: UInt8 | None = None
    filled = 0
    number = 0
    with container:
        yield
        for frame in frames_of(container, stream):
            if frame is None:
                yield
                continue
            stamped = scan.origin is not None and frame.time is not None
            at = frame.time - scan.origin if stamped else scan.times[min(number, len(scan.times) - 1)]
            number += 1
            if at < scan.times[shown[filled]] - _MARGIN_S:
                continue
            if frames is None:
                size = _fit(frame.width, frame.height, len(shown), limits)
                reserve.hold(len(shown) * math.prod(size) * 3)
            try:
                picture = _picture(frame, size)
            except ERRORS:
                continue
            if frames is None:
                frames = np.empty((len(shown), *picture.shape), np.uint8)
            if picture.shape != frames.shape[1:]:
                continue  # turned otherwise than the first
            # A frame that did not decode leaves its place to the next one; one may be shown at several times.
            while filled < len(shown) and at >= scan.times[shown[filled]] - _MARGIN_S:
                frames[filled] = picture
                filled += 1
            if filled == len(shown):
                break
    if frames is None:
        raise unreadable("nothing in it could be decoded", param)
    return frames[:filled]


def _fit(width: int, height: int, count: int, limits: Limits) -> tuple[int, int]:
    """Return (width, height) for ``count`` frames, shrunk to their share of the limit."""
    share = max(1, min(limits.max_sampled_pixels, limits.max_video_pixels // count))
    if width * height <= share:
        return width, height
    scale = math.sqrt(share / (width * height))
    return max(1, int(width * scale)), max(1, int(height * scale))


def _picture(frame: Any, size: tuple[int, int]) -> UInt8:
    """Convert a frame to ``size`` and RGB [height, width, 3], and turn the frame upright by the file's rotation."""
    picture: UInt8 = frame.reformat(*size, format="rgb24", interpolation="BICUBIC").to_ndarray()
    return np.rot90(picture, round(frame.rotation / 90) % 4)
