"""Audio on its way to a client: content types and shapes. The bytes are the media process's business."""

from __future__ import annotations

from omni_actors.protocol.request import MediaChunk

CONTENT_TYPES = {
    "mp3": "audio/mpeg",
    "opus": "audio/ogg",
    "aac": "audio/aac",
    "flac": "audio/flac",
    "wav": "audio/wav",
}


def content_type(format: str, sample_rate: int, channels: int) -> str:
    """Raw PCM says in its type what nothing in its bytes does."""
    return CONTENT_TYPES.get(format) or f"audio/pcm;rate={sample_rate};channels={channels}"


def pcm_of(chunk: MediaChunk) -> tuple[int, int]:
    """Sample rate (Hz) and channels of a chunk."""
    return int(chunk.meta["sample_rate"]), int(chunk.meta.get("channels", 1))


def frame_of(format: str, channels: int) -> int:
    """Bytes that must not be torn apart: a frame of raw PCM."""
    return 2 * channels if format in ("pcm", "pcm16") else 1
