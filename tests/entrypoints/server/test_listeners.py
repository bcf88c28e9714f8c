"""Where clients connect, and what happens when there are too many of them."""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import socket
import stat
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
from tests.entrypoints.server.door import (
    PLAIN,
    App,
    Door,
    Watched,
    forever,
    opened,
    request,
    reset,
    stream_forever,
    until,
    until_end,
)

from omni_actors.entrypoints.server import Exchange, Limits, addresses, hypercorn, serve
from omni_actors.entrypoints.server.acceptor import RESERVED, possible_connections
from omni_actors.entrypoints.server.listeners import INHERITED

ONCE = request("/", None, "Connection: close")


async def asked(door: Door) -> trio.SocketStream:
    """A connection that has been served, and is idle now."""
    stream = await door.connect()
    await stream.send_all(request())
    await until(stream, b"GET / ? ")
    return stream


async def test_a_connection_too_many_takes_the_place_of_the_idlest() -> None:
    async with opened(limits=Limits(connections=3)) as door:
        first, second, third = [await asked(door) for _ in range(3)]
        await first.send_all(request())
        await until(first, b"GET / ? ")  # the second is the idlest now
        assert (await door.say(ONCE)).startswith(b"HTTP/1.1 200 ")
        await door.closed("shed")
        assert await until_end(second) == b""
        for stream in (first, third):
            await stream.send_all(request())
            await until(stream, b"GET / ? ")
        for stream in (first, second, third):
            await stream.aclose()


async def test_without_an_idle_one_the_next_waits() -> None:
    watched = Watched(forever)
    async with opened(watched, limits=Limits(connections=1)) as door:
        busy = await door.connect()
        await busy.send_all(request())
        with trio.fail_after(5):
            await watched.begun.wait()
        next_one = await door.connect()  # the kernel has it
        watched.begun = trio.Event()
        await next_one.send_all(request())
        with trio.move_on_after(0.2):
            await watched.begun.wait()
            raise AssertionError("let in")
        assert door.value("http_accepting_paused_total", cause="connections") == 1
        await busy.aclose()
        with trio.fail_after(5):
            await watched.begun.wait()
        await next_one.aclose()


async def test_slow_heads_keep_no_client_out() -> None:
    """The one that has been at it for longest makes way; who is being answered does not."""
    watched = Watched(forever)

    async def app(exchange: Exchange) -> None:
        await (watched(exchange) if exchange.path == "/busy" else App().http(exchange))

    async with opened(app, limits=Limits(connections=3)) as door:
        busy, first, second = [await door.connect() for _ in range(3)]
        await busy.send_all(request("/busy"))
        with trio.fail_after(5):
            await watched.begun.wait()
        for stream in (first, second):
            await stream.send_all(request()[:10])
            await trio.sleep(0.02)
        assert (await door.say(ONCE)).startswith(b"HTTP/1.1 200 ")
        await door.closed("shed")
        assert await until_end(first) == b""
        await second.send_all(request()[10:])
        await until(second, b"GET / ? ")
        assert not watched.cancelled.is_set()
        for stream in (busy, first, second):
            await stream.aclose()


async def test_who_has_just_come_does_not_make_way_for_slow_heads() -> None:
    """Nor who asks again on a connection that was idle for long: it counts from the head's begin."""
    async with opened(limits=Limits(connections=3)) as door:
        kept, *slow = [await door.connect() for _ in range(3)]
        await kept.send_all(request())
        await until(kept, b"GET / ? ")
        for stream in slow:
            await stream.send_all(request()[:10])
            await trio.sleep(0.02)
        await kept.send_all(request()[:10])
        await trio.sleep(0.02)
        fresh = await door.connect()
        await door.closed("shed")
        last = await door.connect()
        await door.closed("shed", 2)
        for stream in slow:
            assert await until_end(stream) == b""
        for stream, rest in ((kept, request()[10:]), (fresh, request()), (last, request())):
            await stream.send_all(rest)
            await until(stream, b"GET / ? ")
            await stream.aclose()


async def test_a_connection_that_becomes_idle_makes_way_for_a_waiting_one() -> None:
    go_on = trio.Event()

    async def app(exchange: Exchange) -> None:
        await go_on.wait()
        await exchange.respond(200, PLAIN, b"done")

    async with opened(app, limits=Limits(connections=1)) as door, await door.connect() as first:
        await first.send_all(request())
        while not door.value("http_connections_open"):
            await trio.sleep(0.002)
        async with await door.connect() as second:
            await second.send_all(ONCE)
            while not door.value("http_accepting_paused_total", cause="connections"):
                await trio.sleep(0.002)
            go_on.set()
            assert (await until_end(first)).endswith(b"done")
            assert (await until_end(second)).endswith(b"done")
        await door.closed("shed")
        assert door.value("http_accepting_paused_total", cause="connections") == 1


async def test_one_address_may_have_so_many() -> None:
    async with opened(limits=Limits(connections_per_client=2)) as door:
        first, second = await asked(door), await asked(door)
        with contextlib.suppress(trio.BrokenResourceError):
            assert await door.say(request()) == b""
        await door.closed("too_many")
        await first.aclose()
        await door.closed("done")
        assert (await door.say(ONCE)).startswith(b"HTTP/1.1 200 ")
        await second.aclose()


@contextmanager
def no_descriptors() -> Iterator[None]:
    """The process can open none more."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    filler = [os.open(os.devnull, os.O_RDONLY)]
    while len(os.listdir("/proc/self/fd")) - 1 <= filler[-1]:  # (the listing has one of its own)
        filler.append(os.open(os.devnull, os.O_RDONLY))
    resource.setrlimit(resource.RLIMIT_NOFILE, (filler[-1] + 1, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for number in filler:
            os.close(number)


async def test_without_descriptors_the_idle_ones_go_and_the_server_lives(caplog: pytest.LogCaptureFixture) -> None:
    watched = Watched(stream_forever)

    async def app(exchange: object) -> None:
        await (watched(exchange) if exchange.path == "/stream" else App().http(exchange))  # type: ignore[attr-defined, arg-type]

    async with opened(app) as door:
        idle = [await asked(door) for _ in range(3)]
        busy = await door.connect()
        await busy.send_all(request("/stream"))
        with trio.fail_after(5):
            await watched.begun.wait()
        sockets = [trio.socket.socket() for _ in range(20)]
        with no_descriptors():
            for client in sockets:
                await client.connect(door.address)
                await client.send(ONCE)
            await door.closed("shed", 3)
            for client in sockets:  # one after the other, as there is room
                with trio.fail_after(5):
                    assert (await client.recv(65536)).startswith(b"HTTP/1.1 200 ")
        for client in sockets:
            client.close()
        assert door.value("http_accepting_paused_total", cause="descriptors") >= 1
        assert not watched.cancelled.is_set()
        for stream in (*idle, busy):
            await stream.aclose()
        assert (await door.say(ONCE)).startswith(b"HTTP/1.1 200 ")
    assert len([record for record in caplog.records if "accepting pauses" in record.getMessage()]) < 5


@pytest.mark.parametrize("descriptors", [64, 256, 300, 600])
async def test_few_descriptors_are_shared_by_halves_and_many_but_for_the_reserve(descriptors: int) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (descriptors, hard))
    try:
        assert possible_connections(4096) == descriptors - min(RESERVED, descriptors // 2)
        assert possible_connections(10) == 10
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def served_by(door: Door) -> Iterator[tuple[bool, dict[int, int]]]:
    """Whether it is kept alive, and its options of TCP, of each socket that speaks for the server's address."""
    for name in os.listdir("/proc/self/fd"):
        try:
            found = socket.socket(fileno=os.dup(int(name)))
        except OSError:
            continue
        with found:
            if found.family == socket.AF_INET and found.getsockname() == door.address:
                options = {option: found.getsockopt(socket.IPPROTO_TCP, option) for option in INHERITED}
                yield bool(found.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)), options


async def test_connections_have_their_listeners_options() -> None:
    async with opened() as door, await door.connect():
        with trio.fail_after(5):
            while not door.value("http_connections_open"):
                await trio.sleep(0.002)
        theirs = list(served_by(door))
        assert [options for _, options in theirs] == [INHERITED] * 2  # the listener and the connection
        assert all(kept_alive for kept_alive, _ in theirs)


VANISHES = """
import socket, subprocess, trio
from omni_actors.entrypoints.server import listeners
from tests.entrypoints.server.door import PLAIN, Watched, opened, request

async def drip(exchange):
    await exchange.start(200, PLAIN)
    while True:
        await exchange.write(b"word ")
        await trio.sleep(0.05)

async def main():
    watched = Watched(drip)
    async with opened(watched) as door:
        stream = await door.connect()
        await stream.send_all(request())
        await stream.receive_some()
        subprocess.run(["ip", "link", "set", "lo", "down"], check=True)
        with trio.fail_after(20):
            await watched.cancelled.wait()

subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
listeners.INHERITED[socket.TCP_USER_TIMEOUT] = 500
trio.run(main)
"""


def test_a_client_that_vanishes_in_the_middle_of_a_slow_answer_is_found_out() -> None:
    """Without a word, and long before what it does not take fills a buffer. Its time is 0.5 s here, not two minutes."""
    own_network = ["unshare", "--map-root-user", "--net"]
    try:
        subprocess.run([*own_network, "ip", "link"], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("no network of one's own on this machine")
    done = subprocess.run([*own_network, sys.executable, "-c", VANISHES], capture_output=True, text=True, timeout=50)
    assert done.returncode == 0, done.stderr


async def test_a_limit_over_the_kernels_patience_is_kept() -> None:
    async with opened(limits=Limits(write_s=300)) as door, await door.connect() as stream:
        await stream.send_all(request())
        await until(stream, b"GET / ? ")
        assert sorted(options[socket.TCP_USER_TIMEOUT] for _, options in served_by(door)) == [
            INHERITED[socket.TCP_USER_TIMEOUT],
            300_000,
        ]


async def test_a_limit_over_the_kernels_maximum_is_capped() -> None:
    async with opened(limits=Limits(write_s=1e9)) as door, await door.connect() as stream:
        await stream.send_all(request())
        await until(stream, b"GET / ? ")
        assert 2**31 - 1 in [options[socket.TCP_USER_TIMEOUT] for _, options in served_by(door)]


async def test_clients_that_are_gone_before_they_are_accepted() -> None:
    async with opened() as door:
        for _ in range(100):
            with socket.socket() as client:
                client.setblocking(False)
                client.connect_ex(door.address)
        for _ in range(20):
            reset(await door.connect())
        assert (await door.say(ONCE)).startswith(b"HTTP/1.1 200 ")
        await door.settled()


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost"])
async def test_it_listens_on_every_address_of_a_name(host: str) -> None:
    async with trio.open_nursery() as nursery:
        urls = await nursery.start(partial(serve, App(), host, 0))
        assert len({url.rpartition(":")[2] for url in urls}) == 1
        for url in urls:
            door = Door(url, metrics=None)  # type: ignore[arg-type]
            assert (await door.say(ONCE)).startswith(b"HTTP/1.1 200 ")
        nursery.cancel_scope.cancel()


def family_of(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET


def has(host: str) -> bool:
    """Whether this machine has such an address."""
    with socket.socket(family_of(host)) as probe:
        try:
            probe.bind((host, 0))
        except OSError:
            return False
        return True


@asynccontextmanager
async def listening(
    hosts: Sequence[str], server: Callable[..., Awaitable[None]] = serve, app: Any = None, port: int = 0
) -> AsyncIterator[list[str]]:
    async with trio.open_nursery() as nursery:
        yield await nursery.start(partial(server, app or App(), hosts, port))
        nursery.cancel_scope.cancel()


async def ask(host: str, url: str) -> bytes:
    async with await trio.open_tcp_stream(host, int(url.rpartition(":")[2])) as stream:
        await stream.send_all(ONCE)
        return await until_end(stream)


async def peer(scope: Any, receive: Any, send: Any) -> None:
    """An ASGI application that answers with its client's address."""
    if scope["type"] == "lifespan":
        raise NotImplementedError
    await send({"type": "http.response.start", "status": 200, "headers": [(b"connection", b"close")]})
    await send({"type": "http.response.body", "body": repr((scope["client"][0], scope["server"][0])).encode()})


@pytest.mark.skipif(not has("::1"), reason="no IPv6 on this machine")
@pytest.mark.parametrize("server", [serve, hypercorn.serve])
async def test_the_ipv6_wildcard_takes_both_families(server: Callable[..., Awaitable[None]]) -> None:
    """On one port, also a free one; an IPv4 client is known by its IPv4 address."""
    async with listening(["::"], server, peer) as urls:
        port = urls[0].rpartition(":")[2]
        assert urls == [f"http://[::]:{port}", f"http://0.0.0.0:{port}"]
        assert b"('127.0.0.1', " in await ask("127.0.0.1", urls[0])
        assert b"('::1', " in await ask("::1", urls[0])


async def test_without_ipv6_its_wildcard_takes_ipv4(monkeypatch: pytest.MonkeyPatch) -> None:
    bound = addresses._bound

    def bound_by_ipv4(address: addresses.Address, *rest: Any) -> socket.socket:
        if address.family == socket.AF_INET6:
            raise OSError(errno.EAFNOSUPPORT, os.strerror(errno.EAFNOSUPPORT))
        return bound(address, *rest)

    monkeypatch.setattr(addresses, "_bound", bound_by_ipv4)
    for hosts in (["::1"], ["127.0.0.1", "::1"]):
        with pytest.raises(OSError, match="not supported"):
            addresses.bind(addresses.resolve(hosts, 0))
    (listener,) = addresses.bind(addresses.resolve(["::"], 0))
    with listener:
        assert listener.getsockname()[0] == "0.0.0.0"


@pytest.mark.parametrize(
    ("hosts", "listened_on"),
    [
        (["127.0.0.1", "127.0.0.2"], ["127.0.0.1", "127.0.0.2"]),
        (["127.0.0.1", "localhost", "127.0.0.1"], ["127.0.0.1"]),
        (["127.0.0.1", "0.0.0.0"], ["0.0.0.0"]),
        (["0.0.0.0", "::"], ["0.0.0.0", "[::]"]),
        (["::", "::1", "127.0.0.1"], ["[::]", "0.0.0.0"]),
        (["::ffff:127.0.0.1"], ["127.0.0.1"]),
    ],
)
async def test_several_hosts_are_listened_on_once_each(hosts: list[str], listened_on: list[str]) -> None:
    if not has("::1"):
        listened_on = [it for it in listened_on if "::" not in it]
    async with listening(hosts) as urls:
        found = [url.removeprefix("http://").rpartition(":") for url in urls]
        assert [host for host, _, _ in found if host != "[::1]"] == listened_on  # localhost may be [::1] too
        assert len({port for _, _, port in found}) == 1
        assert (await ask("127.0.0.1", urls[0])).startswith(b"HTTP/1.1 200 ")


async def test_of_several_hosts_one_that_cannot_be_bound_is_named_and_none_is_served() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.2", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(OSError, match="in use") as caught:
            await serve(App(), ["127.0.0.1", "127.0.0.2"], port)
    assert caught.value.filename == f"127.0.0.2:{port}"
    for host in ("192.0.2.1", "", "a..b"):
        with pytest.raises(OSError) as caught:
            await serve(App(), ["127.0.0.1", host], port)
        assert caught.value.filename in (host, f"{host}:{port}")
    with socket.socket() as free:
        free.bind(("127.0.0.1", port))


async def test_a_port_that_is_free_at_one_address_only_is_no_free_port(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.2", 0))
        taken.listen()
        ports = iter([taken.getsockname()[1], 0])
        bound = addresses._bound

        def bound_there(address: addresses.Address, *rest: Any) -> socket.socket:
            return bound(address.at(next(ports, 0)) if address.name[1] == 0 else address, *rest)

        monkeypatch.setattr(addresses, "_bound", bound_there)
        opened = addresses.bind(addresses.resolve(["127.0.0.1", "127.0.0.2"], 0))
    found = {it.getsockname()[1] for it in opened}
    for listener in opened:
        listener.close()
    assert len(found) == 1


async def test_a_unix_socket(tmp_path: Path) -> None:
    """One that was left behind is replaced, one that is served is not, and none is left."""
    path = str(tmp_path / "door")
    with socket.socket(socket.AF_UNIX) as left_behind:
        left_behind.bind(path)
    async with opened(unix_path=path) as door:
        assert door.url == f"unix:{path}"
        for _ in range(2):
            async with await trio.open_unix_socket(path) as stream:
                await stream.send_all(ONCE)
                assert (await until_end(stream)).endswith(b"GET / ? ")
        with pytest.raises(OSError, match="in use"):
            await serve(App(), "", 0, unix_path=path)
        watched = await trio.open_unix_socket(path)
        await watched.send_all(request()[:-1])
        await watched.aclose()
        await door.settled()
        assert stat.S_ISSOCK(os.stat(path).st_mode)
        door.stop.set()
        with trio.fail_after(5):
            await door.over.wait()
        assert not os.path.exists(path)
    (tmp_path / "file").write_text("precious")
    with pytest.raises(OSError, match="in use"):
        await serve(App(), "", 0, unix_path=str(tmp_path / "file"))
    assert (tmp_path / "file").read_text() == "precious"
