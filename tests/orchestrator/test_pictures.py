"""Pictures reach the client whole and once, whatever befalls their stages and however slowly the client reads."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from omni_actors.orchestrator import pictures
from omni_actors.orchestrator.request import RequestStream
from omni_actors.protocol.errors import ErrorInfo, OmniError, stage_died
from omni_actors.protocol.request import (
    Completed,
    Event,
    MediaChunk,
    Request,
    StageDone,
    StepProgress,
    TextDelta,
    Usage,
)
from omni_actors.stages.replica import StageReplica
from omni_actors.worker import pieces
from omni_actors.worker.pieces import pieces_of

SINK_BYTES = 100


def _replica(name: str) -> StageReplica:
    stage = SimpleNamespace(name=name, recovery="replay")
    return cast(StageReplica, SimpleNamespace(stage=stage, quarantined=False, abort=lambda key: None))


@dataclass
class Line:
    """A request with the stages ``image`` and ``pictures``. It is its own owner: after a death another attempt
    begins at once, as in a deployment with a replica to spare."""

    key: int = 0
    replicas: dict[str, StageReplica] = field(
        default_factory=lambda: {it: _replica(it) for it in ("image", "pictures")}
    )
    got: list[Event] = field(default_factory=list)
    sink_bytes: int = SINK_BYTES

    def stream(self) -> RequestStream:
        return RequestStream(self, Request(task="image"), "r", max_waiting_bytes=self.sink_bytes)

    async def admit(self, record: RequestStream) -> None:
        record.admit(0, cast(Any, None), cast(Any, None), 0.0, math.inf)
        record.begin(self.key, self.replicas)

    def stage_lost(self, record: RequestStream, replica: StageReplica, error: ErrorInfo) -> None:
        record.suspend()
        for ledger in record.ledgers.values():
            ledger.again()
        self.key += 1
        record.begin(self.key, self.replicas)

    def stage_progressed(self, record: RequestStream, replica: StageReplica) -> None: ...
    def stage_released(self, record: RequestStream, replica: StageReplica, *, current: bool) -> None: ...
    def ended(self, record: RequestStream) -> None: ...
    def released(self, record: RequestStream) -> None: ...

    def die(self, record: RequestStream, stage: str) -> None:
        """Let a worker die, and the other one release the attempt."""
        replica, key = self.replicas[stage], self.key
        record.on_failed(replica, key, stage_died(stage).info)
        for each in self.replicas.values():
            record.on_released(each, key)

    def end(self, record: RequestStream) -> None:
        for stage, usage in (("image", Usage(images=1, steps=4)), ("pictures", Usage())):
            record.on_done(self.replicas[stage], StageDone(self.key, usage))

    def tell(self, record: RequestStream, event: MediaChunk | StepProgress) -> None:
        """Report an event of the present attempt."""
        if isinstance(event, StepProgress):
            record.on_progress(self.replicas["image"], StepProgress(self.key, event.index, event.step, event.steps))
        else:
            record.on_media(self.replicas["pictures"], MediaChunk(self.key, "image", event.meta, event.data))

    async def read(self, record: RequestStream) -> None:
        while record.waiting:
            self.got.append(await record.receive())


def picture(index: int, data: bytes, **meta: Any) -> MediaChunk:
    return MediaChunk(0, "image", {"index": index, "format": "png", "seed": 7 + index, **meta}, data)


def file_of(index: int, layer: int, attempt: int) -> bytes:
    """The file of a picture: other bytes in each attempt, of another length."""
    return bytes([index, layer, attempt]) * (20 + 3 * attempt)


@dataclass(frozen=True)
class Plan:
    """What an attempt reports, in order. ``dies`` is the place at which a worker dies, and ``dead`` its stage."""

    events: list[MediaChunk | StepProgress]
    dies: int
    dead: str


def cut_up(draw: st.DrawFn, whole: MediaChunk) -> list[MediaChunk]:
    """The pieces of a picture or preview: any number of them, also one."""
    data = whole.data
    size = draw(st.integers(1, len(data) + 3))
    cut = [data[begin : begin + size] for begin in range(0, len(data), size)]
    if len(cut) == 1 and draw(st.booleans()):
        return [whole]
    return [
        MediaChunk(0, "image", {**whole.meta, "piece": place, "pieces": len(cut)}, piece)
        for place, piece in enumerate(cut)
    ]


@st.composite
def attempts(draw: st.DrawFn) -> list[Plan]:
    n, layers = draw(st.integers(1, 3)), draw(st.integers(1, 2))
    steps, every = draw(st.integers(1, 4)), draw(st.integers(1, 2))
    plans = []
    for attempt in range(draw(st.integers(1, 4))):
        lines: list[list[MediaChunk | StepProgress]] = []
        for index in range(n):
            line: list[MediaChunk | StepProgress] = []
            for step in range(1, steps + 1):
                line.append(StepProgress(0, index, step, steps))
                if step % every == 0 and step < steps:
                    line += cut_up(draw, picture(index, b"preview", preview=step))
            for layer in range(layers):
                meta = {"layer": layer} if layers > 1 else {}
                line += cut_up(draw, picture(index, file_of(index, layer, attempt), **meta))
            lines.append(line)
        order = draw(st.permutations([index for index, line in enumerate(lines) for _ in line]))
        events = [lines[index].pop(0) for index in order]
        plans.append(Plan(events, draw(st.integers(0, len(events))), draw(st.sampled_from(("image", "pictures")))))
    return plans


def check_waiting(record: RequestStream) -> None:
    """A slow reader holds at most one preview and one progress of each picture, and none of a finished one."""
    held: Counter[tuple[str, int]] = Counter()
    for event in record._events:
        if isinstance(event, StepProgress):
            held["progress", event.index] += 1
        elif isinstance(event, MediaChunk):
            held["preview" if event.meta.get("preview") else "whole", event.meta["index"]] += 1
    for (kind, index), count in held.items():
        assert kind == "whole" or (count == 1 and not held["whole", index]), held


def check_delivered(got: list[Event], wanted: set[tuple[int, int]], files: dict[tuple[int, int], set[bytes]]) -> None:
    whole: set[tuple[int, int]] = set()
    previews: Counter[int] = Counter()
    steps: Counter[int] = Counter()
    for event in got[:-1]:
        if isinstance(event, StepProgress):
            assert event.index not in {index for index, _ in whole}
            assert event.step > steps[event.index]
            steps[event.index] = event.step
            continue
        assert isinstance(event, MediaChunk)
        index = event.meta["index"]
        if step := event.meta.get("preview"):
            assert index not in {done for done, _ in whole}, "a preview behind its picture"
            assert step > previews[index]
            assert event.data == b"preview"
            previews[index] = step
            continue
        place = index, event.meta.get("layer", 0)
        assert place not in whole, "a picture twice"
        assert event.data in files[place], "no file of any attempt"
        assert "pieces" not in event.meta
        assert event.meta["seed"] == 7 + index
        whole.add(place)
    assert isinstance(got[-1], Completed)
    assert whole == wanted


@given(plans=attempts(), reads=st.randoms(use_true_random=False))
def test_a_picture_arrives_whole_and_once_whatever_dies_and_however_it_is_cut(plans: list[Plan], reads: Any) -> None:
    """Each attempt but the last one ends with the death of a worker, at any place. The reader reads now and then."""

    async def main() -> None:
        line = Line()
        async with line.stream() as record:
            for number, plan in enumerate(plans):
                last = number + 1 == len(plans)
                for place, event in enumerate(plan.events):
                    if place == plan.dies and not last:
                        break
                    line.tell(record, event)
                    check_waiting(record)
                    if reads.random() < 0.3:
                        await line.read(record)
                if not last:
                    line.die(record, plan.dead)
            line.end(record)
            await line.read(record)
        places = {
            (it.meta["index"], it.meta.get("layer", 0))
            for it in plans[-1].events
            if isinstance(it, MediaChunk) and not it.meta.get("preview")
        }
        files = {place: {file_of(*place, attempt) for attempt in range(len(plans))} for place in places}
        check_delivered(line.got, places, files)

    trio.run(main)


async def test_a_slow_reader_is_not_failed_for_previews_progress_or_large_pictures() -> None:
    line = Line()
    async with line.stream() as record:
        for step in range(1, 50):
            line.tell(record, StepProgress(0, 0, step, 50))
            line.tell(record, picture(0, bytes(SINK_BYTES), preview=step))
        assert len(record._events) == 2
        for index in (0, 1):
            line.tell(record, picture(index, bytes(10 * SINK_BYTES)))
        line.tell(record, StepProgress(0, 2, 1, 50))
        line.end(record)
        await line.read(record)
    kinds = [type(event).__name__ for event in line.got]
    assert kinds == ["MediaChunk", "MediaChunk", "StepProgress", "Completed"]
    assert all(len(event.data) == 10 * SINK_BYTES for event in line.got if isinstance(event, MediaChunk))


async def test_sound_and_text_beside_pictures_are_bounded_as_ever() -> None:
    line = Line()
    with pytest.raises(OmniError) as raised:
        async with line.stream() as record:
            line.tell(record, picture(0, bytes(10 * SINK_BYTES)))
            record.on_text(line.replicas["image"], TextDelta(0, 0, "x" * SINK_BYTES, []))
            await line.read(record)
            await record.receive()
    assert raised.value.info.code == "slow_client"


@pytest.mark.parametrize(
    ("chunks", "words"),
    [
        ([picture(0, bytes(60), piece=0, pieces=3), picture(0, bytes(60), piece=1, pieces=3)], "larger than"),
        ([picture(0, b"x", piece=1, pieces=2)], "Piece 1 of 2"),
        ([picture(0, b"x", piece=0, pieces=2), picture(0, b"x", piece=0, pieces=2)], "Picture 0 was sent twice"),
        ([picture(0, b"x", piece=0, pieces=3), picture(0, b"x", piece=2, pieces=3)], "followed 1 pieces"),
        ([picture(1, b"x"), picture(1, b"y")], "Picture 1 was sent twice"),
        ([picture(0, b"x", piece=0, pieces=0)], "Piece 0 of 0"),
        ([picture(0, b"x", piece="0", pieces=1)], "'piece' of a picture"),
        ([MediaChunk(0, "image", {"index": [1]}, b"x")], "'index' of a picture"),
        ([picture(0, b"x", preview=True)], "'preview' of a picture"),
        ([picture(0, b"x", piece=0, pieces=2), None], "in the middle of a picture"),
    ],
)
async def test_what_makes_no_picture_fails_its_request_with_a_reason(
    chunks: list[MediaChunk | None], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pictures, "MAX_PICTURE_BYTES", 100)
    line = Line()
    with pytest.raises(OmniError) as raised:
        async with line.stream() as record:
            for chunk in chunks:
                if chunk is None:
                    line.end(record)
                else:
                    line.tell(record, chunk)
            async for _event in record:
                pass
    info = raised.value.info
    assert (info.code, info.stage, info.status) == ("stage_failed", "pictures", 500)
    assert words in info.message


@given(size=st.integers(1, 200), piece_bytes=st.integers(1, 64))
def test_the_pieces_that_a_worker_sends_are_the_picture(size: int, piece_bytes: int) -> None:
    whole = picture(3, bytes(range(256))[:size])

    async def main() -> None:
        line = Line()
        async with line.stream() as record:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(pieces, "PIECE_BYTES", piece_bytes)
                cut = pieces_of(whole)
            assert all(0 < len(it.data) <= piece_bytes for it in cut)
            for chunk in cut:
                line.tell(record, chunk)
            line.end(record)
            await line.read(record)
        assert line.got[0] == whole

    trio.run(main)
