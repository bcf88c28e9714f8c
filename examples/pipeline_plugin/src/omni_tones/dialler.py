"""The first stage: from a text to codes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from omni_actors.author import GenerationAdapter, OmniError, Payload, Piece, Result, TensorSpec, Work, invalid_request
from omni_tones.keys import CODES, SILENT


class Dialler(GenerationAdapter[str, str]):
    """A request is one item: its text. Its pieces are made one by one, each when the next stage has room for it."""

    # What leaves is held to this: a payload of another shape or type fails its request, and the message names it.
    tensors = {"codes": {"codes": TensorSpec("int64", (None, 2), least=0, below=4)}}

    def load(self, progress: Callable[[str, float | None], None]) -> dict[str, Any]:
        """Nothing to load: the tables are code. A model would be loaded and run once here."""
        self._most = self.hello.options["max_keys"]
        return {"keys": "".join(CODES)}

    def open(self, work: Work) -> tuple[str, Sequence[str]]:
        """Look at the request before anything is computed: what is wrong with it is a 400 that names the field."""
        text = work.params["speech"].text.upper()
        for character in text:
            if character not in CODES and character not in SILENT:
                raise invalid_request(f"{character!r} is no key of a telephone.", param="input")
        keys = "".join(character for character in text if character in CODES)
        if not 0 < len(keys) <= self._most:
            raise invalid_request(f"The text has {len(keys)} keys; it takes 1 to {self._most}.", param="input")
        return keys, (keys,)

    def run(self, items: Sequence[str]) -> Sequence[Result | OmniError]:
        """One result for each item, in order. It changes no state, so it may be called again after it has raised."""
        return [Result(self._codes(keys)) for keys in items]

    def _codes(self, keys: str) -> Iterator[Piece]:
        for key in keys:
            yield Piece(Payload("codes", {}, {"codes": np.array([CODES[key]], np.int64)}))
