"""One forward in which some rows skip blocks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from omni_actors.models.diffusion.acceleration.forward_rows import ForwardRows
from omni_actors.models.diffusion.acceleration.step_cache.memory import BranchMemory
from omni_actors.models.diffusion.acceleration.step_cache.settings import CacheSettings

TEXT = "encoder_hidden_states"
"""Name of a block's argument for the text."""

Streams = tuple[torch.Tensor, torch.Tensor | None]
"""The picture's tokens [rows, tokens, width], and the text's if the blocks change it."""


@dataclass(frozen=True, slots=True)
class BlockLayout:
    """How a model calls its blocks.

    Args:
        lists: Names of the model's lists of blocks, in order of use.
        count: The number of blocks, filled in when the model is loaded.
        shared: Names of a block's arguments whose first dimension is not the rows.
        text_first: Whether a block that returns the text and the picture returns the text first.
        mask: Name of a block's argument [rows, tokens] that says which tokens are a row's own and which fill the row
            up; empty where all rows have as many tokens.
    """

    lists: tuple[str, ...] = ("transformer_blocks", "single_transformer_blocks")
    count: int = 0
    shared: frozenset[str] = frozenset({"image_rotary_emb"})
    text_first: bool = True
    mask: str = ""


@dataclass(frozen=True, slots=True)
class CachedRow:
    """A row with a step cache.

    Args:
        settings: The settings of the row's picture.
        memory: What the branch's last full step left; ``None`` before the first one.
        may_skip: Whether this step may use the memory (no warm-up, not too many skips in a row).
    """

    settings: CacheSettings
    memory: BranchMemory | None
    may_skip: bool


@dataclass(frozen=True, slots=True)
class _Head:
    """A row behind its first blocks [1, tokens, width], and the residual of these blocks."""

    hidden: torch.Tensor
    text: torch.Tensor | None
    residual: torch.Tensor

    def joined(self, tokens: int) -> bool:
        """Return whether a stream of so many tokens is the text and the picture in one (FLUX.2's second part)."""
        return self.text is not None and tokens == self.text.shape[1] + self.hidden.shape[1]


class CachedForward:
    """One forward with rows that have step caches.

    Every row goes through its own first blocks. The residual of these blocks is compared with that of the row's last
    full step: a row whose residual has changed little leaves the forward, and the blocks after them compute the other
    rows alone. The row comes back for its last blocks, with the residual that the blocks between left in its last full
    step. Each row decides by its own numbers; one transfer from the device tells all decisions behind a block.

    Args:
        rows: The rows of the forward; this object says which are present.
        cached: Place of a row → its cache. The other rows are computed in full.
        layout: How the model calls its blocks.
    """

    def __init__(self, rows: ForwardRows, cached: Mapping[int, CachedRow], layout: BlockLayout) -> None:
        self._rows = rows
        self._cached = cached
        self._layout = layout
        self._first_input: torch.Tensor
        self._paired = False
        self._lengths: dict[int, int] = {}
        self._heads: dict[int, _Head] = {}
        self._absent: set[int] = set()
        self._indices: dict[tuple[int, ...], torch.Tensor] = {}
        self.memories: dict[int, BranchMemory] = {}
        """Place of a row with a cache → what to remember, once the last block is done."""
        self.skipped: set[int] = set()
        """Places of the rows that skipped blocks."""

    def through(self, index: int, block: Any, arguments: dict[str, Any]) -> Any:
        """Run one block for the present rows. Before it rows come back, and after it rows leave.

        Args:
            index: The block's number.
            block: The block.
            arguments: Its arguments by name, the picture's tokens first.
        """
        name = next(iter(arguments))
        hidden: torch.Tensor = arguments[name]
        if index == 0:
            self._begin(hidden, arguments.get(self._layout.mask))
        text: torch.Tensor | None = arguments.get(TEXT) if self._paired else None
        hidden, text = self._end(index, hidden, text)
        paired = text is not None
        if self._rows.present:
            streams = {name: hidden, TEXT: text} if self._paired else {name: hidden}
            output = block(**self._narrowed(arguments, streams))
            paired = isinstance(output, tuple)
            hidden, text = self._streams_of(output)
            self._paired = paired if index == 0 else self._paired
        hidden, text = self._decide(index + 1, hidden, text)
        if index + 1 == self._layout.count:
            hidden, text = self._end(self._layout.count, hidden, text)
        if not paired:
            return hidden
        return (text, hidden) if self._layout.text_first else (hidden, text)

    def _begin(self, hidden: torch.Tensor, mask: torch.Tensor | None) -> None:
        if hidden.shape[0] != len(self._rows.all):
            raise RuntimeError(f"the model's first block got {hidden.shape[0]} rows of {len(self._rows.all)}")
        self._first_input = hidden
        if mask is not None:
            counts = mask.sum(1).tolist()
            self._lengths = {place: int(counts[place]) for place in self._cached}

    def _own(self, place: int, tokens: torch.Tensor) -> torch.Tensor:
        """Return a row's own tokens, without those that fill it up."""
        return tokens[:, : self._lengths[place]] if place in self._lengths else tokens

    def _streams_of(self, output: Any) -> Streams:
        if not isinstance(output, tuple):
            return output, None
        return (output[1], output[0]) if self._layout.text_first else (output[0], output[1])

    # ---- leaving

    def _decide(self, blocks: int, hidden: torch.Tensor, text: torch.Tensor | None) -> Streams:
        """Behind so many blocks, let the rows leave whose first blocks these are and whose residual is as it was."""
        present = self._rows.present
        deciding = [it for it in present if it in self._cached and self._cached[it].settings.first_blocks == blocks]
        if not deciding:
            return hidden, text
        at = {place: present.index(place) for place in deciding}
        first = self._select(self._first_input, tuple(deciding))
        out = self._select(hidden, tuple(at.values()))[:, -first.shape[1] :]
        rows = zip(deciding, (out - first).split(1), strict=True)
        residuals = {place: self._own(place, row) for place, row in rows}
        self.skipped.update(self._unchanged(residuals))
        for place, row in at.items():
            self._heads[place] = _Head(
                hidden[row : row + 1], None if text is None else text[row : row + 1], residuals[place]
            )
        self._absent.update(self.skipped.intersection(deciding))
        rest = tuple(row for row, place in enumerate(present) if place not in self._absent)
        self._rows.present = tuple(present[row] for row in rest)
        if len(rest) == len(present):
            return hidden, text
        return self._select(hidden, rest), None if text is None else self._select(text, rest)

    def _unchanged(self, residuals: Mapping[int, torch.Tensor]) -> list[int]:
        """Return the rows whose residual differs from the last full step's by less than their threshold."""
        before: dict[int, torch.Tensor] = {}
        for place, residual in residuals.items():
            row = self._cached[place]
            if row.may_skip and row.memory is not None and row.memory.head.shape == residual.shape:
                before[place] = row.memory.head
        if not before:
            return []
        found = _changes(list(before.values()), [residuals[place] for place in before])
        # A residual of zeros makes no number, which is below no threshold.
        return [
            place
            for place, change in zip(before, found, strict=True)
            if change < self._cached[place].settings.threshold
        ]

    # ---- coming back

    def _end(self, index: int, hidden: torch.Tensor, text: torch.Tensor | None) -> Streams:
        """In front of a block (or behind the last one): remember the rows whose last blocks begin here, and bring those
        back that left."""
        count, present = self._layout.count, self._rows.present
        ending = [it for it in self._heads if count - self._cached[it].settings.last_blocks == index]
        back: dict[int, Streams] = {}
        for place in ending:
            head = self._heads.pop(place)
            if place in self._absent:
                back[place] = self._returning(place, head, hidden.shape[1])
            else:
                row = present.index(place)
                self._remember(place, head, hidden[row : row + 1], None if text is None else text[row : row + 1])
        if not back:
            return hidden, text
        self._absent.difference_update(back)
        places = (*present, *back)
        order = tuple(sorted(range(len(places)), key=places.__getitem__))
        self._rows.present = tuple(sorted(places))
        hidden = self._select(torch.cat([hidden, *(row for row, _ in back.values())]), order)
        if text is not None:
            rows = [row for _, row in back.values() if row is not None]
            text = self._select(torch.cat([text, *rows]), order)
        return hidden, text

    def _returning(self, place: int, head: _Head, tokens: int) -> Streams:
        memory = self._cached[place].memory
        assert memory is not None
        self.memories[place] = replace(memory, skips=memory.skips + 1)
        hidden, text = head.hidden + _fitted(memory.hidden, head.hidden.shape[1]), head.text
        if text is not None and memory.text is not None:
            text = text + _fitted(memory.text, text.shape[1])
        if text is not None and head.joined(tokens):
            return torch.cat([text, hidden], dim=1), None
        return hidden, text

    def _remember(self, place: int, head: _Head, hidden: torch.Tensor, text: torch.Tensor | None) -> None:
        if head.text is not None and head.joined(hidden.shape[1]):
            text, hidden = hidden.split([head.text.shape[1], head.hidden.shape[1]], dim=1)
        left = None
        if text is not None and head.text is not None and self._cached[place].settings.last_blocks:
            left = text - head.text
        self.memories[place] = BranchMemory(head.residual.clone(), self._own(place, hidden - head.hidden), left)

    # ---- tensors

    def _narrowed(self, arguments: Mapping[str, Any], streams: Mapping[str, Any]) -> dict[str, Any]:
        """Return a block's arguments for the present rows. ``streams`` hold these rows alone already."""
        full = len(self._rows.present) == len(self._rows.all)
        return {
            name: streams[name]
            if name in streams
            else value
            if full or name in self._layout.shared
            else self._for_present(value)
            for name, value in arguments.items()
        }

    def _for_present(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            count = len(self._rows.all)
            if value.ndim == 0 or value.shape[0] % count:
                return value
            # Some models put several values of each row one behind the other along the first dimension.
            times = value.shape[0] // count
            return self._select(value, tuple(it * count + place for it in range(times) for place in self._rows.present))
        if isinstance(value, dict):
            return {key: self._for_present(it) for key, it in value.items()}
        if isinstance(value, tuple | list):
            return type(value)(map(self._for_present, value))
        return value

    def _select(self, tensor: torch.Tensor, rows: Sequence[int]) -> torch.Tensor:
        """Return rows of a tensor, in this order."""
        rows = tuple(rows)
        if rows == tuple(range(tensor.shape[0])):
            return tensor
        if rows not in self._indices:
            self._indices[rows] = torch.tensor(rows, dtype=torch.long, device=tensor.device)
        return tensor.index_select(0, self._indices[rows])


def _changes(before: Sequence[torch.Tensor], now: Sequence[torch.Tensor]) -> list[float]:
    """Return the relative change of each row: together for rows of one size, which is faster."""
    if len({row.shape for row in before}) > 1:
        return [_changes([one], [two])[0] for one, two in zip(before, now, strict=True)]
    old, new = (torch.cat(list(rows)).float().flatten(1) for rows in (before, now))
    changes: list[float] = ((new - old).abs().mean(1) / old.abs().mean(1)).tolist()
    return changes


def _fitted(residual: torch.Tensor, tokens: int) -> torch.Tensor:
    """Return a residual at another padding: what lies behind a row's own tokens is read by nothing."""
    if residual.shape[1] == tokens:
        return residual
    if residual.shape[1] > tokens:
        return residual[:, :tokens]
    return torch.nn.functional.pad(residual, (0, 0, 0, tokens - residual.shape[1]))
