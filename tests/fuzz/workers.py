"""A worker that has gone mad: whatever it writes, the serving process goes on, and so does the next worker.

The orchestrator, its pools, replicas and supervisors are the real ones, under virtual time; a worker is a task at the
other end of its socket.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from unittest import mock

import msgspec
import trio
import trio.testing
from tests.entrypoints.fakes import TEXT_ONLY
from tests.fuzz.target import Target, plain, silent
from tests.pipelines.builders import plan_of

from omni_actors.actors.child_process import ChildProcess, Death
from omni_actors.orchestrator import Orchestrator, open_orchestrator, orchestrator
from omni_actors.protocol.codec import down_reader, frame
from omni_actors.protocol.errors import ErrorInfo, OmniError
from omni_actors.protocol.frames import (
    PROTOCOL_VERSION,
    Abort,
    Fatal,
    Hello,
    Ledger,
    Progress,
    Query,
    Ready,
    Reply,
    Step,
    Stop,
    Submit,
    Unlinked,
    Welcome,
)
from omni_actors.protocol.params import Prompt, Sampling
from omni_actors.protocol.request import (
    MediaChunk,
    Request,
    StageDone,
    StageFailed,
    TextDelta,
    TokenLogprob,
    Usage,
)

PLAN = plan_of(TEXT_ONLY)
PATIENCE_S = 600.0
"""Virtual seconds."""

FIRST_KEY = 0


class _Child(ChildProcess):
    """What it says in its first life comes from the input; later lives are in order."""

    def __init__(self, name: str, pid: int, data: bytes) -> None:
        self.name = name
        self.pid = self.pgid = pid
        self.sock, self._theirs = socket.socketpair()
        self.sock.setblocking(False)
        self._theirs.setblocking(False)
        self.death = None
        self._gone = trio.Event()
        self._life = trio.CancelScope(shield=True)
        self._signal: int | None = None
        self._when = data[0] % 4 if data and name.endswith("@1") else -1
        self._data = data[1:]

    def send_signal(self, number: int) -> None:
        if self._signal is None and not self._gone.is_set():
            self._signal = number
            self._life.cancel()

    async def live(self) -> None:
        theirs = trio.socket.from_stdlib_socket(self._theirs)
        with self._life, contextlib.suppress(OSError):
            await self._listen(theirs)
        theirs.close()
        self.death = Death(self.name, self.pid, None if self._signal else 0, self._signal, trio.current_time())
        self._gone.set()

    async def _listen(self, theirs: Any) -> None:
        reader = down_reader()
        while data := await theirs.recv(1 << 16):
            for message in reader.feed(data):
                if self._when == {Hello: 0, Submit: 1, Abort: 2, Query: 3}.get(type(message)):
                    await _send_all(theirs, self._data)
                if type(message) is Stop:
                    return
                await _send_all(theirs, b"".join(map(frame, _answer(message))))


async def _send_all(theirs: Any, data: bytes) -> None:
    while data:
        data = data[await theirs.send(data) :]


def _answer(message: Any) -> list[msgspec.Struct]:
    if type(message) is Hello:
        return [Welcome(PROTOCOL_VERSION, 1), Ready({})]
    if type(message) is Submit:
        key = message.key
        return [Step(texts=[TextDelta(key, 0, "ok", [1], "stop")], done=[StageDone(key, Usage())], released=[key])]
    if type(message) is Abort:
        return [Step(released=[message.key])]
    return [Reply(message.id, {})] if type(message) is Query else []


class _Launcher:
    def __init__(self, nursery: trio.Nursery, data: bytes) -> None:
        self._nursery = nursery
        self._data = data
        self._pids = 1000

    def spawn(self, argv: Any, *, name: str, **_more: Any) -> _Child:
        self._pids += 1
        child = _Child(name, self._pids, self._data)
        self._nursery.start_soon(child.live)
        return child


def _mad(data: bytes) -> None:
    """The first byte says when: at its Hello, a request, an abort, a question."""

    @asynccontextmanager
    async def launcher() -> AsyncIterator[_Launcher]:
        async with trio.open_nursery() as nursery:
            yield _Launcher(nursery, data)

    async def main() -> None:
        with trio.fail_after(PATIENCE_S):
            async with open_orchestrator(PLAN) as served:
                await _ask(served, leaves=data[:1] > b"\x7f")
                with contextlib.suppress(OmniError):
                    await served.pools["llm"].replicas[0].query("counters")
                while not await _ask(served):
                    await trio.sleep(1.0)  # until the next life of its worker
                assert not served.inflight, "a request is not released"
                assert not served.pools["llm"].replicas[0].requests

    before = len(os.listdir("/proc/self/fd"))
    with mock.patch.object(orchestrator, "open_launcher", launcher), silent_all():
        trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0), strict_exception_groups=True)
    assert len(os.listdir("/proc/self/fd")) <= before, "descriptors stay"


@contextlib.contextmanager
def silent_all() -> Any:
    names = ("omni_actors.actors", "omni_actors.stages", "omni_actors.orchestrator")
    with contextlib.ExitStack() as stack:
        for name in [*names, *(it for it in logging.root.manager.loggerDict if it.startswith("omni_actors."))]:
            stack.enter_context(silent(logging.getLogger(name)))
        yield


async def _ask(served: Orchestrator, *, leaves: bool = False) -> bool:
    """Whether a request is answered as a worker in order does."""
    request = Request(task="completion", params={"prompt": Prompt(text="x"), "sampling": Sampling()}, deadline_s=60.0)
    try:
        async with served.open(request) as stream:
            if leaves:
                return False
            events = [event async for event in stream]
    except OmniError:
        return False
    return [it.text for it in events if isinstance(it, TextDelta)] == ["ok"]


def _seeds() -> list[bytes]:
    key = FIRST_KEY
    steps = [
        Step(texts=[TextDelta(key, 0, "a", [1]), TextDelta(key, 7, "b", [-1], "length", [TokenLogprob(1, b"x", 0.5)])]),
        Step(done=[StageDone(key, Usage()), StageDone(key, Usage(prompt_tokens=-1, completion_tokens=2**62))]),
        Step(media=[MediaChunk(key, "audio", {"sample_rate": 0, "start": -5}, b"abc")]),
        Step(media=[MediaChunk(key, "audio", {"channels": "x"}, b""), MediaChunk(key, "", {}, b"a")]),
        Step(failed=[StageFailed(key, ErrorInfo(message="x", status=200))], released=[key, key]),
        Step(ledger=[Ledger(key, -1, [1], b"x"), Ledger(key, 9, [2**62])], fed=[(key, -1), (key, 2**40)]),
        Step(failed=[StageFailed(key, ErrorInfo(message="x", code="stage_died"))]),
        Step(released=[key], texts=[TextDelta(key + 1, 0, "z", [])]),
        Fatal(ErrorInfo(message="gone", status=400)),
        Reply(0, {"kv.blocks": "x"}, None),
        Reply(1, [1], ErrorInfo(message="x")),
        Unlinked(3, (key,)),
        Welcome(99, 1),
        Ready({"a": b"b"}, ("nowhere", -1)),
        Progress("x" * 300, -1.0),
    ]
    whole = [frame(step) for step in steps]
    return [bytes([when]) + it for when in (0, 1, 2, 3) for it in whole] + [b"\x81" + b"".join(whole[:4])]


_WORDS = (
    b"\x97",
    b"\xa4step",
    b"\x90",
    b"\xc0",
    b"\x00",
    b"\xff",
    b"\xcf\xff\xff\xff\xff\xff\xff\xff\xff",
    b"\xcb\x7f\xf8",
    b"\xd3\x80",
)

TARGETS = (Target("worker", "nothing: the serving process and its next worker go on", plain(_mad), _seeds, _WORDS),)
