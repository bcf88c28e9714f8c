"""The limits of the media process, with their defaults. A deploy file sets the limits as options of stage ``media``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from omni_actors.media.addresses import AllowList
from omni_actors.protocol.errors import OmniError, invalid_request
from omni_actors.protocol.options import Option

PIECE = 1 << 20
"""Bytes of a piece, at most, in which bodies, PCM and encoded audio cross the process boundary."""

CLIP_RATE = 16_000
"""Hz of a decoded clip, which is mono float32."""

FORMATS = ("mp3", "opus", "aac", "flac", "wav", "pcm")
"""The formats of encoded audio: OpenAI's six."""


def unknown_format(format: str) -> OmniError:
    """Return the error (400) for a ``response_format`` that is not among :data:`FORMATS`."""
    known = ", ".join(FORMATS)
    return invalid_request(f"Unknown audio format {format[:40]!r}; one of: {known}.", "response_format")


class Limits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The limits of a media process; :data:`DOC` describes each of them.

    Reaching a count or ``max_bytes`` is a 429, a body over ``max_blob_bytes`` a 413, any other excess a 400. A thing
    past its idle time is freed when the process next has work, or has been idle for a while.
    """

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
    """Return the limits of a media stage with these options. Raises :class:`OmniError` for an unknown option."""
    try:
        limits = msgspec.convert(options, Limits)
        AllowList(limits.allowed_hosts)
        return limits
    except (msgspec.ValidationError, ValueError) as error:
        raise invalid_request(f"Options of stage 'media': {error}") from None


def too_long_to_encode(limits: Limits) -> OmniError:
    return invalid_request(f"The audio to encode is longer than {limits.max_seconds:g} s.")


DOC = {
    "max_blobs": "Most bodies that are being received at once; as many parsed bodies may wait for their media to "
    "be decoded.",
    "max_clips": "Most decoded clips, images and videos that wait for their request; as many are kept for running "
    "requests, in case a worker dies.",
    "max_streams": "Most audio encoders that are open at once.",
    "max_blob_bytes": "Largest body.",
    "max_bytes": "Most bytes of bodies, decoded media and encoded audio that are held at once, together.",
    "max_seconds": "Most seconds of a clip, of all clips of one body together, and of an encoded stream.",
    "max_clips_per_body": "Most audio, image and video parts of one chat body, together.",
    "max_json_bytes": "Largest JSON of a body without its media.",
    "max_channels": "Most channels of an audio file.",
    "max_samples": "Most samples of an audio file: its seconds × rate × channels (an hour of stereo at 48 kHz); "
    "checked before the file is decoded.",
    "min_rate": "Lowest sample rate of an audio file, Hz.",
    "max_rate": "Highest sample rate of an audio file, Hz.",
    "max_image_pixels": "Most pixels of an image; checked before the image is decoded.",
    "max_video_seconds": "Most seconds of a video.",
    "max_frame_pixels": "Most pixels of a video's frames (4096 × 2304); checked before the video is decoded.",
    "max_sampled_pixels": "Most pixels of a sampled frame; a larger frame is shrunk.",
    "max_video_pixels": "Most pixels of all sampled frames of a video together; the frames are shrunk to that.",
    "video_fps": "Frames that are sampled of each second of a video.",
    "min_video_frames": "Fewest frames that are sampled of a short video, if the video has as many.",
    "max_video_frames": "Most frames that are sampled of a long video.",
    "fetch_urls": "Whether media that clients name by http(s) URL are fetched.",
    "allowed_hosts": "Host names and networks that may be fetched from although their addresses are not public.",
    "max_fetches": "Most URLs that are fetched at once; further URLs wait.",
    "fetch_s": "Longest fetch of one URL, waiting and redirects included.",
    "decode_s": "Longest wait for a body's media to be decoded; then the answer is 408.",
    "idle_s": "Time after which bodies and media are freed that nobody has used.",
    "slice_s": "Time that one step works before the loop reads its socket again.",
}

PICTURE_OPTIONS: Mapping[str, Option] = {
    "max_bytes": Option(
        512 << 20,
        "Most memory of the files that are written at once; a picture that needs more is written alone.",
        least=1,
    ),
    "slice_s": Option(0.010, "Time that one step writes PNGs before the loop reads its socket again.", least=0.001),
}
"""The options of the stage ``pictures``: option name → :class:`Option`."""
