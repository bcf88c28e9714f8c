"""Spoken answers that a later turn may refer to: kept for a time and within a bound."""

from __future__ import annotations

import pytest

from omni_actors.entrypoints import history as histories
from omni_actors.entrypoints.history import SpokenHistory


def test_an_answer_is_kept_until_its_time() -> None:
    history = SpokenHistory(3600)
    history.put("a", "words")
    assert history.get("a") == "words"
    assert history.get("b") is None
    gone = SpokenHistory(0)
    gone.put("a", "words")
    assert gone.get("a") is None


def test_the_oldest_goes_when_there_is_too_much(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(histories, "MAX_HISTORY", 100)
    history = SpokenHistory(3600)
    for number in range(50):
        history.put(str(number), "x" * 10)
    kept = [number for number in range(50) if history.get(str(number)) is not None]
    assert kept == list(range(50 - len(kept), 50))
    assert len(kept) == 100 // 12
    history.put("long", "x" * 1000)
    assert history.get("long") is None
    history.put("next", "fits")
    assert history.get("next") == "fits"
