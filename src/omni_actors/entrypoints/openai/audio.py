"""Audio on its way to a client: content types and shapes. The bytes are the media process's business."""

from __future__ import annotations

from typing import Any

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


def metadata_of(format: str, sample_rate: int, channels: int) -> dict[str, Any]:
    """The field ``audio_metadata`` of a choice, under vLLM-Omni's names. Raw PCM is described nowhere else."""
    return {"format": format, "sample_rate_hz": sample_rate, "channels": channels}


def frame_of(format: str, channels: int) -> int:
    """Bytes that must not be torn apart: a frame of raw PCM."""
    return 2 * channels if format in ("pcm", "pcm16") else 1
