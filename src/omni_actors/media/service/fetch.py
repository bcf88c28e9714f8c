"""Fetching of media by a client's URL, without giving the client access to the server's network.

A fetch runs in the serving process, in the task of the request: a trio task waits for a slow server at no cost, ends
with its client and has a deadline. A blocking call in the media process would need a thread that cannot be cancelled.
Pieces of bytes pass through the serving process to the media process unread, like the pieces of an upload.

Guarantees, for each hop of a redirection anew:

- the scheme is http or https, and the URL carries no credentials;
- this module resolves the name, checks every resolved address (:mod:`omni_actors.media.addresses`), and connects to a
  checked address, so that a name that resolves differently the next time (DNS rebinding) gains nothing;
- no proxy, cookie or environment variable is used; certificates are verified for the name in the URL;
- the answer is a success with a fitting content type and no content coding, its size and all the time are bounded.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from urllib.parse import quote, urljoin, urlsplit

import h11
import trio

from omni_actors.media.addresses import Address, AllowList, carried, is_public, parse
from omni_actors.media.limits import Limits
from omni_actors.protocol.errors import OmniError, invalid_request, overloaded
from omni_actors.version import __version__

MAX_REDIRECTS = 5
CONNECT_S = 5.0
"""Seconds for a connection to each address of a name in turn."""

_READ = 64 << 10
_MAX_HEAD = 64 << 10
_MAX_HINTS = 8
"""The number of interim responses, such as "103 Early Hints", before the final one."""
_REDIRECTS = (301, 302, 303, 307, 308)
_PORTS = {"http": 80, "https": 443}
_TYPES = {
    "image": ("image/",),
    "audio": ("audio/", "video/", "application/ogg", "application/mp4"),
    "video": ("video/", "application/ogg", "application/mp4"),
}
_ANY = ("application/octet-stream", "binary/octet-stream")
"""Content types of servers that do not know the type."""
_URL_CHARACTERS = "!#$%&'()*+,/:;=?@[]~"

Resolve = Callable[[str, int], Awaitable[list[str]]]
"""A function that returns the addresses of a name. Raises :class:`OSError` or :class:`UnicodeError`."""


@dataclass(frozen=True, slots=True)
class _Target:
    tls: bool
    host: str
    port: int
    authority: str
    path: str


class Download:
    """A successful response: its content type, and its body in pieces, to be read once and within the fetch."""

    def __init__(self, fetcher: Fetcher, hop: _Hop, content_type: str | None, param: str) -> None:
        self._fetcher = fetcher
        self._hop = hop
        self._param = param
        self.content_type = content_type
        self.size = 0

    @property
    def pieces(self) -> AsyncIterator[bytes]:
        return self

    def __aiter__(self) -> Download:
        return self

    async def __anext__(self) -> bytes:
        event = await self._hop.next()
        if not isinstance(event, h11.Data):
            raise StopAsyncIteration
        self.size += len(event.data)
        self._fetcher.totals["bytes"] += len(event.data)
        self._fetcher.check_size(self.size, self._param)
        return bytes(event.data)


class Fetcher:
    """A fetcher of URLs within ``limits``. ``resolver`` and ``tls`` are the system's unless given.

    Raises :class:`ValueError` for a malformed allow-list.
    """

    def __init__(self, limits: Limits, *, resolver: Resolve | None = None, tls: ssl.SSLContext | None = None) -> None:
        self._limits = limits
        self._allowed = AllowList(limits.allowed_hosts)
        self._resolve = resolver or self._system
        self._tls = tls
        self._slots = trio.CapacityLimiter(limits.max_fetches)
        # A resolver's thread cannot be stopped, only left: slow names must not use up the threads of everybody else.
        self._threads = trio.CapacityLimiter(limits.max_fetches)
        self.totals = dict.fromkeys(("fetched", "refused", "failed", "bytes"), 0)
        """The numbers of fetches by result, and the bytes received. Fetches left by their clients are not counted."""

    @asynccontextmanager
    async def open(self, url: str, modality: str, param: str) -> AsyncIterator[Download]:
        """Open the file behind a URL. Leaving the block closes the connection.

        All the time in the block counts towards ``limits.fetch_s``. Raises :class:`OmniError`: 400 with ``param`` for a
        URL that may not be fetched or gives no medium of the modality, 429 when all fetches were busy for that time.
        """
        begun = False
        try:
            with trio.fail_after(self._limits.fetch_s):
                async with self._slots:
                    begun = True
                    hop, response = await self._follow(url, param)
                    async with hop:
                        yield Download(self, hop, self._content_type(response, modality, param), param)
            self.totals["fetched"] += 1
        except trio.TooSlowError:
            self.totals["failed"] += 1
            if not begun:
                raise overloaded(f"{self._limits.max_fetches} URLs are being fetched already.") from None
            raise _unusable(f"it took longer than {self._limits.fetch_s:g} s to fetch", param, "url_timeout") from None
        except OmniError as error:
            self._count(error)
            raise

    def check(self, url: str, param: str) -> None:
        """Raise 400 for a URL that is certain not to be fetched: because fetching is off, because of the URL's form, or
        because of an address in the URL. Resolves no name and makes no connection."""
        try:
            self._check_allowed(param)
            target = _target(url, param)
            try:
                address = parse(target.host)
            except ValueError:  # a name, which has to be looked up
                return
            self._check_address(target, address, param)
        except OmniError as error:
            self._count(error)
            raise

    def check_size(self, size: int, param: str) -> None:
        if size > self._limits.max_blob_bytes:
            raise _unusable(f"it gives more than {self._limits.max_blob_bytes >> 20} MiB", param, "url_too_large")

    async def _follow(self, url: str, param: str) -> tuple[_Hop, h11.Response]:
        """Follow up to :data:`MAX_REDIRECTS` redirections, each checked like the first URL, and return the last
        response."""
        self._check_allowed(param)
        for _ in range(MAX_REDIRECTS + 1):
            target = _target(url, param)
            hop = await self._connect(target, param)
            try:
                response = await hop.ask(target)
                if response.status_code not in _REDIRECTS:
                    return hop, response
                location = _header(response, b"location")
                if location is None:
                    raise _unusable("it redirects to nowhere", param, "url_unreachable")
                try:
                    url = urljoin(url, location)
                except ValueError:  # "http://[" is one
                    raise _unusable("it redirects to something that is not a URL", param, "invalid_url") from None
            except BaseException:
                hop.close()
                raise
            hop.close()
        raise _unusable(f"it redirects more than {MAX_REDIRECTS} times", param, "url_unreachable")

    async def _connect(self, target: _Target, param: str) -> _Hop:
        for address in await self._addresses(target, param):
            with trio.move_on_after(CONNECT_S):
                try:
                    stream = await _dial(address, target.port)
                except OSError:
                    continue
                if not target.tls:
                    return _Hop(stream, stream, param)
                secure = trio.SSLStream(stream, self._context(), server_hostname=target.host, https_compatible=True)
                try:
                    await secure.do_handshake()
                except (trio.BrokenResourceError, ssl.SSLError):
                    stream.socket.close()
                    raise _unusable("its server has no valid certificate for it", param, "url_unreachable") from None
                except BaseException:
                    stream.socket.close()
                    raise
                return _Hop(secure, stream, param)
        raise _unusable("its server cannot be reached", param, "url_unreachable")

    def _check_allowed(self, param: str) -> None:
        if not self._limits.fetch_urls:
            raise _unusable("this server fetches no URLs; send the data itself", param, "url_refused")

    def _check_address(self, target: _Target, address: Address, param: str) -> None:
        if self._allowed.host(target.host):
            return
        trusted = self._allowed.address(address) or self._allowed.address(carried(address))
        if not trusted and not is_public(address):
            raise _unusable("its address is not public", param, "url_refused")

    def _count(self, error: OmniError) -> None:
        self.totals["refused" if error.info.code == "url_refused" else "failed"] += 1

    async def _addresses(self, target: _Target, param: str) -> list[str]:
        """Resolve a name, and check that every address may be connected to."""
        try:
            found = await self._resolve(target.host, target.port)
        except (OSError, UnicodeError):
            raise _unusable("its host name does not resolve", param, "url_unreachable") from None
        for address in map(parse, found):
            self._check_address(target, address, param)
        return found

    async def _system(self, host: str, port: int) -> list[str]:
        call = partial(socket.getaddrinfo, host, port, type=socket.SOCK_STREAM)
        found = await trio.to_thread.run_sync(call, abandon_on_cancel=True, limiter=self._threads)
        return list(dict.fromkeys(str(address[0]) for *_, address in found))

    def _context(self) -> ssl.SSLContext:
        if self._tls is None:
            self._tls = ssl.create_default_context()
        return self._tls

    def _content_type(self, response: h11.Response, modality: str, param: str) -> str | None:
        if not 200 <= response.status_code < 300 or response.status_code == 206:
            raise _unusable(f"its server answers with status {response.status_code}", param, "url_unreachable")
        if (_header(response, b"content-encoding") or "identity") != "identity":
            raise _unusable("its server compresses the content although it was not asked to", param, "url_unreachable")
        length = _header(response, b"content-length")
        if length is not None:
            self.check_size(int(length), param)
        declared = _header(response, b"content-type")
        kind = (declared or "").partition(";")[0].strip().lower()
        if kind and kind not in _ANY and not kind.startswith(_TYPES[modality]):
            raise _unusable(f"it gives {kind[:60]!r}, not {modality}", param, "url_wrong_type")
        return declared


class _Hop:
    """One connection for one HTTP request, closed by ``async with``."""

    def __init__(self, stream: trio.abc.Stream, transport: trio.SocketStream, param: str) -> None:
        self._stream = stream
        self._transport = transport
        self._param = param
        self._http = h11.Connection(h11.CLIENT, max_incomplete_event_size=_MAX_HEAD)

    async def __aenter__(self) -> _Hop:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection at once, without a TLS shutdown."""
        self._transport.socket.close()

    async def ask(self, target: _Target) -> h11.Response:
        request = h11.Request(
            method="GET",
            target=target.path,
            headers=[
                ("Host", target.authority),
                ("User-Agent", f"omni-actors/{__version__}"),
                ("Accept", "*/*"),
                ("Accept-Encoding", "identity"),
                ("Connection", "close"),
            ],
        )
        data = (self._http.send(request) or b"") + (self._http.send(h11.EndOfMessage()) or b"")
        try:
            await self._stream.send_all(data)
        except trio.BrokenResourceError:
            raise self._broken() from None
        for _ in range(_MAX_HINTS + 1):
            if isinstance(event := await self.next(), h11.Response):
                return event
        raise self._broken()

    async def next(self) -> h11.Event | type[h11.PAUSED]:
        """Return the next event of the response.

        Always a checkpoint: one read may hold thousands of events, if a server sends its body in chunks of a byte.
        """
        read = False
        while True:
            try:
                event = self._http.next_event()
                if event is h11.NEED_DATA:
                    self._http.receive_data(bytes(await self._stream.receive_some(_READ)))
                    read = True
                    continue
            except (h11.RemoteProtocolError, trio.BrokenResourceError):
                raise self._broken() from None
            if not read:
                await trio.lowlevel.checkpoint()
            return event  # type: ignore[return-value]

    def _broken(self) -> OmniError:
        return _unusable("its server breaks off or does not speak HTTP", self._param, "url_unreachable")


async def _dial(address: str, port: int) -> trio.SocketStream:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    sock = trio.socket.socket(family, socket.SOCK_STREAM)
    try:
        await sock.connect((address, port))
    except BaseException:
        sock.close()
        raise
    return trio.SocketStream(sock)


def _target(url: str, param: str) -> _Target:
    if any(character <= " " or character in "\\\x7f" for character in url):
        raise _unusable("it has characters that no URL has", param, "invalid_url")
    try:
        parts = urlsplit(url)
        port = parts.port
        host = parts.hostname or ""
        if not host.isascii():
            host = host.encode("idna").decode()
    except (ValueError, UnicodeError):
        raise _unusable("it is not a valid URL", param, "invalid_url") from None
    if any(character <= " " for character in host):  # IDNA makes plain blanks of wide ones
        raise _unusable("it is not a valid URL", param, "invalid_url")
    if parts.scheme not in _PORTS or not host:
        raise _unusable("only http and https URLs are fetched", param, "invalid_url")
    if "@" in parts.netloc:
        raise _unusable("it carries credentials", param, "invalid_url")
    shown = f"[{host}]" if ":" in host else host
    return _Target(
        tls=parts.scheme == "https",
        host=host,
        port=port or _PORTS[parts.scheme],
        authority=shown if port in (None, _PORTS[parts.scheme]) else f"{shown}:{port}",
        path=quote(parts.path or "/", _URL_CHARACTERS)
        + (f"?{quote(parts.query, _URL_CHARACTERS)}" if parts.query else ""),
    )


def _header(response: h11.Response, name: bytes) -> str | None:
    return next((value.decode("latin-1") for key, value in response.headers if key == name), None)


def _unusable(reason: str, param: str, code: str) -> OmniError:
    return invalid_request(f"The URL cannot be used: {reason}.", param, code)
