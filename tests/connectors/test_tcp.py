"""Faults that only a connection between machines must withstand: strangers, silence, changed bytes, a vanished peer."""

from __future__ import annotations

import logging
import secrets
import socket
import struct
import time
from collections.abc import Iterator

import numpy as np
import pytest
import xxhash

from omni_actors.connectors import listener as listening
from omni_actors.connectors.handshake import GREETING_BYTES, SECRET_BYTES, Accepting, Opening, Refused, link_of
from omni_actors.connectors.link import LinkClosed
from omni_actors.connectors.listener import MAX_CALLERS, Listener
from omni_actors.connectors.payload import Payload
from omni_actors.connectors.shared_memory import Arena
from omni_actors.connectors.tcp import MAX_PAYLOAD, SILENCE_S, TcpLink
from omni_actors.protocol.codec import FrameTooLarge, ProtocolError, encode
from omni_actors.protocol.frames import INLINE_LIMIT, PROTOCOL_VERSION, Ack, Chunk, Forget, SlabRef, TensorMeta, Wire
from omni_actors.protocol.frames import TcpEnd as End

from .ends import open_pair, send, take, wait

SECRET = bytes(range(SECRET_BYTES))


@pytest.fixture
def listener() -> Iterator[Listener]:
    it = Listener("127.0.0.1")
    yield it
    it.close()


@pytest.fixture
def inbox() -> Iterator[Arena]:
    it = Arena()
    yield it
    it.close()


# --- the handshake ---------------------------------------------------------------------------------------------------


def test_ends_with_one_secret_accept_each_other() -> None:
    opening = Opening(7, SECRET, 1)
    assert link_of(opening.greeting, 1) == 7
    accepting = Accepting(7, SECRET, opening.greeting)
    accepting.check(opening.answer(accepting.challenge))


def test_another_secret_is_refused_at_both_ends() -> None:
    opening = Opening(7, SECRET[:-1] + b"x", 1)
    accepting = Accepting(7, SECRET, opening.greeting)
    with pytest.raises(Refused):
        opening.answer(accepting.challenge)
    impostor = Accepting(7, SECRET[:-1] + b"x", opening.greeting)
    with pytest.raises(Refused):
        accepting.check(opening.answer(impostor.challenge))


@pytest.mark.parametrize("secret", [b"", SECRET[:-1], SECRET + b"\0"])
def test_a_secret_has_its_length(secret: bytes) -> None:
    """A shorter secret is weak, and to HMAC a key with zeros behind it is the same key."""
    with pytest.raises(ValueError, match="secret"):
        Opening(7, secret, 1)
    with pytest.raises(ValueError, match="secret"):
        Accepting(7, secret, bytes(GREETING_BYTES))


def test_an_answer_can_be_neither_repeated_nor_reflected_nor_used_for_another_link() -> None:
    first = Opening(7, SECRET, 1)
    accepting = Accepting(7, SECRET, first.greeting)
    proof = first.answer(accepting.challenge)
    with pytest.raises(Refused):  # the same words to the same end a second time
        Accepting(7, SECRET, first.greeting).check(proof)
    with pytest.raises(Refused):  # what the accepting end said of itself
        accepting.check(accepting.challenge[32:])
    with pytest.raises(Refused):  # another link of the same secret
        first.answer(Accepting(8, SECRET, first.greeting).challenge)


@pytest.mark.parametrize(
    "greeting", [b"GET / HTTP/1.1\r\n".ljust(GREETING_BYTES, b" "), Opening(7, SECRET, 2).greeting], ids=["http", "2"]
)
def test_another_protocol_or_version_is_refused(greeting: bytes) -> None:
    with pytest.raises(Refused):
        link_of(greeting, 1)


# --- who is let in ---------------------------------------------------------------------------------------------------


def call(listener: Listener, data: bytes = b"") -> socket.socket:
    """Return a connection whose greeting the listener has read."""
    sock = socket.create_connection(listener.address, timeout=5)
    sock.sendall(data)
    for _ in range(2 if data else 1):
        wait(listener)
        assert listener.serve() == []
    return sock


def hung_up(sock: socket.socket) -> bool:
    try:
        return sock.recv(1 << 10) == b""
    except ConnectionResetError:
        return True


def authenticate(listener: Listener, link: TcpLink) -> socket.socket:
    """Serve until the listener gives the socket of the other end."""
    for _ in range(100):
        wait(link, listener)
        link.flush()
        link.receive()
        if made := listener.serve():
            ((id, sock),) = made
            assert id == link.id
            return sock
    raise AssertionError("the link was not opened")


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\n".ljust(GREETING_BYTES),
        bytes(GREETING_BYTES),
        Opening(1, SECRET, PROTOCOL_VERSION + 1).greeting,
    ],
    ids=["http", "zeros", "version"],
)
def test_a_stranger_is_dropped_and_the_right_caller_let_in(data: bytes, listener: Listener, inbox: Arena) -> None:
    listener.expect(1, SECRET)
    with call(listener, data) as stranger:
        assert hung_up(stranger)
    link = TcpLink.open(1, "b", listener.address, SECRET, inbox)
    authenticate(listener, link).close()
    link.close()


def test_a_caller_without_the_secret_learns_nothing_and_keeps_no_other_out(listener: Listener, inbox: Arena) -> None:
    listener.expect(1, SECRET)
    wrong = Opening(1, secrets.token_bytes(SECRET_BYTES), PROTOCOL_VERSION)
    with call(listener, wrong.greeting) as stranger:
        challenge = stranger.recv(64)
        with pytest.raises(Refused):
            wrong.answer(challenge)
        stranger.sendall(bytes(32))
        wait(listener)
        assert listener.serve() == []
        assert hung_up(stranger)
    assert listener.expects(1)
    link = TcpLink.open(1, "b", listener.address, SECRET, inbox)
    authenticate(listener, link).close()
    assert not listener.expects(1)
    link.close()


def test_the_opening_end_refuses_a_stranger_at_the_port(inbox: Arena) -> None:
    """Another process took the port of a worker that died."""
    with socket.create_server(("127.0.0.1", 0)) as impostor:
        link = TcpLink.open(1, "b", impostor.getsockname(), SECRET, inbox)
        link.send_ack(Ack(1, 2, 3))
        wait(link)
        link.flush()
        with impostor.accept()[0] as theirs:
            assert len(theirs.recv(1 << 10)) == GREETING_BYTES
            theirs.sendall(bytes(64))
            wait(link)
            with pytest.raises(LinkClosed):
                link.receive()
            link.close()
            assert hung_up(theirs), "nothing was said to it"


def test_a_caller_that_comes_before_it_is_expected_waits(listener: Listener, inbox: Arena) -> None:
    link = TcpLink.open(1, "b", listener.address, SECRET, inbox)
    for _ in range(2):
        wait(link, listener)
        link.flush()
        assert listener.serve() == []
    listener.expect(1, SECRET)
    authenticate(listener, link).close()
    link.close()


def test_of_two_callers_with_the_secret_the_first_is_let_in(listener: Listener, inbox: Arena) -> None:
    listener.expect(1, SECRET)
    links = [TcpLink.open(1, "b", listener.address, SECRET, inbox) for _ in range(2)]
    made = []
    with pytest.raises(LinkClosed):
        for _ in range(100):
            wait(*links, listener)
            for link in links:
                link.flush()
                link.receive()
            made += listener.serve()
    assert [id for id, _ in made] == [1]
    made[0][1].close()
    for link in links:
        link.close()


def test_silent_callers_are_dropped_and_bounded(listener: Listener, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listening, "CONNECT_S", 0.2)
    listener.expect(1, SECRET)
    callers = []
    for _ in range(MAX_CALLERS + 3):
        callers.append(call(listener))
    assert len(listener._callers) == MAX_CALLERS
    assert all(hung_up(sock) for sock in callers[:3]), "the oldest made room"
    assert listener.deadline is not None
    time.sleep(max(0.0, listener.deadline + 0.25 - time.monotonic()))
    assert listener.overdue() == [1], "nobody called for it"
    assert not listener._callers
    assert listener.deadline is None
    assert all(hung_up(sock) for sock in callers[3:])
    for sock in callers:
        sock.close()


def test_secrets_are_never_shown(listener: Listener, inbox: Arena, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    secret = b"a secret of 32 bytes, in letters"
    listener.expect(1, secret)
    with call(listener, Opening(1, SECRET, PROTOCOL_VERSION).greeting) as stranger:
        stranger.sendall(bytes(32))
        wait(listener)
        listener.serve()
    assert "proved" in caplog.text
    wire = Wire(1, "x", End(secret, ("127.0.0.1", 1)))
    shown = [caplog.text, repr(wire), str(wire.tcp), repr(listener._expected)]
    assert not any("letters" in text or secret.hex() in text for text in shown)


# --- what arrives ----------------------------------------------------------------------------------------------------


def raw(
    body: bytes, payload: bytes = b"", *, digest: int | None = None, claims: tuple[int, int] | None = None
) -> bytes:
    """Return a frame, with ``digest`` and ``claims`` (lengths) instead of the true ones."""
    length, size = claims or (len(body), len(payload))
    return struct.pack("<IIQ", length, size, digest or xxhash.xxh3_64_intdigest(body + payload)) + body + payload


METAS = (TensorMeta("a", "uint8", (20_000,), 0, 20_000),)
CHUNK = encode(Chunk(7, 0, 0, False, "x", {}, METAS))


@pytest.fixture
def victim(inbox: Arena) -> Iterator[tuple[socket.socket, TcpLink]]:
    """Return a link whose other end is this test, byte by byte."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        sock = socket.create_connection(server.getsockname())
        theirs, _ = server.accept()
    link = TcpLink(1, "b", theirs, inbox)
    with sock:
        yield sock, link
    link.close()
    assert inbox.used_bytes == 0


def test_any_cutting_of_the_stream_gives_the_same_messages(victim: tuple[socket.socket, TcpLink]) -> None:
    sock, link = victim
    payload = np.random.default_rng(0).integers(0, 255, 20_000, np.uint8).tobytes()
    stream = raw(encode(Ack(1, 2, 3))) + raw(CHUNK, payload) + raw(encode(Ack(4, 5, 6)))
    got: list[Chunk | Ack] = []
    for cut in (1, 15, 1, 30, 1, 1, 7000, 12_970, 1000):
        piece, stream = stream[:cut], stream[cut:]
        sock.sendall(piece)
        wait(link)
        got += link.receive()
    assert not stream
    assert [type(it) for it in got] == [Ack, Chunk, Ack]
    chunk = got[1]
    assert isinstance(chunk, Chunk)
    out = link.payload(chunk)
    assert out is not None
    assert out.tensors["a"].tobytes() == payload
    link.send_ack(Ack(7, 0, 1))


@pytest.mark.parametrize(
    "data",
    [
        raw(encode(Ack(1, 2, 3)), digest=1),
        raw(CHUNK, bytes(20_000), digest=1),
        raw(CHUNK[:-1] + b"\x01", bytes(20_000), digest=xxhash.xxh3_64_intdigest(CHUNK + bytes(20_000))),
        raw(b"", claims=(1 << 31, 0)),
        raw(CHUNK, claims=(len(CHUNK), MAX_PAYLOAD + 1)),
    ],
    ids=["message", "payload", "length", "oversize", "oversize payload"],
)
def test_changed_bytes_end_the_link(data: bytes, victim: tuple[socket.socket, TcpLink]) -> None:
    sock, link = victim
    sock.sendall(raw(encode(Ack(9, 9, 9))) + data)
    wait(link)
    got: list[Chunk | Ack] = []
    with pytest.raises(LinkClosed):
        for _ in range(10):
            got += link.receive()
    assert got in ([Ack(9, 9, 9)], []), "what came before it was whole"


def test_the_end_after_changed_bytes_is_seen_without_more_data(
    victim: tuple[socket.socket, TcpLink],
) -> None:
    """The other end waits for credits, say, and this end for its socket."""
    sock, link = victim
    sock.sendall(raw(encode(Ack(9, 9, 9))) + raw(encode(Ack(1, 2, 3)), digest=1))
    wait(link)
    assert link.receive() == [Ack(9, 9, 9)]
    wait(link)
    with pytest.raises(LinkClosed):
        link.receive()
    assert hung_up(sock)


@pytest.mark.parametrize(
    "data",
    [
        raw(b"\xc1"),
        raw(encode(Forget((1,)))),
        raw(encode(Ack(1, 2, 3)), bytes(20_000)),
        raw(CHUNK),
        raw(CHUNK, bytes(19_999)),
        raw(encode(Chunk(7, 0, 0, False, "x", {})), bytes(20_000)),
        raw(encode(Chunk(7, 0, 0, False, "x", {}, METAS, None, SlabRef(0, 0, False))), bytes(20_000)),
        raw(encode(Chunk(7, 0, 0, False, "x", {}, METAS, bytes(20_000))), bytes(20_000)),
    ],
    ids=["garbage", "frame", "ack with payload", "no payload", "short", "no tensors", "slab", "twice"],
)
def test_a_whole_frame_without_meaning_is_a_protocol_error(data: bytes, victim: tuple[socket.socket, TcpLink]) -> None:
    sock, link = victim
    sock.sendall(data)
    with pytest.raises(ProtocolError):
        for _ in range(10):
            wait(link)
            link.receive()


@pytest.mark.parametrize(
    "meta",
    [
        TensorMeta("a", "object", (2500,), 0, 20_000),
        TensorMeta("a", "uint8", (30_000,), 0, 20_000),
        TensorMeta("a", "nonsense", (20_000,), 0, 20_000),
        TensorMeta("a", "uint8", (-1,), 0, 20_000),
    ],
)
def test_invalid_tensors_are_refused_and_their_memory_released(
    meta: TensorMeta, victim: tuple[socket.socket, TcpLink]
) -> None:
    sock, link = victim
    sock.sendall(raw(encode(Chunk(7, 0, 0, False, "x", {}, (meta,))), bytes(20_000)))
    wait(link)
    (chunk,) = link.receive()
    assert isinstance(chunk, Chunk)
    with pytest.raises((ValueError, TypeError)):
        link.payload(chunk)
    link.send_ack(Ack(7, 0, 1))


def test_memory_of_an_incomplete_payload_is_released_with_the_link(victim: tuple[socket.socket, TcpLink]) -> None:
    sock, link = victim
    sock.sendall(raw(CHUNK, bytes(20_000))[:-1])
    wait(link)
    assert link.receive() == []
    sock.close()
    with pytest.raises(LinkClosed):
        for _ in range(10):
            wait(link)
            link.receive()


def test_a_payload_over_the_bound_is_refused_before_it_is_sent(
    victim: tuple[socket.socket, TcpLink], inbox: Arena
) -> None:
    _, link = victim
    slot = inbox.allocate(INLINE_LIMIT + 1)
    huge = (TensorMeta("a", "uint8", (MAX_PAYLOAD + 1,), 0, MAX_PAYLOAD + 1),)
    with pytest.raises(FrameTooLarge):
        link.send_chunk(Chunk(7, 0, 0, False, "x", {}, huge), slot)
    assert not link.pending
    inbox.release(slot)


def test_the_inbox_reuses_acknowledged_memory() -> None:
    arena = Arena()
    with open_pair("tcp") as pair:
        consumer = pair[1]
        assert isinstance(consumer, TcpLink)
        for seq in range(50):
            send(pair[0], Payload("x", {}, {"a": np.full(1 << 20, seq, np.uint8)}), arena, seq)
            (chunk,) = take(pair)
            assert isinstance(chunk, Chunk)
            out = consumer.payload(chunk)
            assert out is not None
            assert (out.tensors["a"] == seq).all()
            consumer.send_ack(Ack(7, 0, seq + 1))
        assert consumer._inbox.used_bytes == 0
        assert consumer._inbox.bytes == 4 << 20
    arena.close()


def test_a_connection_that_is_refused_ends_the_link(inbox: Arena) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = server.getsockname()
    try:
        link = TcpLink.open(1, "b", address, SECRET, inbox)
    except ConnectionRefusedError:
        return  # so soon that there is no link
    link.send_ack(Ack(1, 2, 3))
    with pytest.raises(LinkClosed):
        for _ in range(10):
            wait(link)
            link.flush()
            link.receive()
    link.close()


def test_silence_is_noticed_by_the_kernel() -> None:
    with open_pair("tcp") as pair:
        for end in pair:
            with socket.fromfd(end.fileno(), socket.AF_INET, socket.SOCK_STREAM) as sock:
                assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
                assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == SILENCE_S * 1000
                assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) < SILENCE_S
