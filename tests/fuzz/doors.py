"""The front door, served in a thread of this process to a client in the fuzzer's own: HTTP before the real application,
and WebSockets before one that echoes."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import tempfile
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import h11
import trio
from tests.conformance.rfc6455 import UPGRADE, expected, frame, read_frames
from tests.entrypoints.fakes import PIPELINE, FakeOrchestrator
from tests.entrypoints.server.door import App
from tests.fuzz.target import One, Target, chance, cuts, plain
from tests.media.harness import MediaHarness
from tests.pipelines.builders import plan_of

from omni_actors.entrypoints.app import build_app
from omni_actors.entrypoints.options import ServerOptions
from omni_actors.entrypoints.server import Limits, serve
from omni_actors.entrypoints.server.errors import BadRequest
from omni_actors.entrypoints.server.parser import METHODS, RequestParser
from omni_actors.media.limits import read_limits
from omni_actors.media.service.client import MediaService
from omni_actors.telemetry.metrics import Metrics

PATIENCE_S = 20.0
"""What comes later than that does not come. (The limits below are far shorter.)"""

LIMITS = Limits(linger_s=1.0, close_s=10.0, write_s=10.0, ping_s=0.0)
ADMIN = "Authorization: Bearer boss"
PROBE = b"GET /live HTTP/1.1\r\nHost: x\r\n\r\n"
LOG = logging.getLogger("omni_actors")


class _Errors(logging.Handler):
    """What the server calls an error is one: nobody outside may cause it."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)

    def check(self) -> None:
        if self.records:
            record, *_ = self.records
            self.records.clear()
            error = record.exc_info[1] if record.exc_info else None
            raise AssertionError(f"logged: {record.getMessage()}") from error


@dataclass
class Door:
    """The server, seen from outside. ``quiet`` says, inside, whether nothing of any request is left."""

    path: str
    token: Any = None
    stop: trio.Event | None = None
    quiet: Callable[[], bool] = lambda: True
    errors: _Errors = field(default_factory=_Errors)
    failure: BaseException | None = None
    tasks: int = 0
    descriptors: int = 0
    _probe: socket.socket | None = None

    def connect(self) -> socket.socket:
        made = socket.socket(socket.AF_UNIX)
        made.settimeout(PATIENCE_S)
        made.connect(self.path)
        return made

    def probe(self) -> None:
        """A well-formed request, on a connection of its own that stays, is answered."""
        self._probe = self._probe or self.connect()
        self._probe.sendall(PROBE)
        said = self._probe.recv(65536)
        assert said.startswith(b"HTTP/1.1 200 "), f"the probe was answered {said[:40]!r}"

    def settle(self) -> None:
        """Nothing of the last connection is left: no task, no descriptor, no request."""
        end = time.monotonic() + PATIENCE_S
        while True:
            tasks, quiet = trio.from_thread.run_sync(self._inside, trio_token=self.token)
            descriptors = len(os.listdir("/proc/self/fd"))
            if tasks <= self.tasks and quiet and descriptors <= self.descriptors:
                break
            left = f"left over: {tasks - self.tasks} tasks, {descriptors - self.descriptors} descriptors, {quiet=}"
            assert time.monotonic() < end, left
            time.sleep(0.0005)
        self.errors.check()
        assert self.failure is None, "the server has ended"

    def baseline(self) -> None:
        self.probe()
        self.tasks, _ = trio.from_thread.run_sync(self._inside, trio_token=self.token)
        self.descriptors = len(os.listdir("/proc/self/fd")) + 1  # the very listing may count itself

    def _inside(self) -> tuple[int, bool]:
        return trio.lowlevel.current_statistics().tasks_living, self.quiet()

    def say(self, data: bytes, how: int) -> bytes:
        """Send it in pieces, and leave in one of four ways. Returns what came back, if that was waited for. (The last
        way waits for the server to close: it has to be asked to.)"""
        said = b""
        with self.connect() as client:
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # it has closed already
                for piece in cuts(data, 4):
                    client.sendall(piece)
            try:
                if how == 0:  # gone at once
                    return said
                if how == 1:  # gone once the server has had its turn
                    self.probe()
                    client.setblocking(False)
                    return client.recv(1 << 20)
                if how == 2:
                    client.shutdown(socket.SHUT_WR)
                while piece := client.recv(1 << 16):
                    said += piece
            except (BrokenPipeError, ConnectionResetError, BlockingIOError):
                pass
        return said


@contextmanager
def _door(main: Callable[[Door, Callable[[], None]], Awaitable[None]]) -> Iterator[Door]:
    with tempfile.TemporaryDirectory(prefix="door-") as folder:
        door = Door(str(Path(folder, "door")))
        ready = threading.Event()

        async def served() -> None:
            door.token, door.stop = trio.lowlevel.current_trio_token(), trio.Event()
            await main(door, ready.set)

        def run() -> None:
            try:
                trio.run(served)
            except BaseException as error:
                door.failure = error
            ready.set()

        thread = threading.Thread(target=run, daemon=True)
        LOG.addHandler(door.errors)
        propagates, LOG.propagate = LOG.propagate, False
        thread.start()
        try:
            assert ready.wait(60)
            if door.failure is not None:
                raise door.failure
            door.baseline()
            yield door
        finally:
            if door._probe is not None:
                door._probe.close()
            if door.stop is not None and door.failure is None:
                trio.from_thread.run_sync(door.stop.set, trio_token=door.token)
            thread.join(PATIENCE_S)
            LOG.removeHandler(door.errors)
            LOG.propagate = propagates


async def _application(door: Door, ready: Callable[[], None]) -> None:
    """The real application, its media engine in this process, and a script for a model."""
    plan = plan_of(PIPELINE)
    assert plan.media is not None
    orchestrator = FakeOrchestrator(plan)
    harness = MediaHarness(**plan.media.options)
    media = MediaService(harness.query, limits=read_limits(plan.media.options))
    app = build_app(orchestrator, media, plan, ServerOptions(admin_keys=("boss",)))

    def quiet() -> bool:
        orchestrator.requests.clear()
        harness.engine.step(harness)
        return not orchestrator.running and not any(harness.gauges().values())

    door.quiet = quiet
    assert door.stop is not None
    async with trio.open_nursery() as nursery:
        nursery.start_soon(media.run)
        await nursery.start(_serving(door, app))
        ready()
        await door.stop.wait()
        nursery.cancel_scope.cancel()


async def _echoes(door: Door, ready: Callable[[], None]) -> None:
    assert door.stop is not None
    async with trio.open_nursery() as nursery:
        await nursery.start(_serving(door, App()))
        ready()
        await door.stop.wait()
        nursery.cancel_scope.cancel()


def _serving(door: Door, app: Any) -> Any:
    async def run(*, task_status: trio.TaskStatus[list[str]]) -> None:
        await serve(
            app, "", 0, limits=LIMITS, metrics=Metrics(), unix_path=door.path, grace_s=1.0, task_status=task_status
        )

    return run


@contextmanager
def _http() -> Iterator[One]:
    with _door(_application) as door:

        def one(data: bytes) -> None:
            said = door.say(data, chance(data).randrange(3))
            assert not said or said.startswith(b"HTTP/1.1 "), f"answered {said[:40]!r}"
            assert b"HTTP/1.1 500" not in said, said[:2000]
            door.probe()
            door.settle()

        yield one


@contextmanager
def _websocket() -> Iterator[One]:
    """The first byte says what the rest is: a handshake, a stream of bytes behind one, or a list of frames to make."""
    with _door(_echoes) as door:

        def one(data: bytes) -> None:
            kind, rest = (data[0] % 4 if data else 0), data[1:]
            if kind == 0:
                door.say(rest, chance(data).randrange(3))
            elif kind == 1:
                said = door.say(UPGRADE + rest, chance(data).randrange(3))
                if b"\r\n\r\n" in said:
                    read_frames(said.partition(b"\r\n\r\n")[2])
            else:
                _frames(door, rest)
            door.probe()
            door.settle()

        yield one


def _frames(door: Door, data: bytes) -> None:
    """What is answered to frames is what the standard says, and then the server closes."""
    frames = [*_made(data), (True, 0, 8, b"\x03\xe8")]
    wire = b"".join(frame(opcode, payload, fin=fin, rsv=rsv) for fin, rsv, opcode, payload in frames)
    said = door.say(UPGRADE + wire, 3)
    head, _, rest = said.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 101 "), head[:80]
    got, want = read_frames(rest), expected(frames)
    assert got == want, f"{got} instead of {want}"


def _made(data: bytes) -> Iterator[tuple[bool, int, int, bytes]]:
    """Frames out of any bytes: one for the first byte, one for the payload's length, the payload."""
    at = 0
    while at + 2 <= len(data):
        first, size = data[at], data[at + 1]
        payload = data[at + 2 : at + 2 + size]
        at += 2 + size
        if size == 126:  # a long one
            payload *= 3
        elif size == 127:
            payload *= 40
        yield bool(first & 0x80), first >> 4 & 7, first & 15, payload


def _requests() -> list[bytes]:
    def post(path: str, body: bytes, kind: str = "application/json", *lines: str) -> bytes:
        head = [
            f"POST {path} HTTP/1.1",
            "Host: localhost",
            f"Content-Type: {kind}",
            *lines,
            f"Content-Length: {len(body)}",
        ]
        return "\r\n".join(head).encode() + b"\r\n\r\n" + body

    form = (
        b'--b\r\nContent-Disposition: form-data; name="model"\r\n\r\nassistant\r\n--b\r\n'
        b'Content-Disposition: form-data; name="file"; filename="a.pcm"\r\nContent-Type: audio/pcm\r\n\r\n'
        + bytes(640)
        + b"\r\n--b--\r\n"
    )
    chat = b'{"model":"assistant","messages":[{"role":"user","content":"hi"}]'
    part = b'{"type":"input_audio","input_audio":{"data":"AAAAAA==","format":"pcm16"}}'
    return [
        PROBE,
        PROBE * 3,
        b"GET /v1/models/assistant?x=%41 HTTP/1.0\r\n\r\n",
        b"OPTIONS * HTTP/1.1\r\nHost: x\r\nOrigin: http://a\r\nAccess-Control-Request-Method: POST\r\n\r\n",
        b"HEAD /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
        post("/v1/chat/completions", chat + b',"stream":true,"stream_options":{"include_usage":true}}') + PROBE,
        post(
            "/v1/chat/completions", chat + b',"modalities":["text","audio"],"audio":{"voice":"heart","format":"wav"}}'
        ),
        post("/v1/chat/completions", b'{"messages":[{"role":"user","content":[%b]}]}' % part, "application/json"),
        post("/v1/completions", b'{"prompt":["a",[1,2]],"n":2,"logprobs":2,"echo":true,"max_tokens":0}'),
        post("/v1/audio/speech", b'{"input":"Hi.","voice":"heart","response_format":"pcm","stream_format":"sse"}'),
        post("/v1/audio/transcriptions", form, "multipart/form-data; boundary=b", "X-Request-Timeout: 5"),
        post("/admin/replicas", b'{"stage":"llm","index":0,"action":"drain"}', "application/json", ADMIN),
        b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nExpect: 100-continue\r\n\r\n"
        b'5;a=b\r\n{"pro\r\nc\r\nmpt": "you"}\r\n0\r\nTrailer: x\r\n\r\n' + PROBE,
        b"GET /live HTTP/1.1\r\nHost: x\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n"
        b"HTTP2-Settings: AAMAAABkAARAAAAAAAIAAAAA\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        UPGRADE,
    ]


def _sockets() -> list[bytes]:
    close = frame(8, b"\x03\xe8")
    text = frame(1, b"Hel", fin=False) + frame(9, b"p") + frame(0, b"lo")
    made = bytes([0x81, 5]) + b"Hello" + bytes([0x89, 1]) + b"p" + bytes([0x02, 2]) + b"ab" + bytes([0x80, 1]) + b"c"
    return [
        b"\x00" + UPGRADE + text + close,
        b"\x00" + UPGRADE.replace(b"13", b"8"),
        b"\x01" + text + close,
        b"\x01" + frame(2, bytes(300)) + frame(8),
        b"\x02" + made,
        b"\x02" + bytes([0x01, 2]) + b"\xce\xba" + bytes([0x80, 3]) + b"\xed\xa0\x80",
        b"\x02" + bytes([0x88, 4, 0x03, 0xE9]) + b"by",
        b"\x03" + bytes([0x82, 126]) + bytes(126) + bytes([0x82, 127]) + bytes(127),
    ]


Requests = tuple[list[tuple[object, ...]], int]
"""Those that are whole, and the status that ends the connection (0: none)."""


def _parsed(data: bytes) -> None:
    """Cut differently, and to another parser, a stream is the same requests: nobody can hide one in another."""
    whole, cut = _read([data]), _read(cuts(data, 12))
    sizes = {whole[1], cut[1]} & {414, 431}  # how much came at once decides which bound is met first
    assert whole == cut or sizes, f"{cut} instead of {whole}"
    for ours, theirs in zip(whole[0], _by_h11(data), strict=False):
        assert (ours[0], ours[2], ours[6]) == theirs, f"to h11 {ours} is {theirs}"
    for method, version, target, *_ in whole[0]:
        assert method in METHODS
        assert version in ("1.0", "1.1")
        assert b"\n" not in target  # type: ignore[operator]


def _by_h11(data: bytes) -> Iterator[tuple[str, bytes, bytes]]:
    """Method, target and body of the requests as another parser takes them, as far as it takes them."""
    connection = h11.Connection(h11.SERVER, max_incomplete_event_size=1 << 16)
    connection.receive_data(data)
    with contextlib.suppress(h11.ProtocolError):
        while True:
            request, body = connection.next_event(), b""
            if not isinstance(request, h11.Request):
                return
            while isinstance(event := connection.next_event(), h11.Data):
                body += event.data
            if not isinstance(event, h11.EndOfMessage):
                return
            yield request.method.decode(), request.target, body
            if connection.their_state is not h11.DONE:
                return
            connection.send(h11.Response(status_code=200, headers=[("content-length", "0")]))
            connection.send(h11.EndOfMessage())
            connection.start_next_cycle()


def _read(pieces: list[bytes]) -> Requests:
    parser = RequestParser(Limits(head_bytes=1000, headers=16, request_line_bytes=300))
    found: list[tuple[object, ...]] = []
    fresh = True
    for piece in pieces:
        while piece:
            if fresh and not (piece := piece.lstrip(b"\r\n")):  # as the connection does
                break
            fresh = False
            try:
                piece = parser.feed(piece)
            except BadRequest as error:
                return found, error.status
            if parser.complete:
                head = (parser.method, parser.version, parser.target, parser.path, parser.query, parser.headers)
                found.append((*head, b"".join(parser.body), parser.keep_alive, parser.upgrade))
                if parser.upgrade or not parser.keep_alive:
                    return found, 0
                parser.next()
                fresh = True
    return found, 0


HTTP = Target(
    "http",
    "nothing: what comes is answered or cut off, the next is answered, nothing is an error in the log, nothing stays",
    _http,
    _requests,
    (
        b"\r\n\r\n",
        b"\r\n",
        b"Transfer-Encoding: chunked\r\n",
        b"Content-Length: 5\r\n",
        b"Expect: 100-continue\r\n",
        b"Connection: close\r\n",
        b"Upgrade: websocket\r\n",
        b"HTTP/1.0",
        b"HTTP/1.1",
        b"GET http://u:p@[::1]:0/live HTTP/1.1",
        b"/v1/models/",
        b"%00",
        b"%ff",
        b"X-Request-Id: a\r\n",
        b"X-Request-Timeout: 1e999\r\n",
        b"X-Request-Priority: 5\r\n",
        b"multipart/form-data; boundary=",
        b'"stream":true,',
        b'"n":128,',
        b'"messages":',
        b"data:audio/wav;base64,",
        b"null",
        b"1e999",
        b"\\ud800",
    ),
)

PARSER = Target("http-parser", "BadRequest", plain(_parsed), _requests, HTTP.words)

WEBSOCKET = Target(
    "websocket",
    "nothing: frames are answered as RFC 6455 says, the next request is answered, nothing stays",
    _websocket,
    _sockets,
    (
        b"\xce\xba",
        b"\xed\xa0\x80",
        b"\xf4\x90\x80\x80",
        b"\xf0\x9f",
        b"\x88\x02\x03\xe8",
        b"\x89\x00",
        b"\x00\x00",
        b"\x80\x00",
    ),
)

TARGETS = (HTTP, WEBSOCKET, PARSER)
