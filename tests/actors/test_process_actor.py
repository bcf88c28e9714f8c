"""Process actors: the contract of an actor, across a process boundary, with real processes."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from omni_actors.actors import (
    Actor,
    ActorCrashed,
    ActorRef,
    ActorStopped,
    ChildProcess,
    Escalation,
    MailboxFull,
    Refusal,
    Restarts,
    open_launcher,
    open_supervisor,
    python_module,
)
from omni_actors.actors.errors import ProcessDied, ProtocolError, RemoteFailure
from omni_actors.actors.remote import process_actor
from omni_actors.actors.remote.process_actor import WINDOW, ProcessActor
from omni_actors.actors.remote.wire import (
    DOWN,
    MAX_FRAME,
    UP,
    VERSION,
    AskFrame,
    CrashedFrame,
    FrameChannel,
    HelloFrame,
    SignalFrame,
    StartedFrame,
    TellFrame,
    encode,
)

ENV = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])}


@asynccontextmanager
async def remote(
    actor: str = "Recorder", *, capacity: int = 256, restarts: Restarts | None = None, **arguments: Any
) -> AsyncIterator[ActorRef[Any]]:
    async with open_launcher() as launcher, open_supervisor(restarts=restarts) as root:

        def make() -> Actor[Any]:
            return ProcessActor(launcher, f"remote_actors:{actor}", arguments, env=ENV)

        ref = root.start(make, name="remote", capacity=capacity)
        with trio.fail_after(20):
            await ref.wait_ready()
        yield ref


@asynccontextmanager
async def busy(ref: ActorRef[Any]) -> AsyncIterator[None]:
    """Keep the actor in its process busy with one message during the block."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(partial(ref.ask, ["sleep", 600], within=600))
        await trio.testing.wait_all_tasks_blocked(0.01)
        yield
        nursery.cancel_scope.cancel()


# --- messages --------------------------------------------------------------------------------------------------------


async def test_tells_and_asks_arrive_in_order() -> None:
    async with remote(capacity=1000) as ref:
        for number in range(5 * WINDOW):
            ref.tell(number)
        assert await ref.ask("log", within=20) == list(range(5 * WINDOW))
        assert await ref.ask("pid", within=20) != os.getpid()


async def test_messages_are_decoded_to_the_actors_type_and_answers_to_the_askers() -> None:
    async with open_launcher() as launcher, open_supervisor() as root:
        ref = root.start(lambda: ProcessActor(launcher, "remote_actors:Typed", answer_type=int, env=ENV), name="typed")
        assert await ref.ask({"type": "add", "left": 3, "right": 4}, within=20) == 7
        with pytest.raises(Refusal) as refused:
            await ref.ask({"type": "fail", "text": "no"}, within=20)
        assert refused.value.value == {"type": "fail", "text": "no"}
        with pytest.raises(Refusal, match=r"not a message of this actor: Expected `int`"):
            await ref.ask({"type": "add", "left": "three", "right": 4}, within=20)


async def test_an_answer_of_another_type_is_refused() -> None:
    async with open_launcher() as launcher, open_supervisor() as root:
        ref = root.start(lambda: ProcessActor(launcher, "remote_actors:Recorder", answer_type=int, env=ENV), name="r")
        with pytest.raises(Refusal, match="the answer has an unexpected type"):
            await ref.ask("word", within=20)


def deep() -> list[Any]:
    value: list[Any] = []
    for _ in range(100_000):
        value = [value]
    return value


async def test_a_value_that_cannot_be_encoded_is_refused_on_either_side() -> None:
    async with remote() as ref:
        for message in (object(), 1 << 64, "\ud800", deep()):
            with pytest.raises(Refusal, match="the message cannot be sent"):
                await ref.ask(message, within=20)
            ref.signal("unsent", message)
        with pytest.raises(Refusal, match="over the limit"):
            await ref.ask(bytes(MAX_FRAME), within=20)
        for word in ("object", "number", "refuse"):
            with pytest.raises(Refusal, match="the answer cannot be sent"):
                await ref.ask(word, within=20)
        pid = await ref.ask("pid", within=20)
        ref.tell(object())
        assert await ref.ask("pid", within=20) == pid  # nothing of this was a crash


async def test_a_large_message_passes_in_both_directions() -> None:
    async with remote() as ref:
        big = os.urandom(3 << 20)
        assert await ref.ask(big, within=20) == big


async def test_signals_are_merged_on_their_way() -> None:
    async with remote() as ref:
        for number in range(1000):
            ref.signal("ack", number)
        async with busy(ref):
            ref.tell("message")
            ref.signal("ack", 1000)
            ref.signal("ack", 1001)
            await trio.testing.wait_all_tasks_blocked(0.01)
        log = await ref.ask("log", within=20)
        assert log == [["ack", 999], "begun", "cancelled", ["ack", 1001], "message"]


async def test_deferred_answers_reach_the_asker() -> None:
    async with remote() as ref:
        answers: dict[int, int] = {}

        async def ask(number: int) -> None:
            answers[number] = await ref.ask("defer", within=20)

        async with trio.open_nursery() as nursery:
            for number in range(3):
                nursery.start_soon(ask, number)
                await trio.testing.wait_all_tasks_blocked(0.01)
            assert await ref.ask("pid", within=20)
            ref.tell("settle")
        assert answers == {0: 0, 1: 1, 2: 2}


async def test_a_full_mailbox_refuses_and_nothing_taken_is_lost() -> None:
    async with remote(capacity=8) as ref:
        async with busy(ref):
            taken = 0
            with pytest.raises(MailboxFull):
                while True:
                    ref.tell(taken)
                    taken += 1
                    await trio.testing.wait_all_tasks_blocked()
            assert taken == WINDOW - 1 + 1 + 8  # on their way, at the head, in the mailbox
        with trio.fail_after(20):
            while ref.depth > 7:
                await trio.sleep(0.01)
        log = await ref.ask("log", within=20)
        assert [entry for entry in log if isinstance(entry, int)] == list(range(taken))


# --- cancellation ----------------------------------------------------------------------------------------------------


async def test_a_cancelled_ask_cancels_the_work_in_the_process() -> None:
    async with remote() as ref:
        with pytest.raises(trio.TooSlowError):
            await ref.ask(["sleep", 600], within=0.2)
        assert await ref.ask("log", within=5) == ["begun", "cancelled"]


async def test_a_cancelled_ask_that_waits_in_the_process_is_not_begun() -> None:
    async with remote() as ref:
        async with busy(ref):
            with pytest.raises(trio.TooSlowError):
                await ref.ask("late", within=0.1)
        assert await ref.ask("log", within=20) == ["begun", "cancelled"]


async def test_withdrawn_asks_leave_the_window_free() -> None:
    async with remote(capacity=WINDOW) as ref:
        async with busy(ref):
            for _ in range(4):
                async with trio.open_nursery() as nursery:
                    for number in range(WINDOW // 2):
                        nursery.start_soon(_ask_in_vain, ref, number)
                        await trio.testing.wait_all_tasks_blocked()
            ref.tell("late")
            with trio.fail_after(20):
                while ref.depth:  # until it is sent, which takes a place in the window
                    await trio.sleep(0.01)
        assert await ref.ask("log", within=20) == ["begun", "cancelled", "late"]


async def test_an_ask_withdrawn_while_the_window_is_full_is_not_sent() -> None:
    async with remote() as ref:
        async with busy(ref):
            for number in range(WINDOW - 1):
                ref.tell(number)
            with pytest.raises(trio.TooSlowError):
                await ref.ask("late", within=0.2)  # it waits at the head of the mailbox
        assert await ref.ask("log", within=20) == ["begun", "cancelled", *range(WINDOW - 1)]


async def test_the_parent_buffers_little_for_a_process_that_does_not_read() -> None:
    async with remote() as ref:
        pid = await ref.ask("pid", within=20)
        os.kill(pid, signal.SIGSTOP)
        for _ in range(20):
            ref.tell(bytes(1 << 20))
        await trio.testing.wait_all_tasks_blocked(0.05)
        assert ref.depth >= 18
        os.kill(pid, signal.SIGCONT)
        assert await ref.ask("pid", within=20) == pid


async def _ask_in_vain(ref: ActorRef[Any], message: Any) -> None:
    with trio.move_on_after(0.02):
        await ref.ask(message, within=20)


# --- death -----------------------------------------------------------------------------------------------------------


async def test_a_remote_crash_is_a_local_crash_with_the_remote_traceback(caplog: pytest.LogCaptureFixture) -> None:
    async with remote() as ref:
        before = await ref.ask("pid", within=20)
        with pytest.raises(ActorCrashed, match="RemoteFailure: ValueError: remote boom") as caught:
            await ref.ask("crash", within=20)
        cause = caught.value.__cause__
        assert isinstance(cause, RemoteFailure)
        assert cause.kind == "ValueError"
        assert "remote_actors.py" in cause.remote_traceback
        assert await ref.ask("pid", within=20) != before
    assert "in receive" in caplog.text


@pytest.mark.parametrize("way", ["kill", "exit"])
async def test_the_death_of_the_process_fails_its_asks(way: str) -> None:
    async with remote() as ref:
        pid = await ref.ask("pid", within=20)
        deaths: list[Any] = []

        async def ask(message: Any) -> None:
            with pytest.raises(ActorCrashed) as caught:
                await ref.ask(message, within=20)
            deaths.append(caught.value.__cause__)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask, "defer")
            await trio.testing.wait_all_tasks_blocked(0.01)
            if way == "kill":
                nursery.start_soon(ask, ["sleep", 600])
                await trio.testing.wait_all_tasks_blocked(0.01)
                os.kill(pid, signal.SIGKILL)
            else:
                nursery.start_soon(ask, "exit")
        assert len(deaths) == 2
        for death in deaths:
            assert isinstance(death, ProcessDied)
            assert (death.death.signal, death.death.code) == ((9, None) if way == "kill" else (None, 7))
        assert await ref.ask("pid", within=20) != pid


async def test_stop_runs_the_teardown_in_the_process(tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    async with remote(marker=str(marker)) as ref:
        pid = await ref.ask("pid", within=20)
        ref.stop()
        with trio.fail_after(10):
            await ref.wait_stopped()
        assert marker.read_text() == "torn down"
        assert not Path(f"/proc/{pid}").exists()
        with pytest.raises(ActorStopped):
            ref.tell(1)


async def test_a_process_that_ignores_messages_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_actor, "STOP_S", 0.1)
    async with remote() as ref:
        pid = await ref.ask("pid", within=20)
        os.kill(pid, signal.SIGSTOP)
    assert not Path(f"/proc/{pid}").exists()


@pytest.mark.parametrize(
    ("actor", "arguments", "kind"),
    [
        ("Recorder", {"fail": True}, "OSError"),
        ("Recorder", {"unknown": 1}, "TypeError"),
        ("Missing", {}, "AttributeError"),
    ],
)
async def test_a_setup_that_fails_in_the_process_fails_in_the_parent(
    actor: str, arguments: dict[str, Any], kind: str
) -> None:
    with pytest.raises(Escalation) as caught:
        async with remote(actor, restarts=Restarts(limit=0), **arguments):
            raise AssertionError("it became ready")
    assert isinstance(caught.value.__cause__, RemoteFailure)
    assert caught.value.__cause__.kind == kind


async def test_a_setup_that_takes_too_long_ends_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_actor, "START_S", 0.5)
    with pytest.raises(Escalation, match="TooSlowError"):
        async with remote(restarts=Restarts(limit=0), slow_s=600):
            raise AssertionError("it became ready")


async def test_cancelling_the_tree_ends_the_process() -> None:
    pids: list[int] = []

    async def own(task_status: trio.TaskStatus[None]) -> None:
        async with remote() as ref:
            pids.append(await ref.ask("pid", within=20))
            task_status.started()
            await ref.ask(["sleep", 600], within=600)

    async with trio.open_nursery() as nursery:
        await nursery.start(own)
        nursery.cancel_scope.cancel()
    assert not Path(f"/proc/{pids[0]}").exists()


# --- the channel -----------------------------------------------------------------------------------------------------


async def last_words(child: ChildProcess, *sent: bytes) -> tuple[list[Any], int | None]:
    for data in sent:
        child.sock.send(data)
    channel = FrameChannel(child.sock, UP.decode)
    frames = []
    with trio.fail_after(20):
        while (frame := await channel.receive()) is not None:
            frames.append(frame)
        return frames, (await child.wait()).code


async def test_another_version_of_the_protocol_is_refused_with_both_versions() -> None:
    hello = encode(HelloFrame(99, "remote_actors:Recorder", {}, 64))
    async with open_launcher() as launcher:
        child = launcher.spawn(python_module("omni_actors.actors.remote"), env=ENV)
        frames, code = await last_words(child, len(hello).to_bytes(4, "little") + hello)
    (crashed,) = frames
    assert isinstance(crashed, CrashedFrame)
    assert "speaks version 1" in crashed.text
    assert code == 1


async def test_a_parent_that_only_closes_the_channel_ends_the_process(tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    hello = encode(HelloFrame(VERSION, "remote_actors:Recorder", {"marker": str(marker)}, WINDOW))
    async with open_launcher() as launcher:
        child = launcher.spawn(python_module("omni_actors.actors.remote"), env=ENV)
        child.sock.send(len(hello).to_bytes(4, "little") + hello)
        with trio.fail_after(20):
            assert isinstance(await FrameChannel(child.sock, UP.decode).receive(), StartedFrame)
            child.sock.shutdown(socket.SHUT_WR)
            await child.wait()
    assert marker.read_text() == "torn down"


FRAMES = st.one_of(
    st.builds(TellFrame, st.binary(max_size=50).map(lambda b: msgspec.Raw(encode(b)))),
    st.builds(AskFrame, st.integers(0, 2**60), st.text().map(lambda t: msgspec.Raw(encode(t)))),
    st.builds(SignalFrame, st.text(), st.none().map(lambda n: msgspec.Raw(encode(n)))),
)


@given(frames=st.lists(FRAMES, max_size=10), cut=st.integers(1, 40))
async def test_frames_survive_any_cutting_of_the_stream(frames: list[Any], cut: int) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        channel = FrameChannel(ours, DOWN.decode)
        data = b"".join(len(f).to_bytes(4, "little") + f for f in map(encode, frames))
        received = []

        async def receive() -> None:
            while (frame := await channel.receive()) is not None:
                received.append(frame)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(receive)
            for start in range(0, len(data), cut):
                theirs.send(data[start : start + cut])
                await trio.lowlevel.checkpoint()
            theirs.shutdown(socket.SHUT_WR)
    assert list(map(encode, received)) == list(map(encode, frames))


@pytest.mark.parametrize(
    "data",
    [
        (MAX_FRAME + 1).to_bytes(4, "little"),
        b"\x01\0\0\0" + b"\xc1",  # no msgpack
        b"\x06\0\0\0" + encode(["nope"]),  # no frame
    ],
)
async def test_malformed_bytes_are_a_protocol_error(data: bytes) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        theirs.send(data)
        with pytest.raises(ProtocolError):
            await FrameChannel(ours, DOWN.decode).receive()


async def test_a_closed_socket_is_the_end_of_the_channel() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        channel = FrameChannel(ours, UP.decode)
        received: list[Any] = []

        async def receive() -> None:
            received.append(await channel.receive())

        async with trio.open_nursery() as nursery:
            nursery.start_soon(channel.run_writer)
            nursery.start_soon(receive)
            for _ in range(3):
                channel.post(TellFrame(msgspec.Raw(encode(bytes(1 << 20)))))  # more than the socket takes
            await trio.testing.wait_all_tasks_blocked(0.01)
            trio.lowlevel.notify_closing(ours)
            ours.close()
            with trio.fail_after(10):
                await channel.drained()
            nursery.start_soon(receive)  # and so it stays
            await trio.testing.wait_all_tasks_blocked(0.01)
            nursery.cancel_scope.cancel()
        assert received == [None, None]


async def test_a_channel_sends_later_what_the_socket_does_not_take_at_once() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        theirs.setblocking(False)
        out, into = FrameChannel(ours, UP.decode), FrameChannel(theirs, DOWN.decode)
        body = msgspec.Raw(encode(bytes(1 << 20)))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(out.run_writer)
            for _ in range(3):
                out.post(TellFrame(body))
            assert out.backlog > 0
            with trio.fail_after(10):
                for _ in range(3):
                    assert bytes((await into.receive()).body) == bytes(body)
                await out.drained()
            assert out.backlog == 0
            nursery.cancel_scope.cancel()


def test_the_old_address_of_the_class_warns_and_works() -> None:
    old = import_module("omni_actors.actors.process_actor")
    with pytest.warns(DeprecationWarning, match="omni_actors.actors.remote.process_actor.ProcessActor"):
        assert old.ProcessActor is ProcessActor
