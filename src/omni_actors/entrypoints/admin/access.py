"""Access to the admin routes: every path under ``/admin``, including routes of an embedder, and :data:`COMMANDS`.

The admin routes need an admin key (``Authorization: Bearer KEY``): one that the operator chose, or the key that the
server makes at its start and writes into a file of its user's (:mod:`omni_actors.entrypoints.admin.keyfile`). Over a
unix socket, the server's own user needs no key. A loopback address proves nothing, because a reverse proxy on the same
machine forwards everybody's requests from there. An API key does not open the admin routes.
"""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Mapping, Sequence
from urllib.parse import urlsplit

from omni_actors.entrypoints.http import RequestContext
from omni_actors.entrypoints.keys import Keys, bearer
from omni_actors.entrypoints.openai.errors import http_error
from omni_actors.entrypoints.server.addresses import plain
from omni_actors.protocol.errors import ErrorInfo

ROOT = "/admin"

COMMANDS = frozenset({"/v1/load_lora_adapter", "/v1/unload_lora_adapter"})
"""Further paths for operators, where vLLM has them."""

HOW = (
    "Send the admin key as 'Authorization: Bearer KEY'. It is the key of 'serve --admin-key' (OMNI_ACTORS_ADMIN_KEY), "
    "or the key in the file that the server's log names at its start; on the server's machine its own user's "
    "'omni-actors replicas' finds that by itself. Over a unix socket (serve --uds) this user needs no key."
)

_FOREIGN = (
    b"origin",
    b"forwarded",
    b"x-forwarded-for",
    b"x-forwarded-host",
    b"x-forwarded-proto",
    b"x-real-ip",
    b"via",
)
"""Headers of web pages and proxies."""

_FETCH_SITE = b"sec-fetch-site"
"""Header in which a browser gives a request's origin; ``none`` means that the user typed the address."""


def is_admin(path: str) -> bool:
    """Return whether a path, in the middleware's normal form, belongs to the admin routes."""
    return path == ROOT or path.startswith(f"{ROOT}/") or path in COMMANDS


class AdminAccess:
    """Decides about access to the admin routes of one server."""

    def __init__(self, admin_keys: Sequence[str], api_keys: Keys) -> None:
        self._admin = Keys(admin_keys)
        self._api = api_keys

    def refusal(self, context: RequestContext, headers: Mapping[bytes, bytes]) -> ErrorInfo | None:
        """Return the error that refuses an admin request, or ``None`` if the request is allowed.

        A missing or wrong admin key gives 401, an API key in its place 403.
        """
        given = bearer(headers)
        if self._admin.find(given) is not None:
            return None
        if self._api.find(given) is not None:
            message = f"An API key does not open the admin routes. {HOW}"
            return http_error(403, message, code="not_an_admin_key")
        if context.user is not None and context.user == os.geteuid():
            sign = _sign_of_a_proxy(context, headers)
            if sign is None:
                return None
            message = (
                f"The server's own user needs no admin key over a unix socket, but this request seems to come through "
                f"a proxy or from a web page ({sign}), so it needs one. {HOW}"
            )
            return http_error(401, message, code="admin_key_needed")
        if given is None:
            return http_error(401, f"The admin routes need an admin key. {HOW}", code="admin_key_needed")
        return http_error(401, f"This is not an admin key of this server. {HOW}", code="invalid_admin_key")


def _sign_of_a_proxy(context: RequestContext, headers: Mapping[bytes, bytes]) -> str | None:
    """Return the sign that somebody other than the peer may have made a request, or ``None``.

    A proxy that hides itself (HTTP/1.1, no extra header, ``Host: localhost``) leaves no sign.
    """
    for name in _FOREIGN:
        if name in headers:
            return f"it has the header {name.decode().title()}"
    if headers.get(_FETCH_SITE, b"none") != b"none":
        return "it has the header Sec-Fetch-Site"
    if context.http_version == "1.0":
        return "it is HTTP/1.0, as nginx speaks it to its upstream"
    if not _names_this_machine(headers.get(b"host", b"")):
        return "its Host is not localhost or a loopback address"
    return None


def _names_this_machine(host: bytes) -> bool:
    """Return whether a Host header is ``localhost`` or a loopback address."""
    try:
        name = urlsplit(f"//{host.decode('latin-1')}").hostname
    except ValueError:
        return False
    return name == "localhost" or is_loopback(name)


def is_loopback(host: str | None) -> bool:
    """Return whether a host is written as a loopback address, mapped ones (``::ffff:127.0.0.1``) included."""
    try:
        return ipaddress.ip_address(plain(host or "")).is_loopback
    except ValueError:
        return False
