"""The worker's loop: drain the sockets, admit, step, one write; block when nothing is runnable.

One thread does everything, so nothing here is locked. The loop owns sockets and identities, its
:class:`~omni_actors.worker.output_collector.OutputCollector` the credits, and the engine the model. Control frames are
always handled before link frames of the same wake-up: the orchestrator submits a request to consumers before producers,
so a chunk rarely meets a worker that does not know its request, and when it does it is kept back until the Submit
arrives.
"""

from __future__ import annotations

import logging
import select
import socket
import time
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from omni_actors.connectors.connector import Connector, SharedMemory
from omni_actors.connectors.device import DeviceMemory, Exports
from omni_actors.connectors.link import Link, LinkClosed
from omni_actors.connectors.listener import Listener
from omni_actors.connectors.payload import Payload
from omni_actors.connectors.shared_memory import Arena
from omni_actors.protocol.codec import ProtocolError
from omni_actors.protocol.errors import OmniError, deadline_exceeded, link_lost, stage_failed
from omni_actors.protocol.frames import (
    Abort,
    Chunk,
    Down,
    Feed,
    Hello,
    Query,
    Stop,
    Submit,
    Unlinked,
    Wire,
)
from omni_actors.protocol.limits import ARENA_BYTES
from omni_actors.protocol.liveness import FIRST_STEPS, HEARTBEAT_S
from omni_actors.protocol.params import SECTIONS
from omni_actors.worker.bridge import Bridge
from omni_actors.worker.control_socket import ControlSocket, Hangup
from omni_actors.worker.credits import RequestCredits, Route
from omni_actors.worker.deadlines import RequestDeadlines
from omni_actors.worker.engine import Engine, Work
from omni_actors.worker.intake import ChunkIntake
from omni_actors.worker.isolation import Faults
from omni_actors.worker.links import Links
from omni_actors.worker.liveness import COMPILING, WAITING, WORKING, Liveness
from omni_actors.worker.named import connectors_of
from omni_actors.worker.output_collector import OutputCollector
from omni_actors.worker.rest import Rest
from omni_actors.worker.returned import WrongReturn, counters_of, flag_of, kind_of, wrong

log = logging.getLogger("omni_actors.worker")


class Worker:
    """The loop of one replica."""

    def __init__(
        self,
        sock: socket.socket,
        hello: Hello,
        engine: Engine,
        bridges: dict[int, Callable[[], Bridge]],
        listener: Listener | None = None,
        liveness: Liveness | None = None,
        memory: DeviceMemory | None = None,
        connectors: Mapping[str, Connector] | None = None,
    ) -> None:
        """Serve ``engine`` over the control socket ``sock``.

        ``bridges`` maps an edge index to the factory of its bridge. ``listener`` accepts inputs by TCP and is closed
        with the worker. ``liveness`` is the page on which the loop shows its progress; its owner closes it. ``memory``
        is the device's memory, where payloads may stay on the device. ``connectors`` make the worker's links, by the
        stage at the other end.
        """
        self._stage = hello.stage
        self._liveness = liveness or Liveness()
        self._liveness.enter(WAITING)
        self._steps = 0
        self._faults = Faults(hello)
        self._engine = engine
        engine.compiling = self._liveness.compiling
        self._outputs = {edge.index: edge for edge in hello.outputs}
        self._control = ControlSocket(sock, check=engine.foreign)
        budget = hello.limits.get("arena_bytes", ARENA_BYTES.default)
        exports = None if memory is None else Exports(memory, budget)
        self._arena = Arena(budget)
        maker = type(engine).__name__ + (f" with adapter '{hello.adapter}'" if hello.adapter else "")
        self._out = OutputCollector(
            hello.stage, self._control, self._arena, engine.abort, exports, maker, engine.foreign
        )
        self._deadlines = RequestDeadlines()
        self._intake = ChunkIntake(engine, self._out, hello.inputs, bridges, self._fail)
        self._watched_writable = False
        self._epoll = select.epoll()
        self._epoll.register(self._control.fileno(), select.EPOLLIN)
        self._followers = engine.followers
        if self._followers is not None:
            for fd in self._followers.filenos():
                self._epoll.register(fd, select.EPOLLIN)
        self._memory = memory
        self._usual = SharedMemory(hello)
        self._connectors = connectors_of(hello, memory) if connectors is None else connectors
        self._links = Links(self._epoll, listener, self._made_link)
        self._rest = Rest(hello, engine, self._arena, self._links.inbox)
        self._blocked = False  # every runnable request waits for credit
        self.stopping = False
        """Whether the serving process has asked this worker to stop."""

    # ---- the loop

    def run(self) -> None:
        """Run until the serving process asks for the stop or is gone.

        Raises :class:`ProtocolError` when the serving process or another worker sends frames that no version would
        send, :class:`RankLost` when another rank of this replica has ended, and the exceptions of the engine's step.
        """
        try:
            while not self.stopping:
                self.turn(self.patience_s)
        except Hangup:
            log.info("the serving process has ended")

    def fileno(self) -> int:
        """Return a descriptor that is readable when :meth:`turn` has something to receive or room to write."""
        return self._epoll.fileno()

    @property
    def patience_s(self) -> float:
        """How long :meth:`turn` may wait for the sockets, in seconds.

        The value is 0 when there is a step to do or a payload may leave now, and -1 (no bound) when nothing is due.
        While this worker owes somebody a result, the value is at most one heartbeat.
        """
        if (not self._blocked and self._may_step) or self._out.due:
            return 0.0
        bounds = []
        if (deadline := self._links.deadline) is not None:
            bounds.append(max(0.0, deadline - time.monotonic()))
        if self._out.busy or not self._control.writable:
            bounds.append(HEARTBEAT_S)
        elif (rest_s := self._rest.in_s) is not None:
            bounds.append(rest_s)
        return min(bounds, default=-1)

    def turn(self, patience_s: float = 0.0) -> None:
        """Do one turn: wait for the sockets, drain them, step at most once, and write the results.

        With a ``patience_s`` of 0 the turn never waits. Raises :class:`Hangup` and as :meth:`run` does.
        """
        events = self._epoll.poll(patience_s)
        liveness = self._liveness
        liveness.turn()
        if events:
            if self._followers is not None:
                self._followers.check({fd for fd, _ in events})
            self._blocked = False
            for message in self._control.receive():
                self._handle(message)
                liveness.enter(WORKING)
            for link in self._links.readable(events):
                self._serve_link(link)
                liveness.enter(WORKING)
                self._rest.worked = True
        deadline = self._links.deadline
        if deadline is not None and deadline <= time.monotonic():
            self._give_up()
        for key in self._deadlines.passed():
            if (request := self._out.requests.get(key)) is not None:
                self._fail(request, deadline_exceeded())
                self._blocked = False
        if not self._blocked and not self.stopping and self._may_step:
            liveness.enter(WORKING if self._steps >= FIRST_STEPS else COMPILING)
            moved = self._engine.step(self._out)
            self._blocked = not flag_of(self._engine, "step", moved, "whether anything ran")
            self._steps += 1
            self._rest.worked = True
        self._rest.turn(idle=not self._out.busy)
        self._write()
        liveness.enter(WAITING)

    @property
    def _may_step(self) -> bool:
        return self._engine.runnable and not self._control.full

    def _write(self) -> None:
        """Write everything that this turn made, in one write for each socket."""
        touched = self._out.flush()
        if closed := self._arena.closed:
            touched.update(link for link in self._links if link.forget(closed))
            closed.clear()
        self._links.inbox.closed.clear()  # nobody but this worker maps these slabs
        for link in touched:
            if self._links.get(link.id) is link:
                self._links.flush(link)
        self._out.report()
        self._control.flush()
        if self._control.writable is self._watched_writable:
            self._watched_writable = not self._watched_writable
            events = select.EPOLLIN | (select.EPOLLOUT if self._watched_writable else 0)
            self._epoll.modify(self._control.fileno(), events)

    def _handle(self, message: Down) -> None:
        match message:
            case Submit():
                self._submit(message)
            case Abort():
                self._abort(message.key)
            case Feed():
                self._feed(message)
            case Wire():
                if not self._links.wire(message, self._control.take_fd):
                    self._unlinked(message.link)
            case Query():
                self._query(message)
            case Stop():
                self.stopping = True
            case _:
                raise ProtocolError(f"unexpected {type(message).__name__}")

    # ---- requests

    def _submit(self, message: Submit) -> None:
        key = message.key
        self._intake.expect(key)
        routes = tuple(Route(self._outputs[edge], self._links.get(link)) for edge, link in message.routes)
        request = RequestCredits(key, message.request_id, message.visible, routes, set(message.ports))
        self._out.requests[key] = request
        if message.deadline_s is not None:
            self._deadlines.add(key, message.deadline_s, self._out.requests, len(self._out.requests))
        if log.isEnabledFor(logging.DEBUG):
            log.debug("submit key=%d ports=%s", key, list(message.ports), extra={"request": request.request_id})
        try:
            params = {
                name: msgspec.msgpack.decode(value, type=SECTIONS.get(name, Any))
                for name, value in message.params.items()
            }
            ports = frozenset(message.ports)
            self._engine.admit(
                Work(
                    key,
                    request.request_id,
                    params,
                    ports,
                    visible=request.visible,
                    routed=bool(routes),
                    prefix=message.prefix,
                    delivered=message.delivered,
                    priority=message.priority,
                    deadline_s=message.deadline_s,
                )
            )
        except Exception as error:
            self._fail(request, error)
        request.awaited = dict(message.sources)
        self._intake.submitted(key)
        for id in request.awaited.values():
            if not self._links.known(id):  # broken before the request came
                self._control.send(Unlinked(id, (key,)))

    def _abort(self, key: int) -> None:
        request = self._out.requests.get(key)
        if request is not None:
            log.debug("abort key=%d", key, extra={"request": request.request_id})
            self._engine.abort(key)
            self._out.retire(request)

    def _feed(self, message: Feed) -> None:
        request = self._out.requests.get(message.key)
        if request is None:
            return
        request.feeds += 1
        payload = None if message.meta is None else Payload(message.kind, message.meta)
        end = message.end and request.end_port(message.port)
        try:
            consumed = self._intake.feed(message.key, message.port, payload, end)
        except Exception as error:
            self._fail(request, error)
            return
        if consumed or payload is None:
            self._out.feed_consumed(request)

    def _fail(self, request: RequestCredits, error: Exception) -> None:
        """Fail one request alone. The client's mistake is reported unchanged; any other error names this stage, or the
        stage that made the payload."""
        self._engine.abort(request.key)
        self._out.fail(request.key, self._faults.explain(error, request.request_id))

    # ---- links

    def _serve_link(self, link: Link) -> None:
        try:
            for message in link.receive():
                if isinstance(message, Chunk):
                    self._intake.take(link, message)
                else:
                    self._out.acknowledged(message)
        except LinkClosed:
            self._drop_link(link)
            return
        if link.pending is not link.watched:
            self._links.flush(link)

    def _made_link(self, message: Wire, sock: socket.socket) -> Link:
        """Make this end of a link within the machine, by the connector of the edges between the two stages."""
        connector = self._connectors.get(message.peer.partition("#")[0], self._usual)
        link = connector.link(message.link, message.peer, sock)
        if not isinstance(link, Link):
            raise wrong(connector, "link", kind_of(link), "Link")
        return link

    def _drop_link(self, link: Link) -> None:
        """Drop a link whose other end is gone, once all its messages are read. The orchestrator ends the requests in
        hand at the other end."""
        if not self._links.drop(link):
            return
        log.debug("link to %s closed", link.peer)
        self._out.lost(link)
        for key in link.invalidated():
            if (request := self._out.requests.get(key)) is not None:
                self._fail(request, link_lost(self._stage))
        if link.may_break:
            self._unlinked(link.id)

    def _give_up(self) -> None:
        """Drop the links that did not open in time."""
        for id in self._links.overdue():
            log.error("link %d did not open in time", id)
            if (link := self._links.get(id)) is not None:
                self._drop_link(link)
            else:
                self._unlinked(id)

    def _unlinked(self, id: int) -> None:
        """Report a lost link to the serving process, with the requests whose input is incomplete by that. Only the two
        ends know of such a loss: a TCP link may break while both workers live."""
        keys = tuple(request.key for request in self._out.requests.values() if id in request.awaited.values())
        self._control.send(Unlinked(id, keys))

    # ---- queries

    def _query(self, query: Query) -> None:
        out = self._out
        out.asked.add(query.id)
        try:
            if query.what == "counters":
                counters = {
                    **counters_of(self._engine, self._engine.counters()),
                    **out.counters(),
                    "early": len(self._intake.early),
                    "inbox_used_bytes": self._links.inbox.used_bytes,
                    "inbox_bytes": self._links.inbox.bytes,
                }
                if self._memory is not None:
                    counters["device_links"] = sum(link.direct for link in self._links)
                out.reply(query.id, counters)
                return
            self._rest.worked = True
            self._engine.query(query, out)
        except OmniError as error:
            out.reply(query.id, None, error.info)
        except Exception as error:
            log.exception("query %r failed", query.what)
            why = [f"{error}."] if isinstance(error, WrongReturn) else []
            out.reply(query.id, None, stage_failed(self._stage, *why).info)

    def last_words(self, message: msgspec.Struct, patience_s: float) -> None:
        """Report why the worker ends, behind the output that still waits for the serving process."""
        try:
            self._control.send(message)
            self._control.drain(patience_s)
        except Hangup:
            log.info("the serving process has ended")

    def close(self) -> None:
        """Close links and memory. The control socket stays with its owner."""
        self._links.close()
        self._arena.close()
        self._epoll.close()
