"""Content types and shapes of audio in responses. The media process encodes the audio itself."""

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
    """Return the content type of encoded audio. For raw PCM the type gives rate and channels, because
    the bytes do not."""
    return CONTENT_TYPES.get(format) or f"audio/pcm;rate={sample_rate};channels={channels}"


def pcm_of(chunk: MediaChunk) -> tuple[int, int]:
    """Return the sample rate in Hz and the number of channels of a chunk."""
    return int(chunk.meta["sample_rate"]), int(chunk.meta.get("channels", 1))


def metadata_of(format: str, sample_rate: int, channels: int) -> dict[str, Any]:
    """Return the field ``audio_metadata`` of a choice, under vLLM-Omni's names; raw PCM is described nowhere else."""
    return {"format": format, "sample_rate_hz": sample_rate, "channels": channels}


def frame_of(format: str, channels: int) -> int:
    """Return the number of bytes that must stay together: a frame of raw PCM."""
    return 2 * channels if format in ("pcm", "pcm16") else 1
