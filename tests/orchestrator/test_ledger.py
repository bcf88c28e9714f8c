"""What a client has is neither said again nor left out, however a stage cuts what it says the next time."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from omni_actors.orchestrator.diverged import Diverged
from omni_actors.orchestrator.ledger import StageLedger
from omni_actors.protocol.frames import Ledger, Prefix
from omni_actors.protocol.request import MediaChunk, TextDelta

META = {"sample_rate": 24_000, "channels": 2}
TEXT = "the quick brown fox"
SOUND = bytes(range(200))  # 50 samples of two channels


def cuts(length: int) -> st.SearchStrategy[list[int]]:
    return st.lists(st.integers(0, length), max_size=6).map(lambda found: sorted({0, length, *found}))


def chunk(begin: int, end: int, *, start: int | None = None) -> MediaChunk:
    meta = META if start is None else META | {"start": start}
    return MediaChunk(0, "audio", meta, SOUND[4 * begin : 4 * end])


@given(first=cuts(50), second=cuts(50), lost=st.integers(0, 50), late=st.booleans())
def test_sound_goes_on_behind_what_is_delivered(first: list[int], second: list[int], lost: int, late: bool) -> None:
    """``late``: the second attempt leaves out what the client has."""
    ledger = StageLedger("replay")
    heard = b""
    for begin, end in pairwise(first):
        if end > lost:
            break
        new = ledger.media(chunk(begin, end))
        assert new is not None
        heard += new.data
    prefix, delivered = ledger.again()
    assert prefix is None
    assert delivered == len(heard) // 4
    for begin, end in pairwise(second):
        if late and end <= delivered:
            continue
        begin = max(begin, delivered) if late else begin
        if (new := ledger.media(chunk(begin, end, start=begin if late else None))) is not None:
            heard += new.data
    ledger.done()
    assert heard == SOUND


def test_a_gap_and_a_shorter_sound_are_noticed() -> None:
    ledger = StageLedger("replay")
    ledger.media(chunk(0, 20))
    ledger.again()
    with pytest.raises(Diverged):
        ledger.media(chunk(21, 30, start=21))
    ledger.again()
    ledger.media(chunk(0, 10))
    with pytest.raises(Diverged):
        ledger.done()


def test_nothing_left_to_say_is_no_difference() -> None:
    ledger = StageLedger("replay")
    ledger.media(chunk(0, 50))
    ledger.again()
    ledger.done()


@given(first=cuts(len(TEXT)), second=cuts(len(TEXT)), lost=st.integers(0, len(TEXT)))
def test_text_that_is_computed_again_goes_on_behind_what_was_said(
    first: list[int], second: list[int], lost: int
) -> None:
    ledger = StageLedger("replay")
    said, tokens, finishes = "", [], 0

    def take(spans: list[int], until: int) -> None:
        nonlocal said, finishes
        for begin, end in pairwise(spans):
            if end > until:
                return
            finish = "stop" if end == len(TEXT) else None
            new = ledger.text(TextDelta(0, 0, TEXT[begin:end], list(range(begin, end)), finish))
            if new is not None:
                said += new.text
                tokens.extend(new.token_ids)
                finishes += new.finish_reason is not None

    take(first, lost)
    ledger.again()
    take(second, len(TEXT))
    ledger.done()
    assert said == TEXT
    assert tokens == list(range(len(TEXT)))
    assert finishes == 1


def test_an_end_of_its_own_is_not_told_twice() -> None:
    ledger = StageLedger("replay")
    deltas = [TextDelta(0, 0, "ab", [1]), TextDelta(0, 0, "", [], "stop")]
    assert [ledger.text(delta) for delta in deltas] == deltas
    ledger.again()
    assert [ledger.text(delta) for delta in deltas] == [None, None]
    ledger.done()


def test_a_prefix_holds_all_that_was_reported() -> None:
    ledger = StageLedger("prefix")
    assert ledger.again() == (None, 0)
    ledger.text(TextDelta(0, 0, "a", [1, 2]))
    ledger.text(TextDelta(0, 2, "b", [3]))
    ledger.note(Ledger(0, 0, [4], b"xy"))
    assert ledger.again() == (Prefix(((1, 2, 4), (), (3,)), b"xy"), 0)
    ledger.note(Ledger(0, 0, [], b"z"))
    assert ledger.again() == (Prefix(((1, 2, 4), (), (3,)), b"xyz"), 0)
