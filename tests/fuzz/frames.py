"""What processes say to each other. A worker is crash-only and may go mad: the serving process has to outlive whatever
it writes."""

from __future__ import annotations

import contextlib
import re
import socket
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import msgspec
import trio
import xxhash
from tests.fuzz.target import One, Target, chance, cuts, plain, silent

from omni_actors.actors.errors import ProtocolError as ActorProtocolError
from omni_actors.actors.remote import wire
from omni_actors.connectors import handshake, tcp
from omni_actors.connectors.link import LinkClosed
from omni_actors.connectors.packing import unpack
from omni_actors.connectors.shared_memory import Arena
from omni_actors.protocol.codec import ProtocolError, down_reader, frame, peer_reader, up_reader
from omni_actors.protocol.errors import ErrorInfo
from omni_actors.protocol.frames import (
    PROTOCOL_VERSION,
    Abort,
    Ack,
    Chunk,
    Fatal,
    Feed,
    Hello,
    Ledger,
    Ready,
    Reply,
    Step,
    Submit,
    TensorMeta,
    Unlinked,
    Welcome,
)
from omni_actors.protocol.request import MediaChunk, StageDone, StageFailed, TextDelta, Usage

READERS = (down_reader, up_reader, peer_reader)
_METAS = (TensorMeta("a", "float32", (2, 3), 0, 24), TensorMeta("b", "bfloat16", (4,), 64, 8))
_CHUNKS = (
    Chunk(1, 0, 0, False, "codes", {"a": 1}, _METAS, bytes(72)),
    Chunk(1, 0, 1, True, "", {}),
    Chunk(1, 0, 2, False, "text", {"text": "x"}),
)


def _whole_and_in_pieces(data: bytes) -> None:
    """The first byte chooses the reader. Cut differently, a stream gives the same messages and the same end."""
    kind, data = READERS[(data[0] if data else 0) % len(READERS)], data[1:]
    whole = _read(kind(), [data])
    assert _shown(whole) == _shown(_read(kind(), cuts(data))), "another cut, other messages"
    for message in whole[0]:
        again = kind().feed(frame(message))
        assert _shown(again) == _shown([message]), f"{message} came back as {again}"


def _shown(messages: object) -> str:
    """To be compared: NaN is not itself, and a raw value is shown by its address."""
    return re.sub(r" at 0x[0-9a-f]+", "", repr(messages))


def _read(reader: Any, pieces: list[bytes]) -> tuple[list[Any], bool]:
    messages: list[Any] = []
    try:
        for piece in pieces:
            messages += reader.feed(piece)
    except ProtocolError:
        return [], True  # what came with the error is lost, whatever the cut
    return [it for it in messages if _comparable(it)], False


def _comparable(message: Any) -> bool:
    return bool(message == message)


def _frame_seeds() -> list[bytes]:
    down = (
        Hello(version=1, stage="llm", replica=0, incarnation=1, engine="e:E", adapter="a:A", options={"a": 1}),
        Submit(1, "r", {"prompt": msgspec.Raw(b"\x81\xa1a\x01")}, ("text",), ((0, 1),), True),
        Feed(1, "text", "text", {"text": "a"}, False),
        Abort(1),
    )
    up = (
        Welcome(1, 2),
        Ready({"a": [1, 2.5, None]}, ("127.0.0.1", 1)),
        Fatal(ErrorInfo(message="x")),
        Reply(1, {"a": b"b"}),
        Step(
            [TextDelta(1, 0, "a", [1], "stop", None)],
            [MediaChunk(1, "audio", {"sample_rate": 1}, b"ab")],
            [StageDone(1, Usage())],
            [StageFailed(1, ErrorInfo(message="x"))],
            [1],
            [(1, 2)],
            [Ledger(1, 0, [1], b"x")],
        ),
        Unlinked(1, (2,)),
    )
    groups = (down, up, (*_CHUNKS, Ack(1, 0, 2)))
    return [bytes([kind]) + b"".join(map(frame, group)) for kind, group in enumerate(groups)]


def _actor(data: bytes) -> None:
    """An actor's channel: whole frames or a protocol error, then the end."""

    async def main() -> None:
        ours, theirs = socket.socketpair()
        with ours, theirs:
            ours.setblocking(False)
            channel = wire.FrameChannel(ours, (wire.DOWN if chance(data).random() < 0.5 else wire.UP).decode)
            for piece in cuts(data):
                theirs.sendall(piece)
            theirs.close()
            with trio.fail_after(10), contextlib.suppress(ActorProtocolError):
                while await channel.receive() is not None:
                    pass

    trio.run(main)


def _actor_seeds() -> list[bytes]:
    raw = msgspec.Raw(wire.encode({"a": 1}))
    sent = (
        wire.HelloFrame(1, "m:A", {"a": 1}, 8),
        wire.TellFrame(raw),
        wire.AskFrame(1, raw),
        wire.StartedFrame(1),
        wire.AnswerFrame(1, 1, raw),
        wire.CrashedFrame("ValueError", "x", "y"),
    )
    coded = [wire.encode(it) for it in sent]
    return [b"".join(len(it).to_bytes(4, "little") + it for it in coded), *(b"\x01\x00\x00\x00" + it for it in coded)]


@contextmanager
def _tcp() -> Iterator[One]:
    """A TCP link's end, behind the handshake. The first byte says whether the bytes are the wire's, or messages that
    get a right head and checksum."""
    with socket.create_server(("127.0.0.1", 0)) as listener, silent(tcp.log):

        def one(data: bytes) -> None:
            with socket.create_connection(listener.getsockname()) as theirs, closing(Arena()) as arena:
                sock, _ = listener.accept()
                link = tcp.TcpLink(1, "peer", sock, arena)
                try:
                    theirs.sendall(data[1:] if data[:1] < b"\x80" else _headed(data[1:]))
                    theirs.shutdown(socket.SHUT_WR)
                    _drain(link)
                finally:
                    link.close()

        yield one


def _drain(link: tcp.TcpLink) -> None:
    link._sock.settimeout(5)  # what was sent arrives; then comes the end
    with contextlib.suppress(LinkClosed, ProtocolError):
        while True:
            for message in link.receive():
                if isinstance(message, Chunk):
                    with contextlib.suppress(LookupError, ValueError, TypeError):
                        link.payload(message)
                    link.send_ack(Ack(message.key, message.edge, message.seq + 1))


def _headed(data: bytes) -> bytes:
    """One frame: the first two bytes say how much of it is message, the rest is payload."""
    size = int.from_bytes(data[:2], "little") % (len(data) + 1)
    message, payload = data[2 : 2 + size], data[2 + size :]
    digest = xxhash.xxh3_64(message)
    digest.update(payload)
    return tcp._HEADER.pack(len(message), len(payload), digest.intdigest()) + message + payload


def _tcp_seeds() -> list[bytes]:
    made = []
    for chunk in (*_CHUNKS, Ack(1, 0, 1)):
        body = msgspec.msgpack.encode(chunk)
        made.append(b"\xff" + len(body).to_bytes(2, "little") + body)
    far = msgspec.msgpack.encode(Chunk(1, 0, 0, False, "codes", {}, _METAS))
    made.append(b"\xff" + len(far).to_bytes(2, "little") + far + bytes(72))
    return [*made, b"\x00" + _headed(made[0][1:]) + _headed(made[3][1:])]


def _hands(data: bytes) -> None:
    """Every part of the handshake that the other end writes. None of it may pass."""
    secret = bytes(32)
    with contextlib.suppress(handshake.Refused):
        handshake.Opening(1, secret, PROTOCOL_VERSION).answer(data.ljust(handshake.CHALLENGE_BYTES)[:64])
        raise AssertionError("a challenge without the secret was accepted")
    greeting = data.ljust(handshake.GREETING_BYTES, b"\0")[: handshake.GREETING_BYTES]
    with contextlib.suppress(handshake.Refused):
        handshake.link_of(greeting, PROTOCOL_VERSION)
    with contextlib.suppress(handshake.Refused):
        handshake.Accepting(1, secret, greeting).check(data)
        raise AssertionError("a proof without the secret was accepted")


_TENSORS = msgspec.msgpack.Decoder(tuple[TensorMeta, ...])


def _payload(data: bytes) -> None:
    """Tensors' metadata as msgpack, then the bytes that they are to lie in."""
    size = int.from_bytes(data[:2], "little") % (len(data) + 1)
    with contextlib.suppress(LookupError, ValueError, TypeError):
        metas = _TENSORS.decode(data[2 : 2 + size])
        buffer = memoryview(data[2 + size :])
        found = unpack(Chunk(1, 0, 0, False, "codes", {}, metas), buffer)
        assert found is not None
        for meta in metas:
            tensor = found.tensors[meta.name]
            if [it.name for it in metas].count(meta.name) == 1:
                assert tensor.nbytes == meta.nbytes >= 0
                assert tensor.shape == meta.shape
            tensor.tobytes()


def _payload_seeds() -> list[bytes]:
    made = []
    for metas in (
        _METAS,
        _METAS[:1],
        (TensorMeta("a", "int64", (), 0, 8),),
        (TensorMeta("a", "f4,i4", (2,), 0, 16),),
        (TensorMeta("a", "S0", (2,), 0, 0), TensorMeta("b", "bool", (-1, -3), 1, 3)),
    ):
        coded = msgspec.msgpack.encode(metas)
        made.append(len(coded).to_bytes(2, "little") + coded + bytes(80))
    return made


_KINDS = (
    b"\xa7float32",
    b"\xa8bfloat16",
    b"\xa2S0",
    b"\xa2V0",
    b"\xa1O",
    b"\xa5f4,i4",
    b"\xa6(2,)f4",
    b"\xa5>U999",
    b"\xa2U0",
)

TARGETS = (
    Target(
        "frames", "ProtocolError", plain(_whole_and_in_pieces), _frame_seeds, (b"\x93\xa5chunk", b"\xc4\x04", b"\xc1")
    ),
    Target("actor-link", "ProtocolError", plain(_actor), _actor_seeds, (b"\x92\xa4tell", b"\xff\xff\xff\xff", b"\xc1")),
    Target(
        "tcp-link", "LinkClosed, ProtocolError; a payload LookupError, ValueError, TypeError", _tcp, _tcp_seeds, _KINDS
    ),
    Target("handshake", "Refused", plain(_hands), lambda: [bytes(64), b"omnilink\x01" + bytes(40)], (b"omnilink",)),
    Target("payload", "LookupError, ValueError, TypeError", plain(_payload), _payload_seeds, _KINDS),
)
