"""The worker's loop: drain the sockets, admit, step, one write; block when nothing is runnable.

One thread does everything, so nothing here is locked. The loop owns sockets, identities and credits; the engine owns
the model. Control frames are always handled before link frames of the same wake-up: the orchestrator submits a request
to consumers before producers, so a chunk rarely meets a worker that does not know its request, and when it does it is
kept back until the Submit arrives.
"""

from __future__ import annotations

import array
import logging
import select
import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from omni_actors.connectors.link import Link, LinkClosed, pack, unpack
from omni_actors.connectors.payload import Payload
from omni_actors.connectors.shared_memory import Arena
from omni_actors.protocol.codec import ProtocolError, down_reader, frame
from omni_actors.protocol.errors import ErrorInfo, OmniError, stage_failed
from omni_actors.protocol.frames import (
    Abort,
    Ack,
    Chunk,
    Down,
    EdgeSpec,
    Feed,
    Hello,
    Query,
    Reply,
    SlabRef,
    Step,
    Stop,
    Submit,
    Wire,
)
from omni_actors.protocol.params import SECTIONS
from omni_actors.protocol.request import MediaChunk, StageDone, StageFailed, TextDelta, Usage
from omni_actors.worker.bridge import Bridge, Identity
from omni_actors.worker.engine import Engine, Work
from omni_actors.worker.jobs import Job, Route, Source

log = logging.getLogger("omni_actors.worker")

_RECV = 256 << 10
_FD_SPACE = socket.CMSG_SPACE(16 * array.array("i").itemsize)
_MAX_UNSENT = 8 << 20
"""Bytes of output that the serving process has not taken; beyond it the engine does not step."""


@dataclass(slots=True, eq=False)
class _Emit:
    job: Job
    payload: Payload | None
    end: bool = False


class Worker:
    """The loop of one replica. ``bridges`` maps an edge index to the factory of its bridge."""

    def __init__(
        self, sock: socket.socket, hello: Hello, engine: Engine, bridges: dict[int, Callable[[], Bridge]]
    ) -> None:
        sock.setblocking(False)
        self._sock = sock
        self._hello = hello
        self._engine = engine
        self._bridges = bridges
        self._inputs: dict[int, EdgeSpec] = {edge.index: edge for edge in hello.inputs}
        self._outputs: dict[int, EdgeSpec] = {edge.index: edge for edge in hello.outputs}
        self._arena = Arena(hello.limits.get("arena_bytes", 256 << 20))
        self._links: dict[int, Link] = {}
        self._jobs: dict[int, Job] = {}
        self._draining: dict[int, Job] = {}
        self._early: dict[int, list[tuple[Link, Chunk]]] = {}
        self._last_key = -1
        self._reader = down_reader()
        self._fds: list[int] = []
        self._unsent = bytearray()
        self._writable = True
        self._step = Step()
        self._emits: list[_Emit] = []
        self._acks: dict[tuple[int, int], tuple[Link, Ack]] = {}
        self._replies: list[Reply] = []
        self._epoll = select.epoll()
        self._epoll.register(sock.fileno(), select.EPOLLIN)
        self._by_fd: dict[int, Link] = {}
        self._stopping = False

    # ---- the loop

    def run(self) -> None:
        """Run until told to stop or until the serving process is gone."""
        control = self._sock.fileno()
        engine = self._engine
        blocked = False
        while not self._stopping:
            step = not blocked and engine.runnable and len(self._unsent) < _MAX_UNSENT
            events = self._epoll.poll(0 if step else -1)
            if events:
                blocked = False
                if not self._read_control():
                    return
                for fd, event in events:
                    if fd == control:
                        if event & select.EPOLLOUT:
                            self._write_control()
                    elif (link := self._by_fd.get(fd)) is not None:
                        self._serve_link(link, event)
            if not self._stopping and engine.runnable and not blocked and len(self._unsent) < _MAX_UNSENT:
                blocked = not engine.step(self)
            self._flush()

    def _read_control(self) -> bool:
        """Handle what the serving process sent. ``False`` at end-of-file."""
        while True:
            try:
                data, ancillary, _flags, _addr = self._sock.recvmsg(_RECV, _FD_SPACE)
            except (BlockingIOError, InterruptedError):
                return True
            except OSError:
                return False
            for level, kind, content in ancillary:
                if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                    fds = array.array("i")
                    fds.frombytes(content[: len(content) - len(content) % fds.itemsize])
                    self._fds.extend(fds)
            if not data:
                return False
            for message in self._reader.feed(data):
                self._handle(message)
            if len(data) < _RECV and not ancillary:
                return True

    def _handle(self, message: Down) -> None:
        match message:
            case Submit():
                self._submit(message)
            case Abort():
                self._abort(message.key)
            case Feed():
                self._feed(message)
            case Wire():
                link = Link(message.link, message.peer, socket.socket(fileno=self._fds.pop(0)))
                self._links[link.id] = link
                self._by_fd[link.fileno()] = link
                self._epoll.register(link.fileno(), select.EPOLLIN)
            case Query():
                self._query(message)
            case Stop():
                self._stopping = True
            case _:
                raise ProtocolError(f"unexpected {type(message).__name__}")

    # ---- requests

    def _submit(self, message: Submit) -> None:
        key = message.key
        self._last_key = max(self._last_key, key)
        waiting: dict[str, int] = {}
        for port in message.ports:
            waiting[port] = waiting.get(port, 0) + 1
        routes = tuple(Route(self._outputs[edge], self._links.get(link)) for edge, link in message.routes)
        job = Job(key, message.request_id, message.visible, routes, waiting)
        self._jobs[key] = job
        if log.isEnabledFor(logging.DEBUG):
            log.debug("submit key=%d ports=%s", key, sorted(waiting), extra={"request": job.request_id})
        try:
            params = {
                name: msgspec.msgpack.decode(value, type=SECTIONS.get(name, Any))
                for name, value in message.params.items()
            }
            self._engine.admit(
                Work(key, job.request_id, params, frozenset(waiting), visible=job.visible, routed=bool(routes))
            )
        except Exception as error:
            self._fail_job(job, error)
        for link, chunk in self._early.pop(key, ()):
            self._chunk(link, chunk)

    def _abort(self, key: int) -> None:
        job = self._jobs.get(key)
        if job is not None:
            log.debug("abort key=%d", key, extra={"request": job.request_id})
            self._engine.abort(key)
            self._retire(job)

    def _feed(self, message: Feed) -> None:
        job = self._jobs.get(message.key)
        if job is None:
            return
        job.feeds += 1
        payload = None if message.meta is None else Payload(message.kind, message.meta)
        end = message.end and self._port_ended(job, message.port)
        try:
            consumed = self._engine.feed(message.key, message.port, payload, end) or payload is None
        except Exception as error:
            self._fail_job(job, error)
            return
        if consumed:
            job.feeds_consumed += 1
            self._step.fed.append((job.key, job.feeds_consumed))

    def _fail_job(self, job: Job, error: Exception) -> None:
        """One request fails alone: the client's mistake as it is, anything else named after the stage."""
        self._engine.abort(job.key)
        if isinstance(error, OmniError):
            self.fail(job.key, error.info)
        else:
            log.exception("request failed", exc_info=error, extra={"request": job.request_id})
            self.fail(job.key, stage_failed(self._hello.stage).info)

    def _retire(self, job: Job) -> None:
        """Nothing more comes of this request here. Its memory may still wait for readers."""
        del self._jobs[job.key]
        for source in job.sources.values():
            if source.seq > source.acked and source.slabs:
                self._acks[job.key, source.edge.index] = (source.link, Ack(job.key, source.edge.index, source.seq))
        job.sources.clear()
        self._draining[job.key] = job

    def _port_ended(self, job: Job, port: str) -> bool:
        left = job.waiting.get(port, 1) - 1
        job.waiting[port] = left
        return left == 0

    # ---- links

    def _serve_link(self, link: Link, event: int) -> None:
        try:
            if event & select.EPOLLOUT:
                link.flush()
                self._watch_link(link)
            if event & ~select.EPOLLOUT:
                for message in link.receive():
                    if type(message) is Chunk:
                        self._chunk(link, message)
                    else:
                        self._ack(message)  # type: ignore[arg-type]
        except LinkClosed:
            self._drop_link(link)
        except (ProtocolError, ValueError, KeyError, IndexError) as error:
            log.error("link to %s broke the protocol: %s", link.peer, error)
            self._drop_link(link)

    def _chunk(self, link: Link, chunk: Chunk) -> None:
        key = chunk.key
        job = self._jobs.get(key)
        if job is None:
            if key > self._last_key:
                self._early.setdefault(key, []).append((link, chunk))
            elif chunk.slab is not None:
                self._acks[key, chunk.edge] = (link, Ack(key, chunk.edge, chunk.seq + 1))
            return
        source = job.sources.get(chunk.edge)
        if source is None:
            edge = self._inputs[chunk.edge]
            source = job.sources[chunk.edge] = Source(edge, link, self._bridges.get(edge.index, Identity)())
        if chunk.seq != source.seq:
            raise ProtocolError(f"chunk {chunk.seq} of request {key} where {source.seq} was due")
        source.seq += 1
        source.ended = chunk.end
        source.slabs |= chunk.slab is not None
        try:
            items = source.bridge.feed(unpack(chunk, link.views), chunk.end)
            end = chunk.end and self._port_ended(job, source.edge.port)
            last = len(items) - 1
            for i, item in enumerate(items):
                source.fed += 1
                if self._engine.feed(key, source.edge.port, item, end and i == last):
                    source.consumed += 1
            if end and not items:
                self._engine.feed(key, source.edge.port, None, True)
        except Exception as error:
            self._fail_job(job, error)
            return
        source.marks.append((chunk.seq, source.fed))
        self._settle(job, source)

    def _settle(self, job: Job, source: Source) -> None:
        upto = source.settle()
        if upto is not None:
            self._acks[job.key, source.edge.index] = (source.link, Ack(job.key, source.edge.index, upto))

    def _ack(self, ack: Ack) -> None:
        job = self._jobs.get(ack.key) or self._draining.get(ack.key)
        if job is None:
            return
        for route in job.routes:
            if route.edge.index == ack.edge:
                route.acked = max(route.acked, min(ack.upto, route.seq))
                while route.slots and route.slots[0][0] < ack.upto:
                    self._arena.release(route.slots.popleft()[1])

    def _watch_link(self, link: Link) -> None:
        events = select.EPOLLIN | (select.EPOLLOUT if link.pending else 0)
        self._epoll.modify(link.fileno(), events)

    def _drop_link(self, link: Link) -> None:
        """The other end is gone: its credits and memory come back; the orchestrator ends the requests that used it."""
        if self._links.pop(link.id, None) is None:
            return
        log.info("link to %s closed", link.peer)
        del self._by_fd[link.fileno()]
        self._epoll.unregister(link.fileno())
        link.close()
        self._acks = {where: entry for where, entry in self._acks.items() if entry[0] is not link}
        for key, early in list(self._early.items()):
            self._early[key] = [entry for entry in early if entry[0] is not link]
            if not self._early[key]:
                del self._early[key]
        for jobs in (self._jobs, self._draining):
            for job in jobs.values():
                for route in job.routes:
                    if route.link is link:
                        route.link = None
                        while route.slots:
                            self._arena.release(route.slots.popleft()[1])

    # ---- questions

    def _query(self, query: Query) -> None:
        if query.what == "counters":
            counters = self._engine.counters() | {
                "jobs": len(self._jobs) + len(self._draining),
                "early": len(self._early),
                "arena_used_bytes": self._arena.used_bytes,
                "arena_bytes": self._arena.bytes,
            }
            self.reply(query.id, counters)
            return
        try:
            self._engine.query(query, self)
        except OmniError as error:
            self.reply(query.id, None, error.info)
        except Exception:
            log.exception("question %r failed", query.what)
            self.reply(query.id, None, stage_failed(self._hello.stage).info)

    # ---- output (the Outbox of the engine)

    def ready(self, key: int) -> bool:
        job = self._jobs.get(key)
        if job is None:
            return True
        return job.ready and not (self._arena.pressed and job.holds_memory)

    def text(self, delta: TextDelta) -> None:
        job = self._jobs.get(delta.key)
        if job is not None and job.visible:
            self._step.texts.append(delta)

    def media(self, chunk: MediaChunk) -> None:
        job = self._jobs.get(chunk.key)
        if job is not None and job.visible:
            self._step.media.append(chunk)

    def emit(self, key: int, payload: Payload) -> None:
        job = self._jobs.get(key)
        if job is not None and job.routes:
            self._emits.append(_Emit(job, payload))
            for route in job.routes:
                if route.edge.mode != "full":
                    route.queued += 1

    def consumed(self, key: int, port: str) -> None:
        job = self._jobs.get(key)
        if job is None:
            return
        for source in job.sources.values():
            if source.edge.port == port and source.consumed < source.fed:
                source.consumed += 1
                self._settle(job, source)
                return
        if job.feeds_consumed < job.feeds:
            job.feeds_consumed += 1
            self._step.fed.append((key, job.feeds_consumed))

    def finish(self, key: int, usage: Usage) -> None:
        job = self._jobs.get(key)
        if job is None:
            return
        if job.routes:
            last = next((emit for emit in reversed(self._emits) if emit.job is job), None)
            if last is not None:
                last.end = True
            else:
                self._emits.append(_Emit(job, None, True))
        self._step.done.append(StageDone(key, usage))
        log.debug("done key=%d", key, extra={"request": job.request_id})
        self._retire(job)

    def fail(self, key: int, error: ErrorInfo) -> None:
        job = self._jobs.get(key)
        if job is None:
            return
        self._step.failed.append(StageFailed(key, error))
        log.debug("failed key=%d: %s", key, error.message, extra={"request": job.request_id})
        self._retire(job)

    def reply(self, query: int, value: Any, error: ErrorInfo | None = None) -> None:
        self._replies.append(Reply(query, value, error))

    # ---- writing

    def _flush(self) -> None:
        touched: dict[int, Link] = {}
        if self._emits:
            for emit in self._emits:
                self._send(emit, touched)
            self._emits.clear()
        if self._acks:
            for link, ack in self._acks.values():
                link.send_ack(ack)
                touched[link.id] = link
            self._acks.clear()
        for link in touched.values():
            if link.id not in self._links:
                continue
            try:
                link.flush()
            except LinkClosed:
                self._drop_link(link)
                continue
            if link.pending:
                self._watch_link(link)
        if self._draining:
            self._release_drained()
        step = self._step
        if step.texts or step.media or step.done or step.failed or step.released or step.fed:
            self._unsent += frame(step)
            self._step = Step()
        for reply in self._replies:
            self._unsent += frame(reply)
        self._replies.clear()
        if self._unsent and self._writable:
            self._write_control()

    def _send(self, emit: _Emit, touched: dict[int, Link]) -> None:
        """Put a payload on the request's edges, or keep it back on those that publish at the end."""
        now: list[Route] = []
        for route in emit.job.routes:
            if route.link is None:
                continue
            touched[route.link.id] = route.link
            if route.edge.mode != "full":
                route.queued -= emit.payload is not None
                now.append(route)
                continue
            if emit.payload is not None:
                route.held.append(emit.payload)
            if emit.end:
                held, route.held = route.held, []
                for payload in held[:-1]:
                    self._put(emit.job.key, payload, False, [route])
                self._put(emit.job.key, held[-1] if held else None, True, [route])
        if now:
            self._put(emit.job.key, emit.payload, emit.end, now)

    def _put(self, key: int, payload: Payload | None, end: bool, routes: list[Route]) -> None:
        metas, data, slot = ((), None, None) if payload is None else pack(payload, self._arena, len(routes))
        for route in routes:
            assert route.link is not None
            chunk = Chunk(
                key,
                route.edge.index,
                route.seq,
                end,
                "" if payload is None else payload.kind,
                {} if payload is None else payload.meta,
                metas,
                data,
                None if slot is None else SlabRef(slot.slab.id, slot.offset, False),
            )
            if slot is not None:
                route.slots.append((route.seq, slot))
            route.seq += 1
            route.link.send_chunk(chunk, self._arena)

    def _release_drained(self) -> None:
        for key in [key for key, job in self._draining.items() if not job.holds_memory]:
            del self._draining[key]
            self._step.released.append(key)

    def _write_control(self) -> None:
        try:
            sent = self._sock.send(self._unsent)
        except (BlockingIOError, InterruptedError):
            sent = 0
        except OSError:
            self._stopping = True  # the serving process is gone
            return
        del self._unsent[:sent]
        writable = not self._unsent
        if writable != self._writable:
            self._writable = writable
            events = select.EPOLLIN | (0 if writable else select.EPOLLOUT)
            self._epoll.modify(self._sock.fileno(), events)

    def close(self) -> None:
        """Close links and memory. The control socket stays with its owner."""
        for link in list(self._links.values()):
            link.close()
        self._arena.close()
        self._epoll.close()
