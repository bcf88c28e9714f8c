"""The usage of an answer so far, for clients that want the usage on each chunk of a stream."""

from __future__ import annotations

from collections import Counter

from omni_actors.protocol.request import Event, TextDelta, Usage


class Tally:
    """Counts the tokens of one request by choice, as its text arrives.

    At the end, a choice's count equals its stage's count, even if the request was resumed in another attempt.
    """

    def __init__(self) -> None:
        self._prompt = Usage()
        self._completion: Counter[int] = Counter()

    def begin(self, first: Event | None) -> None:
        """Read the prompt's usage from the first event, which is counted later."""
        if isinstance(first, TextDelta) and first.usage is not None:
            self._prompt = first.usage

    def take(self, delta: TextDelta) -> None:
        """Count a delta."""
        counts, index = self._completion, delta.index
        counts[index] += len(delta.token_ids)
        if delta.usage is not None:
            self._prompt = delta.usage
            counts[index] = max(counts[index], delta.usage.completion_tokens)

    def of(self, index: int = 0) -> Usage:
        """Return the usage of the prompt and of this choice so far."""
        return Usage(
            prompt_tokens=self._prompt.prompt_tokens,
            cached_tokens=self._prompt.cached_tokens,
            completion_tokens=self._completion[index],
        )
