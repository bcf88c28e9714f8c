"""HTTP/1.1 on the wire: what is understood, what is refused, and how an answer is framed."""

from __future__ import annotations

import contextlib
import itertools

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.entrypoints.server.door import PLAIN, echo, opened, request, until, until_end

from omni_actors.entrypoints.server import Exchange, Limits
from omni_actors.entrypoints.server.errors import BadRequest
from omni_actors.entrypoints.server.parser import STEPS, RequestParser

CHUNKED = b"POST /c HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
CHUNKS = b"3;note=1\r\nabc\r\n4\r\n\r\n\r\n\r\n1\r\nd\r\n0\r\nTrailer: 1\r\n\r\n"
"""A body with an empty line in it, an extension and a trailer."""

STREAM = (
    request("/one?a=b")
    + request("/two", b"x\r\n\r\ny")
    + CHUNKED
    + CHUNKS
    + request("/four", b"", "Upgrade: h2c", "Connection: Upgrade, HTTP2-Settings")
    + request("/five", b"12345", "Upgrade: h2c", "Connection: Upgrade, HTTP2-Settings")
    + CHUNKED.replace(b"Host", b"Connection: Upgrade\r\nUpgrade: h2c\r\nHost")
    + CHUNKS
    + request("/seven%20%C3%A9", None, "Connection: close")
)
SEEN = [
    (b"/one?a=b", b""),
    (b"/two", b"x\r\n\r\ny"),
    (b"/c", b"abc\r\n\r\nd"),
    (b"/four", b""),
    (b"/five", b"12345"),
    (b"/c", b"abc\r\n\r\nd"),
    (b"/seven%20%C3%A9", b""),
]


def parsed(pieces: list[bytes]) -> list[tuple[bytes, bytes]]:
    """What a parser sees in a stream that comes in these pieces."""
    parser = RequestParser(Limits())
    seen, body = [], b""
    for piece in pieces:
        data = piece
        while data:
            data = parser.feed(data)
            body += b"".join(parser.body)
            parser.body.clear()
            if parser.complete:
                seen.append((parser.target, body))
                body = b""
                parser.next()
    return seen


@settings(max_examples=300, deadline=None)
@given(st.lists(st.integers(0, len(STREAM))))
def test_requests_are_the_same_however_their_bytes_are_cut(cuts: list[int]) -> None:
    places = [0, *sorted(cuts), len(STREAM)]
    assert parsed([STREAM[a:b] for a, b in itertools.pairwise(places)]) == SEEN


def test_byte_by_byte() -> None:
    assert parsed([STREAM[at : at + 1] for at in range(len(STREAM))]) == SEEN


@pytest.mark.parametrize("version", [b"1.0", b"1.1"])
def test_a_refused_upgrade_leaves_an_ordinary_request(version: bytes) -> None:
    asked = request("/x", b"abc", "Upgrade: h2c", "Connection: Upgrade")
    parser = RequestParser(Limits())
    parser.feed(asked.replace(b"POST", b"PUT").replace(b"HTTP/1.1", b"HTTP/" + version))
    assert (parser.method, parser.version, parser.body) == ("PUT", version.decode(), [b"abc"])


def test_a_body_that_is_much_work_is_parsed_in_steps() -> None:
    """Every fourth byte of it could be the end. It takes no longer for that than its length says, and others may run in
    between."""
    parser = RequestParser(Limits())
    parser.feed(CHUNKED)
    rest, seen, steps = b"10000\r\n" + b"\r\n" * 0x8000 + b"\r\n0\r\n\r\nrest", b"", 0
    while not parser.complete:
        rest = parser.feed(rest)
        seen += b"".join(parser.body)
        parser.body.clear()
        steps += 1
    assert seen == b"\r\n" * 0x8000
    assert rest == b"rest"
    assert steps == 0x4000 // STEPS + 1


@settings(max_examples=500, deadline=None)
@given(st.binary(max_size=200), st.integers(0, len(STREAM)), st.integers(0, 40))
def test_damaged_requests_are_refused_or_read(noise: bytes, at: int, gone: int) -> None:
    """Nothing but :class:`BadRequest` comes out of the parser."""
    data = STREAM[:at] + noise + STREAM[at + gone :]
    with contextlib.suppress(BadRequest):
        parsed([data])


async def test_pipelined_requests_are_answered_in_their_order() -> None:
    async with opened() as door:
        answer = await door.say(STREAM)
        bodies = [
            b"GET /one ?a=b ",
            b"POST /two ? x\r\n\r\ny",
            b"POST /c ? abc\r\n\r\nd",
            b"POST /four ? ",
            b"POST /five ? 12345",
            b"POST /c ? abc\r\n\r\nd",
            "GET /seven é ? ".encode(),
        ]
        assert answer.count(b"HTTP/1.1 200 OK\r\n") == len(bodies)
        at = 0
        for body in bodies:
            at = answer.index(b"\r\n\r\n" + body, at) + 1
        await door.closed("done")


async def test_keep_alive_in_both_versions() -> None:
    async with opened() as door, await door.connect() as stream:
        for _ in range(3):
            await stream.send_all(request("/a"))
            assert b"connection" not in (await until(stream, b"GET /a ? ")).lower()
        await stream.send_all(b"GET /b HTTP/1.0\r\nConnection: keep-alive\r\n\r\n")
        assert b"connection: keep-alive\r\n" in await until(stream, b"GET /b ? ")
        await stream.send_all(b"GET /c HTTP/1.0\r\n\r\n")
        answer = await until_end(stream)
        assert b"connection: close\r\n" in answer
        assert answer.endswith(b"GET /c ? ")


async def test_an_empty_line_between_requests_is_no_request() -> None:
    async with opened(limits=Limits(head_s=0.2)) as door, await door.connect() as stream:
        await stream.send_all(request("/a") + b"\r\n")
        await until(stream, b"GET /a ? ")
        await trio.sleep(0.3)  # longer than a head may take
        await stream.send_all(b"\r\n" + request("/b"))
        await until(stream, b"GET /b ? ")


async def test_a_client_that_expects_100_continue_gets_it_when_the_body_is_read() -> None:
    async with opened() as door, await door.connect() as stream:
        whole = request("/a", b"body", "Expect: 100-continue")
        await stream.send_all(whole[:-4])
        assert await until(stream, b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        await stream.send_all(b"body")
        await until(stream, b"POST /a ? body")
        await stream.send_all(whole)  # it has not waited: nothing is said
        assert (await until(stream, b"POST /a ? body")).startswith(b"HTTP/1.1 200 ")
        await stream.send_all(whole[:-4].replace(b"HTTP/1.1", b"HTTP/1.0"))  # does not know of it
        await trio.sleep(0.05)
        await stream.send_all(b"body")
        assert (await until_end(stream)).startswith(b"HTTP/1.1 200 ")


async def test_who_waits_for_a_go_ahead_and_is_refused_is_not_waited_for() -> None:
    async def refuse(exchange: Exchange) -> None:
        await exchange.respond(413, PLAIN, b"no")

    async with opened(refuse) as door:
        answer = await door.say(request("/a", b"body", "Expect: 100-continue")[:-4], seconds=1)
        assert answer.startswith(b"HTTP/1.1 413 ")
        assert b"connection: close\r\n" in answer


SMUGGLED = b"GET /smuggled HTTP/1.1\r\nHost: x\r\n\r\n"
HOST = b"Host: x\r\n"
REFUSED = {
    "length and chunks": b"POST / HTTP/1.1\r\n%bContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "chunks and length": b"POST / HTTP/1.1\r\n%bTransfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n0\r\n\r\n",
    "two lengths": b"POST / HTTP/1.1\r\n%bContent-Length: 3\r\nContent-Length: 4\r\n\r\nabcd",
    "the same length twice": b"POST / HTTP/1.1\r\n%bContent-Length: 3\r\nContent-Length: 3\r\n\r\nabc",
    "a list of lengths": b"POST / HTTP/1.1\r\n%bContent-Length: 3, 3\r\n\r\nabc",
    "a signed length": b"POST / HTTP/1.1\r\n%bContent-Length: +3\r\n\r\nabc",
    "a negative length": b"POST / HTTP/1.1\r\n%bContent-Length: -3\r\n\r\nabc",
    "no length": b"POST / HTTP/1.1\r\n%bContent-Length: \r\n\r\nabc",
    "a length beyond any": b"POST / HTTP/1.1\r\n%bContent-Length: 99999999999999999999999\r\n\r\nabc",
    "a space before the colon": b"POST / HTTP/1.1\r\n%bContent-Length : 3\r\n\r\nabc",
    "bare line feeds": b"GET / HTTP/1.1\n%b\n",
    "a bare line feed in a header": b"GET / HTTP/1.1\r\n%bA: b\nC: d\r\n\r\n",
    "a bare carriage return": b"GET / HTTP/1.1\r\n%bA: b\rC: d\r\n\r\n",
    "a folded line": b"GET / HTTP/1.1\r\n%bA: b\r\n c\r\n\r\n",
    "a line that begins with a space": b"GET / HTTP/1.1\r\n A: b\r\n%b\r\n",
    "a NUL": b"GET / HTTP/1.1\r\n%bA: \x00\r\n\r\n",
    "a header without a name": b"GET / HTTP/1.1\r\n%b: b\r\n\r\n",
    "a header without a colon": b"GET / HTTP/1.1\r\n%bA\r\n\r\n",
    "two hosts": b"GET / HTTP/1.1\r\n%bHost: y\r\n\r\n",
    "chunks in HTTP/1.0": b"POST / HTTP/1.0\r\n%bTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "chunks twice": b"POST / HTTP/1.1\r\n%bTransfer-Encoding: chunked, chunked\r\n\r\n0\r\n\r\n",
    "chunks that are not last": b"POST / HTTP/1.1\r\n%bTransfer-Encoding: chunked, gzip\r\n\r\n0\r\n\r\n",
    "a chunk of no size": b"POST / HTTP/1.1\r\n%bTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    "a chunk in hexadecimal C": b"POST / HTTP/1.1\r\n%bTransfer-Encoding: chunked\r\n\r\n0x1\r\na\r\n0\r\n\r\n",
    "a space behind a size": b"POST / HTTP/1.1\r\n%bTransfer-Encoding: chunked\r\n\r\n1 \r\na\r\n0\r\n\r\n",
    "a chunk that is longer": b"POST / HTTP/1.1\r\n%bTransfer-Encoding: chunked\r\n\r\n1\r\nab\r\n0\r\n\r\n",
    "chunks with bare line feeds": b"POST / HTTP/1.1\r\n%bTransfer-Encoding: chunked\r\n\r\n1\na\n0\n\n",
    "a line feed in an extension": b"POST / HTTP/1.1\r\n%bTransfer-Encoding: chunked\r\n\r\n1;a\nb\r\na\r\n0\r\n\r\n",
    "a chunk beyond any": b"POST / HTTP/1.1\r\n%bTransfer-Encoding: chunked\r\n\r\n" + b"f" * 17 + b"\r\na",
    "a target that is not ASCII": b"GET /\xc3\xa9 HTTP/1.1\r\n%b\r\n",
    "no target": b"GET  HTTP/1.1\r\n%b\r\n",
    "a target that is half a URL": b"GET http://[::1 HTTP/1.1\r\n%b\r\n",
    "a method in small letters": b"get / HTTP/1.1\r\n%b\r\n",
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03%b" + bytes(500),
    "nothing": bytes(range(14, 256)) + b"%b",
}
OTHER = {
    "no version": (b"GET /\r\n\r\n", 505),
    "a newer version": (b"GET / HTTP/2.0\r\nHost: x\r\n\r\n", 505),
    "a method of another protocol": (b"SUBSCRIBE / HTTP/1.1\r\nHost: x\r\n\r\n", 501),
    "a tunnel": (b"CONNECT x:1 HTTP/1.1\r\nHost: x\r\n\r\n", 501),
    "an unknown coding": (b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", 501),
    "almost chunked": (b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: xchunked\r\n\r\n0\r\n\r\n", 501),
    "no host": (b"GET / HTTP/1.1\r\n\r\n", 400),
    "a preface of HTTP/2": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400),
}


@pytest.mark.parametrize("what", REFUSED)
async def test_what_could_be_read_in_two_ways_is_refused(what: str) -> None:
    """With 400 at once, or, once the body is being read, too; and nothing behind it is taken for a request."""
    async with opened() as door:
        template = REFUSED[what]
        answer = await door.say(template.replace(b"%b", HOST) + SMUGGLED)
        assert answer.startswith(b"HTTP/1.1 400 "), answer
        assert answer.count(b"HTTP/1.1") == 1
        assert b"/smuggled" not in answer
        assert b'{"error":{"message":' in answer
        await door.closed("bad_request")


@pytest.mark.parametrize("what", OTHER)
async def test_what_is_not_spoken_here(what: str) -> None:
    data, status = OTHER[what]
    async with opened() as door:
        answer = await door.say(data + SMUGGLED)
        assert answer.startswith(b"HTTP/1.1 %d " % status), answer
        assert answer.count(b"HTTP/1.1 ") == 1


async def test_sizes_of_a_head() -> None:
    limits = Limits(request_line_bytes=100, head_bytes=1000, headers=10)
    async with opened(limits=limits) as door:
        assert (await door.say(request("/" + "x" * 100))).startswith(b"HTTP/1.1 414 ")
        assert (await door.say(request("/", None, "A: " + "x" * 1000))).startswith(b"HTTP/1.1 431 ")
        assert (await door.say(request("/", None, *["A: b"] * 10))).startswith(b"HTTP/1.1 431 ")
        assert (await door.say(request("/", None, *["A: b"] * 8, "Connection: close"))).startswith(b"HTTP/1.1 200 ")
        # Without an end, too, and whatever frames a body without being one.
        assert (await door.say(b"GET /" + b"x" * 2000)).startswith(b"HTTP/1.1 414 ")
        assert (await door.say(b"GET / HTTP/1.1\r\nHost: x\r\nA: " + b"x" * 2000)).startswith(b"HTTP/1.1 431 ")
        many = b"1;" + b"x" * 500 + b"\r\na\r\n"  # each with a byte of data
        for framing in (b"1;" + b"x" * 2000, b"1\r\na\r\n0\r\nT: " + b"x" * 200_000, many * 20):
            assert (await door.say(CHUNKED, framing)).startswith(b"HTTP/1.1 431 ")
        await door.closed("bad_request", 7)


async def test_head_and_no_content_have_no_body() -> None:
    async def answer(exchange: Exchange) -> None:
        if exchange.path == "/none":
            await exchange.respond(204, [], b"")
        elif exchange.path == "/stream":
            await exchange.start(200, PLAIN)
            await exchange.write(b"part")
            await exchange.finish()
        else:
            await exchange.respond(200, PLAIN, b"hello")

    async with opened(answer) as door, await door.connect() as stream:
        for path in ("/", "/stream"):
            await stream.send_all(request(path, method="HEAD"))
            head = await until(stream, b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 200 ")
            assert (b"content-length: 5\r\n" in head) == (path == "/")
        await stream.send_all(request("/none"))
        head = await until(stream, b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 204 ")
        assert b"content-length" not in head
        await stream.send_all(request("/"))
        await until(stream, b"\r\n\r\nhello")


async def test_a_streamed_answer_in_both_versions() -> None:
    async def answer(exchange: Exchange) -> None:
        await exchange.start(200, PLAIN, b"one ")
        await exchange.write(b"")
        await exchange.write(b"two ")
        await exchange.finish(b"three")

    async with opened(answer) as door:
        async with await door.connect() as stream:
            await stream.send_all(request() * 2)
            answer_ = await until(stream, b"0\r\n\r\n")
            body = b"\r\n\r\n4\r\none \r\n4\r\ntwo \r\n5\r\nthree\r\n0\r\n\r\n"
            while answer_.count(body) < 2:
                answer_ += await until(stream, b"0\r\n\r\n")
            assert answer_.count(b"transfer-encoding: chunked\r\n") == 2
        plain = await door.say(b"GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n")
        assert plain.endswith(b"\r\n\r\none two three")
        assert b"connection: close\r\n" in plain


async def test_an_answer_of_announced_length() -> None:
    async def answer(exchange: Exchange) -> None:
        await exchange.start(200, [(b"Content-Length", b"6")])
        await exchange.write(b"abc")
        await exchange.finish(b"def" if exchange.path == "/whole" else b"d")

    async with opened(answer) as door, await door.connect() as stream:
        await stream.send_all(request("/whole"))
        await until(stream, b"\r\n\r\nabcdef")
        await stream.send_all(request("/short"))
        assert (await until_end(stream)).endswith(b"\r\n\r\nabc")
        await door.closed("unfinished")


@pytest.mark.parametrize("ending", [b"\r\n", b"\n", b"\r"])
async def test_a_header_cannot_carry_another(ending: bytes) -> None:
    async def answer(exchange: Exchange) -> None:
        await exchange.respond(200, [(b"x-echo", b"a" + ending + b"set-cookie: b")], b"")

    async with opened(answer) as door:
        said = await door.say(request("/", None, "Connection: close"))
        assert said.startswith(b"HTTP/1.1 500 ")
        assert b"set-cookie" not in said


async def test_targets_in_every_form() -> None:
    async with opened(echo) as door:
        for target, seen in (
            ("http://other/a%2Fb?q=%20", b"/a/b ?q=%20 "),
            ("/a?b?c", b"/a ?b?c "),
            ("/a#f", b"/a ? "),
            ("/%ff", "/\ufffd ? ".encode()),
        ):
            assert (await door.say(request(target, None, "Connection: close"))).endswith(b"GET " + seen)
        assert (await door.say(request("*", None, "Connection: close", method="OPTIONS"))).endswith(b"OPTIONS * ? ")
