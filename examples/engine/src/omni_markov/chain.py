"""The model: a Markov chain that draws the next character after the last three."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np

Integers = np.ndarray[Any, np.dtype[np.int64]]

ORDER = 3
"""Characters that the next character depends on."""

END = "\n"
"""The character that ends a sentence, and an answer."""

TEXT = """\
The robot walked along the quiet sea and looked for the old song.
The song was in the wind, and the wind was in the trees behind the sea.
A small robot heard the song and walked to the trees.
The trees were quiet, and the robot looked at the sea again.
When the wind came back, the small robot sang the old song to the sea.
The sea heard it and was quiet, and the robot walked home along the trees.
"""


class Chain:
    """A Markov chain. Its state is the row of the last :data:`ORDER` characters in a table of counts."""

    def __init__(self, text: str) -> None:
        padded = END * ORDER + text
        self.symbols = sorted(set(padded))
        contexts = sorted({padded[i : i + ORDER] for i in range(len(text))})
        self._rows = {context: row for row, context in enumerate(contexts)}
        self._counts = np.zeros((len(contexts), len(self.symbols)))
        self._next = np.zeros((len(contexts), len(self.symbols)), np.int64)
        for i in range(len(text)):
            row, symbol = self._rows[padded[i : i + ORDER]], self.symbols.index(padded[i + ORDER])
            self._counts[row, symbol] += 1
            self._next[row, symbol] = self.state_of(padded[i + 1 : i + ORDER + 1])

    def state_of(self, text: str) -> int:
        """Return the state after a text; the beginning of a sentence if the chain does not know the text's end."""
        return self._rows.get(text[-ORDER:], self._rows[END * ORDER])

    def follow(self, state: int, symbols: Sequence[int]) -> int:
        """Return the state after symbols that were chosen from a state."""
        for symbol in symbols:
            state = int(self._next[state, symbol])
        return state

    def advance(self, states: Sequence[int], temperatures: Sequence[float], draws: Sequence[float]) -> Integers:
        """Choose the next symbol of each of a batch of states.

        Args:
            states: The states, [batch].
            temperatures: 0 chooses the most frequent symbol; 1 draws a symbol as often as it occurs in the text.
            draws: A number in [0, 1) for each state.

        Returns:
            Symbols and next states, int64 [2, batch].
        """
        counts = self._counts[list(states)]
        heat = np.array(temperatures)[:, None]
        weights = (counts / counts.max(axis=1, keepdims=True)) ** (1 / np.maximum(heat, 1e-3))
        sums = np.cumsum(weights, axis=1)
        drawn = (sums <= np.array(draws)[:, None] * sums[:, -1:]).sum(axis=1)
        symbols = np.where(heat[:, 0] == 0, counts.argmax(axis=1), drawn)
        return np.stack([symbols, self._next[list(states), symbols]])


def draw(seed: int, position: int) -> float:
    """Return a number in [0, 1) that depends on the seed and the position alone.

    So an answer is the same in any batch, and again after the death of a worker.
    """
    digest = hashlib.blake2b(f"{seed}:{position}".encode(), digest_size=6).digest()
    return int.from_bytes(digest, "little") / 2**48
