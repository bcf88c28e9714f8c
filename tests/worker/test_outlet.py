"""What an engine puts out that cannot be sent, and what comes with descriptors."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator

import numpy as np
import pytest

from omni_actors.connectors.link import Link
from omni_actors.connectors.payload import Payload
from omni_actors.connectors.shared_memory import Arena
from omni_actors.pipelines.declaration import Mode
from omni_actors.protocol.codec import frame, peer_reader, up_reader
from omni_actors.protocol.frames import EdgeSpec, Reply, Step, Up, Wire
from omni_actors.protocol.request import MediaChunk, TextDelta, Usage
from omni_actors.worker.control import Control
from omni_actors.worker.jobs import Job, Route
from omni_actors.worker.outlet import Outlet


class Bench:
    """An outlet with two requests, each on an edge of its own; both other ends are here."""

    def __init__(self) -> None:
        ours, self.serving = socket.socketpair()
        mine, self.peer = socket.socketpair()
        self.sockets = [ours, self.serving, mine, self.peer]
        self.control = Control(ours)
        self.link = Link(7, "b#0@1", mine)
        self.aborted: list[int] = []
        self.outlet = Outlet("a", self.control, Arena(), self.aborted.append)
        edge = EdgeSpec(index=0, source="a", target="b", port="in", kind="text", mode="chunk", capacity=8)
        for key in (1, 2):
            self.outlet.jobs[key] = Job(key, f"r{key}", True, (Route(edge, self.link),), set())

    def turn(self) -> list[Up]:
        """What the serving process gets of one turn of the loop."""
        for link in self.outlet.flush():
            link.flush()
        self.outlet.report()
        self.control.flush()
        self.serving.setblocking(False)
        data = b""
        while True:
            try:
                data += self.serving.recv(1 << 20)
            except BlockingIOError:
                return up_reader().feed(data)
            self.control.flush()

    def chunks(self) -> list[int]:
        """The keys whose chunks the consumer got."""
        self.peer.setblocking(False)
        try:
            return [message.key for message in peer_reader().feed(self.peer.recv(1 << 20)) if hasattr(message, "key")]
        except BlockingIOError:
            return []


@pytest.fixture
def bench() -> Iterator[Bench]:
    it = Bench()
    yield it
    it.outlet.arena.close()
    for each in it.sockets:
        each.close()


@pytest.mark.parametrize(
    "meta", [{"x": np.float32(1)}, {"x": object()}, {"x": "y" * (5 << 20)}], ids=["numpy", "object", "size"]
)
def test_a_payload_that_cannot_be_sent_fails_its_request_alone(bench: Bench, meta: dict[str, object]) -> None:
    bench.outlet.emit(1, Payload("text", meta, {"a": np.zeros(1 << 20)}))
    bench.outlet.finish(1, Usage())
    bench.outlet.emit(2, Payload("text", {"x": 1}))
    bench.outlet.finish(2, Usage())
    (step,) = bench.turn()
    assert isinstance(step, Step)
    assert [(it.key, it.error.stage) for it in step.failed] == [(1, "a")]
    assert [it.key for it in step.done] == [2]
    assert sorted(step.released) == [1, 2]
    assert bench.chunks() == [2]
    assert bench.outlet.arena.used_bytes == 0


@pytest.mark.parametrize("when", ["before", "between"])
@pytest.mark.parametrize("mode", ["chunk", "full"])
def test_what_is_put_out_for_a_consumer_that_is_gone_is_not_waited_for(bench: Bench, mode: Mode, when: str) -> None:
    """The request ends here like any other, and the serving process learns that."""
    edge = EdgeSpec(index=1, source="a", target="b", port="in", kind="text", mode=mode, capacity=8)
    bench.outlet.jobs[3] = Job(3, "r3", True, (Route(edge, bench.link),), set())
    for moment in ("before", "between"):
        if moment == when:
            bench.outlet.lost(bench.link)
        bench.outlet.emit(3, Payload("text", {}, {"a": np.zeros(1 << 20)}))
        bench.turn()
    bench.outlet.retire(bench.outlet.jobs[3])
    (step,) = bench.turn()
    assert isinstance(step, Step)
    assert step.released == [3]
    assert bench.outlet.arena.used_bytes == 0


def test_a_payload_that_cannot_be_sent_on_one_edge_leaves_no_debt_on_another(bench: Bench) -> None:
    edges = [
        EdgeSpec(index=i, source="a", target="b", port=f"in{i}", kind="text", mode=mode, capacity=8)
        for i, mode in enumerate[Mode](("full", "chunk"))
    ]
    bench.outlet.jobs[3] = Job(3, "r3", True, tuple(Route(edge, bench.link) for edge in edges), set())
    bench.outlet.emit(3, Payload("text", {"x": object()}))
    bench.outlet.finish(3, Usage())
    (step,) = bench.turn()
    assert isinstance(step, Step)
    assert ([it.key for it in step.failed], step.released) == ([3], [3])


@pytest.mark.parametrize("finished", [False, True], ids=["under way", "finished in the same step"])
@pytest.mark.parametrize("meta", [{"x": object()}, {"x": "y" * (17 << 20)}], ids=["object", "size"])
def test_a_delta_that_cannot_be_sent_fails_its_request_alone(
    bench: Bench, meta: dict[str, object], finished: bool
) -> None:
    bench.outlet.text(TextDelta(1, 0, "x", [], None, None, meta))
    bench.outlet.text(TextDelta(2, 0, "y", [1]))
    if finished:
        bench.outlet.finish(1, Usage())
    steps = [step for step in [*bench.turn(), *bench.turn()] if isinstance(step, Step)]
    assert [it.key for step in steps for it in step.failed] == [1]
    assert [it for step in steps for it in step.done] == []
    assert [key for step in steps for key in step.released] == [1]
    assert [it.text for step in steps for it in step.texts] == ["y"]
    # The engine must not go on with it; one that has finished it has nothing to forget.
    assert bench.aborted == ([] if finished else [1])


def test_a_payload_that_cannot_be_sent_ends_the_work_on_its_request(bench: Bench) -> None:
    bench.outlet.emit(1, Payload("text", {"x": object()}))
    bench.turn()
    assert bench.aborted == [1]
    assert 1 not in bench.outlet.jobs


def test_deltas_that_are_too_much_for_one_frame_together_all_arrive(bench: Bench) -> None:
    for i in range(6):
        bench.outlet.text(TextDelta(1 + i % 2, 0, "x" * (4 << 20), [i]))
    steps = [step for step in bench.turn() if isinstance(step, Step)]
    assert [it.token_ids for step in steps for it in step.texts] == [[i] for i in range(6)]
    assert not [step for step in steps if step.failed]


def test_an_answer_that_cannot_be_sent_is_an_error_to_whoever_asked(bench: Bench) -> None:
    bench.outlet.reply(5, object())
    (reply,) = bench.turn()
    assert isinstance(reply, Reply)
    assert (reply.id, reply.error is not None) == (5, True)


def test_much_media_of_one_step_goes_in_several_frames_in_order(bench: Bench) -> None:
    second = bytes(48_000)
    for i in range(200):
        bench.outlet.media(MediaChunk(1 + i % 2, "audio", {"i": i}, second))
    for key in (1, 2):
        bench.outlet.finish(key, Usage())
    steps = [step for step in bench.turn() if isinstance(step, Step)]
    assert len(steps) > 2
    assert [chunk.meta["i"] for step in steps for chunk in step.media] == list(range(200))
    assert [len(step.done) for step in steps] == [0] * (len(steps) - 1) + [2]


def test_a_stage_is_not_done_before_its_output_is_written(bench: Bench) -> None:
    bench.link.sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    for _ in range(8):
        bench.outlet.emit(1, Payload("text", {}, {"a": np.zeros(60_000, dtype=np.uint8)}))
    bench.outlet.finish(1, Usage())
    assert bench.turn() == []
    reader = peer_reader()
    done: list[int] = []
    while not done:
        reader.feed(bench.peer.recv(1 << 20))
        bench.link.flush()
        done += [it.key for step in bench.turn() if isinstance(step, Step) for it in step.done]
    assert done == [1]
    assert not bench.link.pending


def test_descriptors_that_arrive_pass_to_no_program_that_is_started() -> None:
    serving, ours = socket.socketpair()
    left, right = socket.socketpair()
    with serving, left, right:
        control = Control(ours)
        socket.send_fds(serving, [frame(Wire(1, "x"))], [left.fileno()])
        control.receive()
        with control.take_fd() as received:
            assert not os.get_inheritable(received.fileno())
        ours.close()
