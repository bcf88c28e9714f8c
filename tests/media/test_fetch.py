"""What a client names by URL: fetched when it is public and behaves, and never a way to anything else."""

from __future__ import annotations

import shutil
import ssl
import subprocess
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import pytest
import trio
from tests.media.web import moved, ok, web

from omni_actors.media.addresses import AllowList, is_public, parse
from omni_actors.media.limits import Limits, read_limits
from omni_actors.media.service.fetch import MAX_REDIRECTS, Fetcher, _target
from omni_actors.protocol.errors import ErrorInfo, OmniError

BODY = b"bytes of an image " * 1000


def fetcher(resolver: Any = None, **limits: Any) -> Fetcher:
    """One that may connect to this machine, unless told otherwise."""
    return Fetcher(Limits(**{"allowed_hosts": ("127.0.0.1",), **limits}), resolver=resolver)


async def fetch(url: str, it: Fetcher | None = None, modality: str = "image") -> tuple[bytes, str | None]:
    async with (it or fetcher()).open(url, modality, "image_url.url") as file:
        return b"".join([piece async for piece in file.pieces]), file.content_type


async def refused(url: str, it: Fetcher | None = None, modality: str = "image") -> ErrorInfo:
    with pytest.raises(OmniError) as caught:
        await fetch(url, it, modality)
    info = caught.value.info
    assert (info.status, info.param) == (400, "image_url.url")
    assert len(info.message) < 200
    return info


def names(**addresses: str | list[list[str]]) -> Callable[[str, int], Any]:
    """A resolver: a name's addresses, or those of each time it is asked in turn."""

    async def resolver(host: str, port: int) -> list[str]:
        await trio.lowlevel.checkpoint()
        found = addresses.get(host.replace(".", "_"))
        if found is None:
            raise OSError("unknown")
        return found.pop(0) if isinstance(found, list) else [found]

    return resolver


async def test_what_is_fetched_is_what_the_server_has() -> None:
    async with web(ok(BODY, "image/png; charset=x")) as server:
        assert await fetch(server.url("/a b.png?x=1&y=ä#top".replace(" ", "%20"))) == (BODY, "image/png; charset=x")
        (head,) = server.asked
        assert head.startswith("GET /a%20b.png?x=1&y=%C3%A4 HTTP/1.1\r\n")
        assert f"host: 127.0.0.1:{server.port}\r\n" in head.lower()
        assert "cookie" not in head.lower()


async def test_bodies_without_a_length_are_read_to_their_end() -> None:
    async def chunked(stream: trio.SocketStream, path: str) -> None:
        await stream.send_all(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        for at in range(0, len(BODY), 1000):
            piece = BODY[at : at + 1000]
            await stream.send_all(f"{len(piece):x}\r\n".encode() + piece + b"\r\n")
        await stream.send_all(b"0\r\n\r\n")

    async with web(chunked) as server:
        assert (await fetch(server.url()))[0] == BODY
    async with web(b"HTTP/1.0 200 OK\r\nContent-Type: image/png\r\n\r\n" + BODY) as server:
        assert (await fetch(server.url()))[0] == BODY
    async with web(b"HTTP/1.1 103 Early Hints\r\n\r\n" + ok(BODY)) as server:
        assert (await fetch(server.url()))[0] == BODY


# Where it may lead.

NOT_PUBLIC = [
    "0.0.0.0", "0.1.2.3", "10.0.0.1", "100.64.0.1", "100.100.100.200", "127.0.0.1", "127.255.255.254",
    "169.254.169.254", "169.254.170.2", "172.16.0.1", "172.31.255.255", "192.0.0.192", "192.0.2.1", "192.88.99.1",
    "192.168.1.1", "198.18.0.1", "198.51.100.1", "203.0.113.1", "224.0.0.1", "239.255.255.255", "240.0.0.1",
    "255.255.255.255", "168.63.129.16", "::", "::1", "::ffff:127.0.0.1", "::ffff:169.254.169.254", "::127.0.0.1",
    "fe80::1", "fe80::1%eth0", "fec0::1", "fc00::1", "fd00:ec2::254", "ff02::1", "64:ff9b::7f00:1",
    "64:ff9b::a9fe:a9fe", "64:ff9b:1::1", "100::1", "2001::1", "2001:db8::1", "2001:20::1", "2002:7f00:1::1",
    "2002:a9fe:a9fe::", "2002:c0a8:101::1", "3fff::1", "5f00::1",
]  # fmt: skip
PUBLIC = [
    "1.1.1.1", "8.8.8.8", "93.184.215.14", "172.32.0.1", "192.0.1.1", "100.63.255.255", "100.128.0.1", "169.253.0.1",
    "223.255.255.255", "2606:4700::1111", "2a00:1450:4001::1", "::ffff:8.8.8.8", "64:ff9b::808:808",
    "2002:808:808::1",
]  # fmt: skip


@pytest.mark.parametrize("address", NOT_PUBLIC)
async def test_addresses_that_are_not_public_are_refused_by_number_and_by_name(address: str) -> None:
    assert not is_public(parse(address))
    it = Fetcher(Limits(), resolver=names(evil_example=address))
    assert (await refused("http://evil.example/x.png", it)).code == "url_refused"
    assert it.totals == {"fetched": 0, "refused": 1, "failed": 0, "bytes": 0}
    if "%" not in address:
        literal = f"[{address}]" if ":" in address else address
        assert (await refused(f"http://{literal}/x.png", Fetcher(Limits()))).code == "url_refused"


@pytest.mark.parametrize("address", PUBLIC)
def test_public_addresses_are_public(address: str) -> None:
    assert is_public(parse(address))


@pytest.mark.parametrize(
    "host",
    ["localhost", "LOCALHOST", "localhost.", "127.1", "0177.0.0.1", "0x7f.0.0.1", "2130706433", "0x7f000001", "0",
     "[::1]", "[::ffff:7f00:1]", "127.0.0.1.", "①②⑦.⓪.⓪.①", "ⓛocalhost"],
)  # fmt: skip
async def test_no_spelling_of_this_machine_gets_through(host: str) -> None:
    async with web(ok(BODY)) as server:
        info = await refused(server.url(host=host), Fetcher(Limits()))
        assert info.code in ("url_refused", "url_unreachable", "invalid_url")
        assert server.asked == []


async def test_one_bad_address_among_good_ones_is_enough() -> None:
    it = Fetcher(Limits(), resolver=names(both_example=[["8.8.8.8", "10.0.0.1"]]))
    assert (await refused("http://both.example/", it)).code == "url_refused"


async def test_a_name_that_resolves_differently_the_next_time_gains_nothing() -> None:
    """DNS rebinding: the address that was checked is the one that is connected to."""
    async with web(ok(BODY)) as server:
        resolver = names(rebind_example=[["127.0.0.1"], ["10.0.0.1"]])
        body, _ = await fetch(server.url(host="rebind.example"), fetcher(resolver))
        assert body == BODY
        assert f"host: rebind.example:{server.port}" in server.asked[0].lower()
        assert (await refused(server.url(host="rebind.example"), fetcher(resolver))).code == "url_refused"


@pytest.mark.parametrize(
    "target", ["http://10.0.0.1/", "http://169.254.169.254/latest/meta-data/", "http://[::1]/", "//10.0.0.1/x"]
)
async def test_a_redirection_is_checked_like_the_url_itself(target: str) -> None:
    async with web(moved(target)) as server:
        assert (await refused(server.url())).code == "url_refused"
        assert len(server.asked) == 1


@pytest.mark.parametrize(
    "target", ["file:///etc/passwd", "gopher://127.0.0.1/", "ftp://a/", "http://u:p@127.0.0.1/", "http://[", "//[zz]/"]
)
async def test_a_redirection_to_what_is_no_http_url_is_refused(target: str) -> None:
    async with web(moved(target)) as server:
        assert (await refused(server.url())).code == "invalid_url"


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_redirections_are_followed(status: int) -> None:
    async def answer(stream: trio.SocketStream, path: str) -> None:
        await stream.send_all(ok(BODY) if path == "/there/b.png" else moved("/there/b.png", status))

    async with web(answer) as server:
        assert (await fetch(server.url("/a.png")))[0] == BODY


async def test_redirections_are_bounded() -> None:
    async with web(moved("/again")) as server:
        assert (await refused(server.url())).code == "url_unreachable"
        assert len(server.asked) == MAX_REDIRECTS + 1
    async with web(b"HTTP/1.1 302 Found\r\nContent-Length: 0\r\n\r\n") as server:
        await refused(server.url())


@pytest.mark.parametrize(
    "url",
    [
        "file:///etc/passwd", "ftp://example.com/x", "gopher://example.com/", "javascript:alert(1)", "http://", "http:///x",
        "http://user@127.0.0.1/", "http://user:secret@127.0.0.1/", "http://127.0.0.1:99999/", "http://127.0.0.1:x/",
        "http://127.0.0.1/a b", "http://127.0.0.1/\r\nHost: other", "http://127.0.0.1\\@example.com/", "http://[::1/",
        "", "http://" + "a" * 70 + ".ä/",
    ],
)  # fmt: skip
async def test_what_is_no_http_url_is_refused(url: str) -> None:
    assert (await refused(url)).code == "invalid_url"


async def test_fetching_can_be_switched_off() -> None:
    async with web(ok(BODY)) as server:
        assert (await refused(server.url(), fetcher(fetch_urls=False))).code == "url_refused"
        assert server.asked == []


@pytest.mark.parametrize(
    ("entry", "host", "allowed"),
    [
        ("intranet.example", "intranet.example", True),
        ("intranet.example", "INTRANET.example.", True),
        ("intranet.example", "a.intranet.example", False),
        ("intranet.example", "evilintranet.example", False),
        ("*.intranet.example", "a.b.intranet.example", True),
        ("*.intranet.example", "intranet.example", False),
        ("127.0.0.0/8", "x.example", True),
        ("127.0.0.1", "x.example", True),
        ("10.0.0.0/8", "x.example", False),
    ],
)
async def test_an_operator_can_trust_hosts_and_networks(entry: str, host: str, allowed: bool) -> None:
    async def resolver(host: str, port: int) -> list[str]:
        return ["127.0.0.1"]

    it = fetcher(resolver, allowed_hosts=(entry,))
    async with web(ok(BODY)) as server:
        if allowed:
            assert (await fetch(server.url(host=host), it))[0] == BODY
        else:
            assert (await refused(server.url(host=host), it)).code == "url_refused"


@pytest.mark.parametrize("entry", ["", "*.", "10.0.0.0/99", "http://host/", "10.0.0.1/8", "a:b"])
def test_an_entry_of_the_allow_list_that_makes_no_sense_is_refused(entry: str) -> None:
    with pytest.raises(ValueError):
        AllowList([entry])
    with pytest.raises(OmniError, match="no host name"):
        read_limits({"allowed_hosts": [entry]})


# How its server behaves.

BAD_ANSWERS = {
    "not found": (b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n", "url_unreachable"),
    "an error": (b"HTTP/1.1 500 Oops\r\nContent-Length: 0\r\n\r\n", "url_unreachable"),
    "a part": (b"HTTP/1.1 206 Partial\r\nContent-Length: 1\r\n\r\nx", "url_unreachable"),
    "not HTTP": (b"SSH-2.0-OpenSSH_9.9\r\n", "url_unreachable"),
    "nothing": (b"", "url_unreachable"),
    "breaks off": (ok(BODY)[:-100], "url_unreachable"),
    "a web page": (ok(b"<html>", "text/html"), "url_wrong_type"),
    "sound": (ok(b"OggS", "audio/ogg"), "url_wrong_type"),
    "compressed": (ok(BODY, Content_Encoding="gzip"), "url_unreachable"),
    "endless header": (b"HTTP/1.1 200 OK\r\n" + b"X: " + bytes(b"a" * (1 << 20)), "url_unreachable"),
    "endless hints": (b"HTTP/1.1 103 Early Hints\r\n\r\n" * 50_000, "url_unreachable"),
    "two lengths": (b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nx", "url_unreachable"),
}


@pytest.mark.parametrize("name", BAD_ANSWERS)
async def test_an_answer_that_cannot_be_used_is_a_400(name: str) -> None:
    answer, code = BAD_ANSWERS[name]
    async with web(answer) as server:
        assert (await refused(server.url())).code == code


@pytest.mark.parametrize(
    ("modality", "kind"),
    [("image", "application/octet-stream"), ("image", None), ("audio", "audio/mpeg"), ("audio", "video/webm"),
     ("audio", "application/ogg"), ("video", "video/mp4"), ("video", "VIDEO/MP4; codecs=x")],
)  # fmt: skip
async def test_types_that_fit_are_taken(modality: str, kind: str | None) -> None:
    async with web(ok(BODY, kind)) as server:
        assert (await fetch(server.url(), modality=modality))[0] == BODY


async def test_too_much_is_refused_by_its_declared_and_by_its_real_size() -> None:
    async def endless(stream: trio.SocketStream, path: str) -> None:
        await stream.send_all(b"HTTP/1.1 200 OK\r\nContent-Type: image/png\r\n\r\n")
        while True:
            await stream.send_all(bytes(1 << 16))

    it = fetcher(max_blob_bytes=1 << 20)
    async with web(ok(bytes(2 << 20))) as server:
        assert (await refused(server.url(), it)).code == "url_too_large"
    before = it.totals["bytes"]
    async with web(endless) as server:
        assert (await refused(server.url(), it)).code == "url_too_large"
    assert it.totals["bytes"] - before < 2 << 20


async def test_a_body_in_crumbs_holds_nobody_up() -> None:
    """A read may bring ten thousand chunks of a byte."""
    crumbs = b"1\r\nx\r\n" * 20_000

    async def answer(stream: trio.SocketStream, path: str) -> None:
        head = b"HTTP/1.1 200 OK\r\nContent-Type: image/png\r\nTransfer-Encoding: chunked\r\n\r\n"
        await stream.send_all(head + crumbs + b"0\r\n\r\n")

    turns = 0

    async def neighbour() -> None:
        nonlocal turns
        while True:
            await trio.lowlevel.checkpoint()
            turns += 1

    async with web(answer) as server, trio.open_nursery() as nursery:
        nursery.start_soon(neighbour)
        assert (await fetch(server.url()))[0] == b"x" * 20_000
        nursery.cancel_scope.cancel()
    assert turns >= 20_000


async def _silent(stream: trio.SocketStream, path: str) -> None:
    await stream.receive_some()  # until the client leaves


async def _drips_head(stream: trio.SocketStream, path: str) -> None:
    for byte in b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 10_000:
        await stream.send_all(bytes([byte]))
        await trio.sleep(0.5)


async def _drips_body(stream: trio.SocketStream, path: str) -> None:
    await stream.send_all(b"HTTP/1.1 200 OK\r\nContent-Type: image/png\r\nContent-Length: 1000000\r\n\r\n")
    while True:
        await stream.send_all(b"x")
        await trio.sleep(0.5)


@pytest.mark.parametrize("answer", [_silent, _drips_head, _drips_body])
async def test_a_server_that_never_ends_is_left_in_time(answer: Any) -> None:
    async with web(answer) as server:
        began = trio.current_time()
        assert (await refused(server.url(), fetcher(fetch_s=0.3))).code == "url_timeout"
        assert trio.current_time() - began < 2
        with trio.fail_after(2):
            while server.open:
                await trio.sleep(0.01)


async def test_a_resolver_that_hangs_is_left_in_time(autojump_clock: trio.testing.MockClock) -> None:
    async def resolver(host: str, port: int) -> list[str]:
        await trio.sleep_forever()
        return []

    assert (await refused("http://slow.example/", fetcher(resolver, fetch_s=9.0))).code == "url_timeout"
    assert trio.current_time() == pytest.approx(9.0)


async def test_a_port_that_nobody_listens_on_is_a_400() -> None:
    async with web(b"") as server:
        pass
    assert (await refused(server.url())).code == "url_unreachable"
    assert (await refused("http://no-such-name.invalid/")).code == "url_unreachable"


async def test_a_cancelled_fetch_closes_its_connection() -> None:
    async with web(_drips_body) as server:
        with trio.move_on_after(0.2) as scope:
            await fetch(server.url())
        assert scope.cancelled_caught
        with trio.fail_after(2):
            while server.open:
                await trio.sleep(0.01)


async def test_more_than_may_run_at_once_wait() -> None:
    most = 0

    async def answer(stream: trio.SocketStream, path: str) -> None:
        nonlocal most
        most = max(most, server.open)
        await trio.sleep(0.02)
        await stream.send_all(ok(BODY))

    it = fetcher(max_fetches=3)
    async with web(answer) as server:
        async with trio.open_nursery() as nursery:
            for _ in range(10):
                nursery.start_soon(fetch, server.url(), it)
    assert most <= 3
    assert it.totals == {"fetched": 10, "refused": 0, "failed": 0, "bytes": 10 * len(BODY)}


async def test_one_that_has_no_turn_in_time_is_told_that_the_server_is_busy() -> None:
    it = fetcher(max_fetches=1, fetch_s=0.3)
    async with web(ok(BODY)) as server:
        # A fetch that goes on for longer: a real one would end by its own time a moment before this one's.
        await it._slots.acquire_on_behalf_of("another")
        with pytest.raises(OmniError) as caught:
            await fetch(server.url(), it)
        assert caught.value.info.status == 429
        assert server.asked == []
        it._slots.release_on_behalf_of("another")
        assert (await fetch(server.url(), it))[0] == BODY


async def test_proxies_of_the_environment_have_no_say(monkeypatch: pytest.MonkeyPatch) -> None:
    async with web(ok(BODY)) as server, web(ok(b"from the proxy")) as proxy:
        for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
            monkeypatch.setenv(name, proxy.url())
        assert (await fetch(server.url()))[0] == BODY
        assert proxy.asked == []


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A certificate for web.example, signed by itself, and its key."""
    if shutil.which("openssl") is None:
        pytest.skip("needs the openssl command")
    folder = tmp_path_factory.mktemp("tls")
    made, key = folder / "certificate.pem", folder / "key.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2",
         "-subj", "/CN=web.example", "-addext", "subjectAltName=DNS:web.example", "-keyout", key, "-out", made],
        check=True, capture_output=True, timeout=20,
    )  # fmt: skip
    return made, key


async def test_a_certificate_must_be_valid_for_the_name(certificate: tuple[Path, Path]) -> None:
    made, key = certificate
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(made, key)

    async def handle(stream: trio.SSLStream[trio.SocketStream]) -> None:
        with suppress(trio.BrokenResourceError):
            await stream.receive_some(4096)
            await stream.send_all(ok(BODY))
            await stream.aclose()

    trusting = ssl.create_default_context(cafile=made)
    resolver = names(web_example="127.0.0.1", other_example="127.0.0.1")
    limits = Limits(allowed_hosts=("127.0.0.1",))
    async with trio.open_nursery() as nursery:
        listeners = await trio.open_ssl_over_tcp_listeners(0, context, host="127.0.0.1", https_compatible=True)
        transport = cast(trio.SocketListener, listeners[0].transport_listener)
        port = transport.socket.getsockname()[1]
        nursery.start_soon(trio.serve_listeners, handle, listeners)
        trusted = Fetcher(limits, resolver=resolver, tls=trusting)
        assert (await fetch(f"https://web.example:{port}/a.png", trusted))[0] == BODY
        for url, it in (
            (f"https://other.example:{port}/a.png", trusted),
            (f"https://web.example:{port}/a.png", Fetcher(limits, resolver=resolver)),
        ):
            info = await refused(url, it)
            assert info.code == "url_unreachable"
            assert "certificate" in info.message
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("url", ["http://\u2002", "http://a\u3000b.example/"])
def test_wide_blanks_in_a_host_are_refused(url: str) -> None:
    with pytest.raises(OmniError) as caught:
        _target(url, "url")
    assert caught.value.info.code == "invalid_url"
