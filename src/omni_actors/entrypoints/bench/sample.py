"""One request as its client saw it, and the numbers derived from it."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class Sample:
    """One request's times, in seconds of one clock. ``audio`` is (arrival, seconds of audio in the packet), in order of
    arrival; ``images`` are the arrivals of previews and finished pictures, ``pictures`` counts the finished ones, and
    ``steps`` their denoising steps.

    ``error`` says why the request counts as failed; the times of a failed request enter no statistic.
    """

    started: float = 0.0
    ended: float = 0.0
    text: list[float] = field(default_factory=list)
    audio: list[tuple[float, float]] = field(default_factory=list)
    images: list[float] = field(default_factory=list)
    pictures: int = 0
    steps: int = 0
    tokens: int = 0
    prompt_tokens: int = 0
    error: str | None = None

    @property
    def ttft(self) -> float | None:
        """Time to first text."""
        return self.text[0] - self.started if self.text else None

    @property
    def ttfp(self) -> float | None:
        """Time to first packet of audio."""
        return self.audio[0][0] - self.started if self.audio else None

    @property
    def ttfi(self) -> float | None:
        """Time to the first image, a preview or a finished picture."""
        return self.images[0] - self.started if self.images else None

    @property
    def tpot(self) -> float | None:
        """Time per output token after the first; undefined for fewer than two tokens."""
        if self.tokens < 2 or not self.text:
            return None
        return (self.text[-1] - self.text[0]) / (self.tokens - 1)

    @property
    def e2el(self) -> float:
        """End-to-end latency."""
        return self.ended - self.started

    @property
    def audio_seconds(self) -> float:
        return sum(seconds for _, seconds in self.audio)

    @property
    def rtf(self) -> float | None:
        """Real-time factor: seconds spent per second of audio."""
        return self.e2el / self.audio_seconds if self.audio_seconds else None

    @property
    def underrun(self) -> float | None:
        """Seconds of silence heard by a player that starts with the first packet and waits whenever its buffer is
        empty."""
        if not self.audio:
            return None
        silence = 0.0
        dry_at = self.audio[0][0]
        for arrival, seconds in self.audio:
            if arrival > dry_at:
                silence += arrival - dry_at
                dry_at = arrival
            dry_at += seconds
        return silence
