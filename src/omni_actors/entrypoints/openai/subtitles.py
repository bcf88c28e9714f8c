"""Timed text: segments and words of the recogniser, as SRT and WebVTT."""

from __future__ import annotations

import msgspec


class Segment(msgspec.Struct, kw_only=True):
    """OpenAI's ``TranscriptionSegment``; values that the recogniser does not measure stay neutral."""

    id: int = 0
    seek: int = 0
    start: float
    end: float
    text: str
    tokens: list[int] = []
    temperature: float = 0.0
    avg_logprob: float = 0.0
    compression_ratio: float = 1.0
    no_speech_prob: float = 0.0


class Word(msgspec.Struct, kw_only=True):
    word: str
    start: float
    end: float


def srt(segments: list[Segment]) -> str:
    """Return SRT: numbered blocks, with a comma before the milliseconds."""
    return "".join(
        f"{number}\n{_time(it.start, ',')} --> {_time(it.end, ',')}\n{it.text.strip()}\n\n"
        for number, it in enumerate(segments, 1)
    )


def vtt(segments: list[Segment]) -> str:
    return "WEBVTT\n\n" + "".join(
        f"{_time(it.start, '.')} --> {_time(it.end, '.')}\n{_line(it.text)}\n\n" for it in segments
    )


def _line(text: str) -> str:
    """Return a line of WebVTT, with characters escaped that have a meaning in WebVTT."""
    return text.strip().replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _time(seconds: float, point: str) -> str:
    milliseconds = round(seconds * 1000)
    minutes, milliseconds = divmod(milliseconds, 60_000)
    hours, minutes = divmod(minutes, 60)
    return f"{hours:02}:{minutes:02}:{milliseconds // 1000:02}{point}{milliseconds % 1000:03}"
