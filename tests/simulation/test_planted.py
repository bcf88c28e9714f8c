"""The simulation finds bugs: each of these, planted into the production code, within a thousand schedules."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from omni_actors.orchestrator import request
from omni_actors.orchestrator.admission import Admission
from omni_actors.orchestrator.ledger import StageLedger
from omni_actors.orchestrator.pictures import PictureLedger
from omni_actors.orchestrator.request import RequestStream
from omni_actors.orchestrator.submission import sections_of
from omni_actors.protocol.request import Completed, MediaChunk
from omni_actors.protocol.states import RequestState
from omni_actors.stages.replica import StageReplica
from omni_actors.worker.credits import Route
from omni_actors.worker.output_collector import OutputCollector

from .__main__ import BATCH, search
from .schedule import DRAWING, SCHEDULES

MOST = 1000
"""Schedules within which a bug has to be found."""

Patch = Callable[[pytest.MonkeyPatch], None]


def _losing(kind: type, name: str, one_in: int) -> Patch:
    """One call in so many of a method does nothing."""
    method = getattr(kind, name)

    def plant(patch: pytest.MonkeyPatch) -> None:
        calls = itertools.count(1)

        def lossy(self: Any, *args: Any, **kwargs: Any) -> Any:
            return None if next(calls) % one_in == 0 else method(self, *args, **kwargs)

        patch.setattr(kind, name, lossy)

    return plant


def _double_terminal(patch: pytest.MonkeyPatch) -> None:
    end = RequestStream._end

    def ends_twice(self: RequestStream, state: RequestState) -> None:
        end(self, state)
        if state is RequestState.COMPLETED and self.key % 7 == 0:
            self._events.append(Completed(self.usage))

    patch.setattr(RequestStream, "_end", ends_twice)


def _failure_after_completion(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(RequestState.COMPLETED, "live", True)


def _spliced(patch: pytest.MonkeyPatch) -> None:
    """Pictures are cut by bytes, as sound is cut by samples."""
    media = StageLedger.media

    def cut(self: StageLedger, chunk: MediaChunk) -> MediaChunk | None:
        if chunk.modality != "image" or chunk.meta.get("preview"):
            return media(self, chunk)
        piece = media(self, msgspec.structs.replace(chunk, modality="file"))
        whole = {name: value for name, value in chunk.meta.items() if name not in ("piece", "pieces")}
        return None if piece is None else msgspec.structs.replace(piece, modality="image", meta=whole)

    patch.setattr(StageLedger, "media", cut)


def _late_previews(patch: pytest.MonkeyPatch) -> None:
    take = PictureLedger.take

    def all_previews(self: PictureLedger, chunk: MediaChunk) -> MediaChunk | None:
        return chunk if chunk.meta.get("preview") else take(self, chunk)

    patch.setattr(PictureLedger, "take", all_previews)


def _new_seeds(patch: pytest.MonkeyPatch) -> None:
    suspend = RequestStream.suspend

    def draws_again(self: RequestStream) -> None:
        suspend(self)
        self.sections = sections_of(self.request)

    patch.setattr(RequestStream, "suspend", draws_again)


PLANTED: dict[str, tuple[Patch, str]] = {
    "a lost abort": (_losing(StageReplica, "abort", 10), "after its end|holds|in flight"),
    "a double terminal event": (_double_terminal, "got something after its end"),
    "an end after the end": (_failure_after_completion, "hangs|IllegalTransition"),
    "a leaked credit": (_losing(OutputCollector, "acknowledged", 10), "deadline_exceeded|holds"),
    "credits that nobody counts": (
        lambda patch: patch.setattr(Route, "ready", property(lambda self: True)),
        "more chunks under way than",
    ),
    "an unbounded queue": (
        lambda patch: patch.setattr(request, "event_bytes", lambda event: 0),
        "bytes wait for a client",
    ),
    "a leaked permit": (_losing(Admission, "release", 10), "admission counts"),
    "a prefix that is forgotten": (
        lambda patch: patch.setattr(StageLedger, "again", lambda self: (None, 0)),
        "text .* instead of|text after|bytes came as",
    ),
    "input that is not fed again": (
        _losing(RequestStream, "feed_again", 1),
        "deadline_exceeded|bytes came as|not_resumable",
    ),
}
"""Bugs that any schedule may find."""

OF_PICTURES: dict[str, tuple[Patch, str]] = {
    "pictures that are spliced by bytes": (_spliced, "a broken file"),
    "previews that come again": (_late_previews, "followed by a preview|a preview of step"),
    "pieces of a dead worker's picture": (
        lambda patch: patch.setattr(PictureLedger, "again", lambda self: None),
        "a broken file|stage_failed .*(of a picture followed|sent twice)",
    ),
    "a picture that is delivered again": (
        lambda patch: patch.setattr(PictureLedger, "whole", property(lambda self: set(), lambda self, value: None)),
        "comes twice",
    ),
    "a seed that is drawn again": (_new_seeds, "is drawn from seed"),
    "previews that pile up": (
        lambda patch: patch.setattr(request, "supersede", lambda events, event: None),
        "of picture . wait for a client",
    ),
}
"""Bugs that schedules of pictures find."""


@pytest.mark.slow
@pytest.mark.deadline(120)
@pytest.mark.parametrize("bug", [*PLANTED, *OF_PICTURES])
def test_a_planted_bug_is_found(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plant, symptom = (PLANTED | OF_PICTURES)[bug]
    schedules = DRAWING if bug in OF_PICTURES else SCHEDULES
    plant(monkeypatch)
    runs = 0
    for seed in range(MOST // BATCH):
        found = search(seed, schedules=schedules, shrink=False)
        runs += found.runs
        if found.schedule is not None:
            print(f"{bug}: found in schedule {runs}: {found.violations}")
            assert re.search(symptom, "\n".join(found.violations))
            return
    pytest.fail(f"{bug} is not found in {runs} schedules")
