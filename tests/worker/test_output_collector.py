"""Engine output that cannot be sent, and frames with descriptors."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator

import numpy as np
import pytest
from tests.connectors.fake_device import Memory, Tensor

from omni_actors.connectors.device import DeviceLink, Exports
from omni_actors.connectors.payload import DeviceTensors, Payload
from omni_actors.connectors.shared_memory import Arena
from omni_actors.connectors.unix import UnixLink
from omni_actors.pipelines.declaration import Mode
from omni_actors.protocol.codec import frame, peer_reader, up_reader
from omni_actors.protocol.errors import ErrorInfo
from omni_actors.protocol.frames import INLINE_LIMIT, MAX_CONTROL_FRAME, Ack, Chunk, EdgeSpec, Reply, Step, Up, Wire
from omni_actors.protocol.request import MediaChunk, StepProgress, TextDelta, Usage
from omni_actors.worker.control_socket import ControlSocket
from omni_actors.worker.credits import RequestCredits, Route
from omni_actors.worker.output_collector import OutputCollector


class Bench:
    """An output collector with two requests, each on an edge of its own; both other ends are here."""

    def __init__(self) -> None:
        ours, self.serving = socket.socketpair()
        mine, self.peer = socket.socketpair()
        self.sockets = [ours, self.serving, mine, self.peer]
        self.control = ControlSocket(ours)
        self.link = UnixLink(7, "b#0@1", mine)
        self.aborted: list[int] = []
        self.collector = OutputCollector("a", self.control, Arena(), self.aborted.append)
        edge = EdgeSpec(index=0, source="a", target="b", port="in", kind="text", mode="chunk", capacity=8)
        for key in (1, 2):
            self.collector.requests[key] = RequestCredits(key, f"r{key}", True, (Route(edge, self.link),), set())

    def turn(self) -> list[Up]:
        """Return the serving process's frames of one turn of the loop."""
        for link in self.collector.flush():
            link.flush()
        self.collector.report()
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
        """Return the keys of the consumer's chunks."""
        self.peer.setblocking(False)
        try:
            return [message.key for message in peer_reader().feed(self.peer.recv(1 << 20)) if hasattr(message, "key")]
        except BlockingIOError:
            return []


@pytest.fixture
def bench() -> Iterator[Bench]:
    it = Bench()
    yield it
    it.collector.send_queue.arena.close()
    for each in it.sockets:
        each.close()


@pytest.mark.parametrize(
    "meta", [{"x": np.float32(1)}, {"x": object()}, {"x": "y" * (5 << 20)}], ids=["numpy", "object", "size"]
)
def test_a_payload_that_cannot_be_sent_fails_its_request_alone(bench: Bench, meta: dict[str, object]) -> None:
    bench.collector.emit(1, Payload("text", meta, {"a": np.zeros(1 << 20)}))
    bench.collector.finish(1, Usage())
    bench.collector.emit(2, Payload("text", {"x": 1}))
    bench.collector.finish(2, Usage())
    (step,) = bench.turn()
    assert isinstance(step, Step)
    assert [(it.key, it.error.stage) for it in step.failed] == [(1, "a")]
    assert [it.key for it in step.done] == [2]
    assert sorted(step.released) == [1, 2]
    assert bench.chunks() == [2]
    assert bench.collector.send_queue.arena.used_bytes == 0


@pytest.mark.parametrize("when", ["before", "between"])
@pytest.mark.parametrize("mode", ["chunk", "full"])
def test_output_for_a_vanished_consumer_is_not_waited_for(bench: Bench, mode: Mode, when: str) -> None:
    """The request ends here like any other, and the serving process learns of the end."""
    edge = EdgeSpec(index=1, source="a", target="b", port="in", kind="text", mode=mode, capacity=8)
    bench.collector.requests[3] = RequestCredits(3, "r3", True, (Route(edge, bench.link),), set())
    for moment in ("before", "between"):
        if moment == when:
            bench.collector.lost(bench.link)
        bench.collector.emit(3, Payload("text", {}, {"a": np.zeros(1 << 20)}))
        bench.turn()
    bench.collector.retire(bench.collector.requests[3])
    (step,) = bench.turn()
    assert isinstance(step, Step)
    assert step.released == [3]
    assert bench.collector.send_queue.arena.used_bytes == 0


def test_a_payload_that_cannot_be_sent_on_one_edge_leaves_no_credit_spent_on_another(bench: Bench) -> None:
    edges = [
        EdgeSpec(index=i, source="a", target="b", port=f"in{i}", kind="text", mode=mode, capacity=8)
        for i, mode in enumerate[Mode](("full", "chunk"))
    ]
    bench.collector.requests[3] = RequestCredits(3, "r3", True, tuple(Route(edge, bench.link) for edge in edges), set())
    bench.collector.emit(3, Payload("text", {"x": object()}))
    bench.collector.finish(3, Usage())
    (step,) = bench.turn()
    assert isinstance(step, Step)
    assert ([it.key for it in step.failed], step.released) == ([3], [3])


@pytest.mark.parametrize("finished", [False, True], ids=["under way", "finished in the same step"])
@pytest.mark.parametrize("meta", [{"x": object()}, {"x": "y" * (17 << 20)}], ids=["object", "size"])
def test_a_delta_that_cannot_be_sent_fails_its_request_alone(
    bench: Bench, meta: dict[str, object], finished: bool
) -> None:
    bench.collector.text(TextDelta(1, 0, "x", [], None, None, meta))
    bench.collector.text(TextDelta(2, 0, "y", [1]))
    if finished:
        bench.collector.finish(1, Usage())
    steps = [step for step in [*bench.turn(), *bench.turn()] if isinstance(step, Step)]
    assert [it.key for step in steps for it in step.failed] == [1]
    assert [it for step in steps for it in step.done] == []
    assert [key for step in steps for key in step.released] == [1]
    assert [it.text for step in steps for it in step.texts] == ["y"]
    # The engine must not go on with it; one that has finished it has nothing to forget.
    assert bench.aborted == ([] if finished else [1])


@pytest.mark.parametrize("routed", [True, False])
def test_a_ledger_record_that_is_too_large_fails_its_request_alone(bench: Bench, routed: bool) -> None:
    bench.collector.text(TextDelta(2, 0, "said", [5]))
    bench.collector.ledger(1, 0, [], bytes(MAX_CONTROL_FRAME))
    bench.collector.ledger(2, 0, [7], b"chosen")
    if routed:
        bench.collector.emit(2, Payload("text", {}))
    steps = [it for it in bench.turn() if isinstance(it, Step)]
    assert [failed.key for step in steps for failed in step.failed] == [1]
    assert [entry.data for step in steps for entry in step.ledger] == [b"chosen"]
    assert [delta.text for step in steps for delta in step.texts] == ["said"]
    assert bench.aborted == [1]
    assert 2 in bench.collector.requests


def test_a_payload_that_cannot_be_sent_ends_the_work_on_its_request(bench: Bench) -> None:
    bench.collector.emit(1, Payload("text", {"x": object()}))
    bench.turn()
    assert bench.aborted == [1]
    assert 1 not in bench.collector.requests


def test_a_payload_that_finds_no_memory_fails_its_request_alone(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(nbytes: int) -> None:
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr(bench.collector.send_queue.arena, "allocate", full)
    bench.collector.emit(1, Payload("text", {}, {"a": np.zeros(1 << 20)}))
    bench.collector.emit(2, Payload("text", {"x": 1}))
    bench.collector.finish(2, Usage())
    (step,) = bench.turn()
    assert isinstance(step, Step)
    assert [(it.key, it.error.code, it.error.stage) for it in step.failed] == [(1, "out_of_memory", "a")]
    assert [it.key for it in step.done] == [2]
    assert bench.aborted == [1]


def test_device_exports_come_back_when_the_copy_for_other_readers_finds_no_memory(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = Memory({})
    exports = bench.collector.send_queue.exports = Exports(memory, 1 << 20)
    mine, theirs = socket.socketpair()
    bench.sockets += [mine, theirs]
    direct = DeviceLink(8, "c#0@1", mine, "a", memory)
    direct.direct = True
    edges = [EdgeSpec(index=i, source="a", target="b", port=f"in{i}", kind="x", mode="chunk") for i in range(2)]
    routes = (Route(edges[0], direct), Route(edges[1], bench.link))
    bench.collector.requests[3] = RequestCredits(3, "r3", True, routes, set())
    lent = set(memory.lent)  # the link's own probe

    def full(nbytes: int) -> None:
        raise MemoryError

    monkeypatch.setattr(bench.collector.send_queue.arena, "allocate", full)
    bench.collector.emit(3, Payload("x", {}, DeviceTensors({"a": Tensor(np.zeros(1 << 20, np.float32))})))
    (step,) = bench.turn()
    assert isinstance(step, Step)
    assert [(it.key, it.error.code) for it in step.failed] == [(3, "out_of_memory")]
    assert step.released == [3]
    assert (set(memory.lent), exports.used_bytes) == (lent, 0)


def test_deltas_that_are_too_much_for_one_frame_together_all_arrive(bench: Bench) -> None:
    for i in range(6):
        bench.collector.text(TextDelta(1 + i % 2, 0, "x" * (4 << 20), [i]))
    steps = [step for step in bench.turn() if isinstance(step, Step)]
    assert [it.token_ids for step in steps for it in step.texts] == [[i] for i in range(6)]
    assert not [step for step in steps if step.failed]


def test_a_reply_that_cannot_be_sent_is_an_error_reply(bench: Bench) -> None:
    bench.collector.reply(5, object())
    (reply,) = bench.turn()
    assert isinstance(reply, Reply)
    assert (reply.id, reply.error is not None) == (5, True)


def test_much_media_of_one_step_goes_in_several_frames_in_order(bench: Bench) -> None:
    second = bytes(48_000)
    for i in range(200):
        bench.collector.media(MediaChunk(1 + i % 2, "audio", {"i": i}, second))
    for key in (1, 2):
        bench.collector.finish(key, Usage())
    steps = [step for step in bench.turn() if isinstance(step, Step)]
    assert len(steps) > 2
    assert [chunk.meta["i"] for step in steps for chunk in step.media] == list(range(200))
    assert [len(step.done) for step in steps] == [0] * (len(steps) - 1) + [2]


def test_a_stage_is_not_done_before_its_output_is_written(bench: Bench) -> None:
    bench.sockets[2].setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    for _ in range(8):
        bench.collector.emit(1, Payload("text", {}, {"a": np.zeros(INLINE_LIMIT, dtype=np.uint8)}))
    bench.collector.finish(1, Usage())
    assert bench.turn() == []
    reader = peer_reader()
    done: list[int] = []
    while not done:
        reader.feed(bench.peer.recv(1 << 20))
        bench.link.flush()
        done += [it.key for step in bench.turn() if isinstance(step, Step) for it in step.done]
    assert done == [1]
    assert not bench.link.pending


def test_received_descriptors_are_not_inherited() -> None:
    serving, ours = socket.socketpair()
    left, right = socket.socketpair()
    with serving, left, right:
        control = ControlSocket(ours)
        socket.send_fds(serving, [frame(Wire(1, "x"))], [left.fileno()])
        control.receive()
        with control.take_fd() as received:
            assert not os.get_inheritable(received.fileno())
        ours.close()


# --- written in place ------------------------------------------------------------------------------------------------

LARGE = {"a": ((300, 1000), "float32"), "b": ((5,), "bfloat16")}


def edge(index: int, mode: Mode) -> EdgeSpec:
    return EdgeSpec(index=index, source="a", target="b", port=f"in{index}", kind="x", mode=mode, capacity=8)


def received(bench: Bench, other: UnixLink) -> list[tuple[int, Payload | None, bool]]:
    """Return (seq, payload, end) of the consumer's chunks."""
    chunks = [message for message in other.receive() if isinstance(message, Chunk)]
    return [(chunk.seq, other.payload(chunk), chunk.end) for chunk in chunks]


def test_an_allocated_payload_is_sent_without_a_copy(bench: Bench) -> None:
    other = UnixLink(7, "a#0@1", bench.peer)
    payload = bench.collector.allocate(1, "text", {"n": 1}, LARGE)
    payload.tensors["a"][:] = np.arange(300_000, dtype=np.float32).reshape(300, 1000)
    payload.tensors["b"][:] = 7
    used = bench.collector.send_queue.arena.used_bytes
    bench.collector.emit(1, payload)
    bench.turn()
    assert bench.collector.send_queue.arena.used_bytes == used, "the same slot"
    ((_, got, _),) = received(bench, other)
    assert got is not None
    assert (got.meta, got.dtypes) == ({"n": 1}, {"b": "bfloat16"})
    np.testing.assert_array_equal(got.tensors["a"], payload.tensors["a"])
    payload.tensors["a"][0, 0] = 42  # against the rules, and the proof that it is one memory
    assert got.tensors["a"][0, 0] == 42
    bench.collector.acknowledged(Ack(1, 0, 1))
    assert bench.collector.send_queue.arena.used_bytes == 0


@pytest.mark.parametrize("key", [1, 99], ids=["small", "of a request that is over"])
def test_a_payload_too_small_for_a_slot_is_allocated_all_the_same(bench: Bench, key: int) -> None:
    payload = bench.collector.allocate(key, "text", {}, {"a": ((4,), "float32")} if key == 1 else LARGE)
    payload.tensors["a"][:] = 1
    bench.collector.emit(key, payload)
    bench.turn()
    assert bench.chunks() == ([1] if key == 1 else [])
    assert bench.collector.send_queue.arena.used_bytes == 0


@pytest.mark.parametrize("emitted", [False, True])
@pytest.mark.parametrize("how", ["abort", "fail", "finish"])
def test_allocated_slots_are_free_when_the_request_is_over(bench: Bench, how: str, emitted: bool) -> None:
    collector = bench.collector
    payload = collector.allocate(1, "text", {}, LARGE)
    collector.allocate(1, "text", {}, LARGE)  # never emitted
    if emitted:
        collector.emit(1, payload)
    if how == "abort":
        collector.retire(collector.requests[1])
    elif how == "fail":
        collector.fail(1, ErrorInfo(message="no"))
    else:
        collector.finish(1, Usage())
    bench.turn()
    sent = emitted and how == "finish"
    assert bench.chunks() == ([1] if how == "finish" else [])
    assert bool(collector.send_queue.arena.used_bytes) == sent
    collector.acknowledged(Ack(1, 0, 8))
    bench.turn()
    assert collector.send_queue.arena.used_bytes == 0
    assert list(collector.requests) == [2]
    assert not collector.draining


def test_a_slot_with_a_reader_is_not_reused_after_an_abort(bench: Bench) -> None:
    other = UnixLink(7, "a#0@1", bench.peer)
    bench.collector.emit(1, Payload("text", {}, {"a": np.full(100_000, 1.0)}))
    bench.turn()
    ((_, held, _),) = received(bench, other)
    assert held is not None
    bench.collector.retire(bench.collector.requests[1])
    used = bench.collector.send_queue.arena.used_bytes
    for _ in range(8):
        bench.collector.emit(2, Payload("text", {}, {"a": np.full(100_000, 2.0)}))
        bench.turn()
    assert (held.tensors["a"] == 1.0).all()
    assert bench.collector.send_queue.arena.used_bytes == 9 * used
    bench.collector.acknowledged(Ack(1, 0, 1))
    assert bench.collector.send_queue.arena.used_bytes == 8 * used
    bench.collector.lost(bench.link)  # the reader's death gives back the rest
    assert bench.collector.send_queue.arena.used_bytes == 0


def test_parallel_edges_share_one_copy_and_one_channel_in_order(bench: Bench) -> None:
    other = UnixLink(7, "a#0@1", bench.peer)
    routes = tuple(Route(edge(i, mode), bench.link) for i, mode in enumerate[Mode](("chunk", "full", "chunk")))
    bench.collector.requests[3] = RequestCredits(3, "r3", False, routes, set())
    emitted = [np.full(100_000, i, np.float32) for i in range(3)]
    for array in emitted:
        bench.collector.emit(3, Payload("x", {}, {"a": array}))
        bench.turn()
        array[:] = -1  # the engine's buffer is its own again after the step, also on an edge that publishes later
    assert bench.collector.send_queue.arena.used_bytes == 3 << 19
    bench.collector.finish(3, Usage())
    bench.turn()
    assert bench.collector.send_queue.arena.used_bytes == 3 << 19
    got: dict[int, list[tuple[int, float | None, bool]]] = {0: [], 1: [], 2: []}
    order = []
    for message in other.receive():
        assert isinstance(message, Chunk)
        payload = other.payload(message)
        order.append(message.edge)
        value = None if payload is None else float(payload.tensors["a"].mean())
        got[message.edge].append((message.seq, value, message.end))
    assert order == [0, 2, 0, 2, 0, 2, 0, 1, 1, 1, 2]
    assert got[0] == got[2] == [(0, 0.0, False), (1, 1.0, False), (2, 2.0, False), (3, None, True)]
    assert got[1] == [(0, 0.0, False), (1, 1.0, False), (2, 2.0, True)]
    for index, upto in ((0, 3), (1, 2), (2, 3)):
        bench.collector.acknowledged(Ack(3, index, upto))
    assert bench.collector.send_queue.arena.used_bytes == 1 << 19, "the last one's reader on edge 1 is not done"
    bench.collector.acknowledged(Ack(3, 1, 3))
    assert bench.collector.send_queue.arena.used_bytes == 0


@pytest.mark.parametrize("how", ["abort", "lost"])
def test_payloads_held_back_for_the_end_are_free_without_an_end(bench: Bench, how: str) -> None:
    bench.collector.requests[3] = RequestCredits(3, "r3", False, (Route(edge(0, "full"), bench.link),), set())
    for _ in range(3):
        bench.collector.emit(3, Payload("x", {}, {"a": np.zeros(100_000)}))
    bench.turn()
    assert bench.collector.send_queue.arena.used_bytes
    if how == "abort":
        bench.collector.retire(bench.collector.requests[3])
    else:
        bench.collector.lost(bench.link)
    assert bench.collector.send_queue.arena.used_bytes == 0


def test_a_picture_over_a_frames_limit_leaves_in_pieces_behind_its_progress(bench: Bench) -> None:
    data = np.random.default_rng(0).bytes(MAX_CONTROL_FRAME + 12345)
    bench.collector.media(MediaChunk(1, "image", {"index": 0, "format": "png"}, data))
    bench.collector.progress(StepProgress(1, 0, 20, 20))
    bench.collector.media(MediaChunk(2, "image", {"index": 0, "preview": 3}, b"small"))
    steps = [it for it in bench.turn() if isinstance(it, Step)]
    assert not [failed for step in steps for failed in step.failed]
    chunks = [chunk for step in steps for chunk in step.media]
    pieces = [chunk for chunk in chunks if chunk.key == 1]
    assert b"".join(chunk.data for chunk in pieces) == data
    assert [(it.meta["piece"], it.meta["pieces"]) for it in pieces] == [(i, len(pieces)) for i in range(len(pieces))]
    assert all(it.meta["format"] == "png" for it in pieces)
    assert [chunk.data for chunk in chunks if chunk.key == 2] == [b"small"]
    progressed = next(place for place, step in enumerate(steps) if step.progress)
    assert progressed < next(place for place, step in enumerate(steps) if pieces[-1] in step.media)


def test_progress_reaches_the_client_of_a_stage_whose_output_it_does_not_see(bench: Bench) -> None:
    bench.collector.requests[1].visible = False
    bench.collector.media(MediaChunk(1, "image", {"index": 0}, b"x"))
    bench.collector.progress(StepProgress(1, 0, 1, 4))
    bench.collector.progress(StepProgress(99, 0, 1, 4))
    (step,) = bench.turn()
    assert isinstance(step, Step)
    assert (step.media, step.progress) == ([], [StepProgress(1, 0, 1, 4)])
