"""Links that are not open yet, in a worker's loop: links that open, links that do not, and the frames about their
requests."""

from __future__ import annotations

import select
import socket
import time
from collections.abc import Iterator

import pytest
import trio

from omni_actors.actors.process import open_launcher, python_module
from omni_actors.connectors import listener as listening
from omni_actors.connectors import tcp
from omni_actors.connectors.handshake import SECRET_BYTES
from omni_actors.connectors.listener import Listener
from omni_actors.connectors.shared_memory import Arena
from omni_actors.connectors.tcp import TcpLink
from omni_actors.pipelines.factory import resolve
from omni_actors.protocol.codec import ProtocolError, frame
from omni_actors.protocol.frames import Chunk, Ready, Step, Submit, TcpEnd, Unlinked, Wire
from omni_actors.worker.links import Links

from .test_boundary import Raw

SECRET = bytes(range(SECRET_BYTES))


@pytest.fixture
def links() -> Iterator[Links]:
    with select.epoll() as epoll:
        it = Links(epoll, Listener("127.0.0.1"))
        yield it
        it.close()


def no_descriptor() -> socket.socket:
    raise AssertionError("no descriptor comes with a link by TCP")


def sleep_to(deadline: float | None) -> None:
    assert deadline is not None
    time.sleep(max(0.0, deadline - time.monotonic()) + 0.001)


def test_a_link_that_nobody_calls_for_is_given_up(links: Links, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listening, "CONNECT_S", 0.05)
    assert links.deadline is None
    assert links.wire(Wire(5, "a#0@1", TcpEnd(SECRET)), no_descriptor)
    assert links.known(5)
    assert links.overdue() == []
    sleep_to(links.deadline)
    assert links.overdue() == [5]
    assert not links.known(5)
    assert links.deadline is None


def test_a_link_that_is_not_answered_is_given_up(links: Links, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tcp, "CONNECT_S", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        assert links.wire(Wire(5, "b#0@1", TcpEnd(SECRET, silent.getsockname())), no_descriptor)
        sleep_to(links.deadline)
        assert links.overdue() == [5]
        link = links.get(5)
        assert link is not None
        assert links.drop(link)
        assert not links.drop(link)
    assert links.deadline is None
    assert len(links) == 0


def test_an_invalid_address_is_reported_at_once(links: Links) -> None:
    assert not links.wire(Wire(6, "b#0@1", TcpEnd(SECRET, ("1.2.3.4.5", 80))), no_descriptor)
    assert not links.known(6)


def test_a_worker_without_tcp_inputs_refuses_a_call() -> None:
    with select.epoll() as epoll:
        links = Links(epoll, None)
        with pytest.raises(ProtocolError):
            links.wire(Wire(5, "a#0@1", TcpEnd(SECRET)), no_descriptor)
        links.close()


# --- a worker spoken to frame by frame -------------------------------------------------------------------------------


def hello() -> bytes:
    return frame(resolve("stub", overrides=["edges.b.text.connector=tcp"]).hello("b", 0, 1))


async def test_a_request_whose_link_is_gone_already_is_reported() -> None:
    async with open_launcher() as launcher, launcher.spawn(python_module("omni_actors.worker")) as child:
        worker = Raw(child.sock)
        worker.send(hello())
        ready = await worker.until(Ready)
        assert isinstance(ready, Ready)
        assert ready.address is not None
        worker.send(frame(Submit(5, "r", {}, ("text",), (), True, ((0, 99),))))
        assert await worker.until(Unlinked) == Unlinked(99, (5,))


async def test_incomplete_input_is_reported_and_complete_input_is_not() -> None:
    async with open_launcher() as launcher, launcher.spawn(python_module("omni_actors.worker")) as child:
        worker = Raw(child.sock)
        worker.send(hello())
        ready = await worker.until(Ready)
        assert isinstance(ready, Ready)
        assert ready.address is not None
        inbox = Arena()
        link = TcpLink.open(7, "b#0@1", ready.address, SECRET, inbox)
        worker.send(frame(Wire(7, "a#0@1", TcpEnd(SECRET))))
        for key in (1, 2):
            worker.send(frame(Submit(key, f"r{key}", {}, ("text",), (), True, ((0, 7),))))
        link.send_chunk(Chunk(1, 0, 0, True, "text", {"text": "whole"}), None)
        link.send_chunk(Chunk(2, 0, 0, False, "text", {"text": "half"}), None)
        link.send_chunk(Chunk(3, 0, 0, True, "text", {"text": "early"}), None)
        with trio.fail_after(5):
            while link.deadline is not None or link.pending:
                if link.pending:
                    await trio.lowlevel.wait_writable(link.fileno())
                else:
                    await trio.lowlevel.wait_readable(link.fileno())
                link.flush()
                link.receive()
        step = await worker.until(Step)
        assert isinstance(step, Step)
        assert [done.key for done in step.done] == [1]
        link.close()
        assert await worker.until(Unlinked) == Unlinked(7, (2,))
        # Its input had come whole before the request did: that the link is gone does not matter.
        worker.send(frame(Submit(3, "r3", {}, ("text",), (), True, ((0, 7),))))
        step = await worker.until(Step)
        assert isinstance(step, Step)
        assert [done.key for done in step.done] == [3]
        inbox.close()
