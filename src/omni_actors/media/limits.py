"""Every bound of the media process, with its default. The deploy overlay sets them as options of stage ``media``."""

from __future__ import annotations

import msgspec

PIECE = 1 << 20
"""Bytes. Bodies, PCM and encoded audio cross the process boundary in pieces of at most this size."""

CLIP_RATE = 16_000
"""Hz. Decoded clips are mono float32 at this rate."""

FORMATS = ("mp3", "opus", "aac", "flac", "wav", "pcm")
"""What audio can be encoded to: OpenAI's six."""


class Limits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Reaching a count or ``max_bytes`` is a 429, one body over ``max_blob_bytes`` a 413, the rest a 400.

    ``max_bytes`` covers all that is held at once: bodies, decoded clips, encoded audio that waits to be fetched.
    ``max_seconds`` bounds one decoded clip (a caller can ask for less), one body's clips together, one encoded stream.
    ``idle_s``: what nobody has touched for so long is freed. ``slice_s``: how long one step works before the loop looks
    at its socket again.
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
    min_rate: int = 4_000
    max_rate: int = 384_000
    idle_s: float = 300.0
    slice_s: float = 0.010
