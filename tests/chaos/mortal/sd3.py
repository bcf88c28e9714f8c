"""Stable Diffusion 3 that dies."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from typing import Any

from tests.chaos.mortal import meet

from omni_actors.models.sd3.adapter import StableDiffusion3
from omni_actors.worker.engines.diffusion.cursor import Cursor


class Mortal(StableDiffusion3):
    """The family, with pictures that are decoded one at a time."""

    def encode(self, cursors: Sequence[Cursor]) -> Iterator[Sequence[Any] | None]:
        self._meet(cursors, "encode")
        yield from super().encode(cursors)

    def predict(self, cursors: Sequence[Cursor]) -> Sequence[Any]:
        for cursor in cursors:
            self._meet([cursor], f"step {cursor.step}")
        return super().predict(cursors)

    def decode_key(self, cursor: Cursor) -> Hashable:
        return (super().decode_key(cursor), cursor.index)

    def decode(self, cursors: Sequence[Cursor]) -> Iterator[Sequence[Any] | None]:
        for cursor in cursors:
            self._meet([cursor], f"decode {cursor.index}")
        yield from super().decode(cursors)

    def _meet(self, cursors: Sequence[Cursor], place: str) -> None:
        for cursor in cursors:
            meet(cursor.work.request_id, self.hello.incarnation, place)
