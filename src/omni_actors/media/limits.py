"""Every bound of the media process, with its default. The deploy overlay sets them as options of stage ``media``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from omni_actors.media.addresses import AllowList
from omni_actors.protocol.errors import OmniError, invalid_request

PIECE = 1 << 20
"""Bytes. Bodies, PCM and encoded audio cross the process boundary in pieces of at most this size."""

CLIP_RATE = 16_000
"""Hz. Decoded clips are mono float32 at this rate."""

FORMATS = ("mp3", "opus", "aac", "flac", "wav", "pcm")
"""What audio can be encoded to: OpenAI's six."""


def unknown_format(format: str) -> OmniError:
    """The 400 for a ``response_format`` that is none of :data:`FORMATS`."""
    known = ", ".join(FORMATS)
    return invalid_request(f"Unknown audio format {format[:40]!r}; one of: {known}.", "response_format")


class Limits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """See :data:`DOC`. Reaching a count or ``max_bytes`` is a 429, one body over ``max_blob_bytes`` a 413, the rest a
    400. At its idle time a thing is gone when the process next has something to do, or has been at rest for a while."""

    max_blobs: int = 256
    max_clips: int = 512
    max_streams: int = 256
    max_blob_bytes: int = 64 << 20
    max_bytes: int = 512 << 20
    max_seconds: float = 3600.0
    max_clips_per_body: int = 32
    max_json_bytes: int = 4 << 20
    max_channels: int = 8
    max_samples: int = 345_600_000
    max_image_pixels: int = 32 << 20
    max_video_seconds: float = 600.0
    max_frame_pixels: int = 9_437_184
    max_sampled_pixels: int = 602_112
    max_video_pixels: int = 32 << 20
    video_fps: float = 2.0
    min_video_frames: int = 4
    max_video_frames: int = 256
    min_rate: int = 4_000
    max_rate: int = 384_000
    fetch_urls: bool = True
    allowed_hosts: tuple[str, ...] = ()
    max_fetches: int = 32
    fetch_s: float = 20.0
    decode_s: float = 120.0
    idle_s: float = 300.0
    slice_s: float = 0.010


def read_limits(options: Mapping[str, Any]) -> Limits:
    """The limits of a media stage with these options. Raises :class:`OmniError` for what is no such option."""
    try:
        limits = msgspec.convert(options, Limits)
        AllowList(limits.allowed_hosts)
        return limits
    except (msgspec.ValidationError, ValueError) as error:
        raise invalid_request(f"Options of stage 'media': {error}") from None


def too_long_to_encode(limits: Limits) -> OmniError:
    return invalid_request(f"The audio to encode is longer than {limits.max_seconds:g} s.")


DOC = {
    "max_blobs": "Bodies that are being received at once; as many parsed ones wait for their media to be decoded.",
    "max_clips": "Decoded clips, images and videos that wait for their request; as many are kept of running requests, "
    "for the case that a worker dies.",
    "max_streams": "Encoders that are open at once.",
    "max_blob_bytes": "Largest body.",
    "max_bytes": "Bodies, decoded media and encoded audio that are held at once, together.",
    "max_seconds": "Longest clip, longest sum of one body's clips, and longest encoded stream.",
    "max_clips_per_body": "Audio, image and video parts of one chat body, together.",
    "max_json_bytes": "A body's JSON without its media.",
    "max_channels": "Channels of an audio file.",
    "max_samples": "Samples of an audio file, its seconds × rate × channels (an hour of stereo at 48 kHz); checked "
    "before it is decoded.",
    "min_rate": "Lowest sample rate of an audio file, Hz.",
    "max_rate": "Highest sample rate of an audio file, Hz.",
    "max_image_pixels": "Pixels of an image; checked before it is decoded.",
    "max_video_seconds": "Longest video.",
    "max_frame_pixels": "Pixels of a video's pictures (4096 × 2304); checked before it is decoded.",
    "max_sampled_pixels": "A sampled frame of more pixels is shrunk to them.",
    "max_video_pixels": "Pixels of all sampled frames of a video; the frames are shrunk to share them.",
    "video_fps": "Frames that are sampled of each second of a video.",
    "min_video_frames": "Frames that are sampled of a short video, if it has so many.",
    "max_video_frames": "Frames that are sampled of a long video.",
    "fetch_urls": "Whether media that clients name by http(s) URL are fetched.",
    "allowed_hosts": "Host names and networks that may be fetched from though their addresses are not public.",
    "max_fetches": "URLs that are fetched at once; others wait.",
    "fetch_s": "Longest fetch of one URL, waiting and redirects included.",
    "decode_s": "Longest wait for a body's media to be decoded; over it the answer is 408.",
    "idle_s": "Seconds after which what nobody has touched is freed.",
    "slice_s": "Seconds that one step works before the loop looks at its socket again.",
}
