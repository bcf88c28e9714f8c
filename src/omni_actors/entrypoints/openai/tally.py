"""The usage of an answer so far, for clients that want it on each chunk of a stream."""

from __future__ import annotations

from collections import Counter

from omni_actors.protocol.request import Event, TextDelta, Usage


class Tally:
    """Counts the tokens of one request as its text comes, by choice.

    In the end a choice's count is that of its stage, also where another attempt took the request up.
    """

    def __init__(self) -> None:
        self._prompt = Usage()
        self._completion: Counter[int] = Counter()

    def begin(self, first: Event | None) -> None:
        """Learn of the prompt from the first event, which is taken later."""
        if isinstance(first, TextDelta) and first.usage is not None:
            self._prompt = first.usage

    def take(self, delta: TextDelta) -> None:
        """Count a delta in."""
        counts, index = self._completion, delta.index
        counts[index] += len(delta.token_ids)
        if delta.usage is not None:
            self._prompt = delta.usage
            counts[index] = max(counts[index], delta.usage.completion_tokens)

    def of(self, index: int = 0) -> Usage:
        """Return the usage of the prompt and of this choice by now."""
        return Usage(
            prompt_tokens=self._prompt.prompt_tokens,
            cached_tokens=self._prompt.cached_tokens,
            completion_tokens=self._completion[index],
        )
