"""The first stage: it turns a text into codes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from omni_actors.author import GenerationAdapter, OmniError, Payload, Piece, Result, TensorSpec, Work, invalid_request
from omni_tones.keys import CODES, SILENT


class Dialler(GenerationAdapter[str, str]):
    """The adapter of the first stage. A request is one item: the keys of its text.

    The pieces of the result are made one by one, each when the next stage has room for it.
    """

    # Emitted payloads are checked against this: another shape or type fails the request, with a message that names it.
    tensors = {"codes": {"codes": TensorSpec("int64", (None, 2), least=0, below=4)}}

    def load(self, progress: Callable[[str, float | None], None]) -> dict[str, Any]:
        """Read the options. A real model would load its weights here, and run once."""
        self._most = self.hello.options["max_keys"]
        return {"keys": "".join(CODES)}

    def open(self, work: Work) -> tuple[str, Sequence[str]]:
        """Check the request before anything is computed. A mistake is a 400 that names the field."""
        text = work.params["speech"].text.upper()
        for character in text:
            if character not in CODES and character not in SILENT:
                raise invalid_request(f"{character!r} is not a key of a telephone.", param="input")
        keys = "".join(character for character in text if character in CODES)
        if not 0 < len(keys) <= self._most:
            raise invalid_request(f"The text has {len(keys)} keys; it takes 1 to {self._most}.", param="input")
        return keys, (keys,)

    def run(self, items: Sequence[str]) -> Sequence[Result | OmniError]:
        """Return one result for each item, in order. Changes no state, so it may run again after an error."""
        return [Result(self._codes(keys)) for keys in items]

    def _codes(self, keys: str) -> Iterator[Piece]:
        for key in keys:
            yield Piece(Payload("codes", {}, {"codes": np.array([CODES[key]], np.int64)}))
