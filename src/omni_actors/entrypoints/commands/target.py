"""The address of a server, as commands take it: a URL, and optionally a unix socket that leads there."""

from __future__ import annotations

import functools
import socket
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import click
from click.core import ParameterSource

from omni_actors.entrypoints.server.addresses import authority


@dataclass(frozen=True, slots=True)
class Target:
    """A server's address, and the prefix of its paths."""

    host: str
    port: int
    tls: bool
    base: str = ""
    """The prefix: empty, or with a slash at its beginning and none at its end."""
    uds: str | None = None
    """A unix socket through which the server is reached; host and port are then only sent to it."""

    @classmethod
    def parse(cls, url: str, uds: str | None = None) -> Target:
        """Parse a URL. Raises :class:`ValueError` for anything but http(s)."""
        if url.startswith("unix:"):  # as 'serve' says where it is
            raise ValueError(f"a unix socket is --uds {url.removeprefix('unix:')}")
        parts = urlsplit(url if "://" in url else f"http://{url}")
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"{url!r} is not an http:// or https:// URL")
        if parts.username or parts.password or parts.query or parts.fragment:
            raise ValueError(f"{url!r} has more than a host, a port and a path")
        tls = parts.scheme == "https"
        return cls(parts.hostname, parts.port or (443 if tls else 80), tls, parts.path.rstrip("/"), uds)

    @property
    def authority(self) -> str:
        """Host and port in the form of a URL."""
        return authority(self.host, self.port)

    @property
    def root(self) -> str:
        """The prefix of paths outside of the API, such as ``/admin``: :attr:`base` without ``/v1``."""
        return self.base.removesuffix("/v1")

    def __str__(self) -> str:
        url = f"{'https' if self.tls else 'http'}://{self.authority}{self.base}"
        return url if self.uds is None else f"{url} on unix:{self.uds}"

    def connect(self, timeout_s: float) -> socket.socket:
        """Return a connected socket, which keeps the timeout. Raises ``OSError``."""
        if self.uds is None:
            connection = socket.create_connection((self.host, self.port), timeout_s)
        else:
            connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            if self.uds is not None:
                connection.settimeout(timeout_s)
                connection.connect(self.uds)
            if self.tls:
                return ssl.create_default_context().wrap_socket(connection, server_hostname=self.host)
        except BaseException:
            connection.close()
            raise
        return connection


def typed(context: click.Context, name: str) -> bool:
    """Return whether an option was given on the command line."""
    return context.get_parameter_source(name) is ParameterSource.COMMANDLINE


def check_one_address(context: click.Context) -> None:
    """Raise :class:`click.UsageError` if ``--uds`` is given together with an address that it would replace."""
    if typed(context, "unix_path"):
        for name, option in (("hosts", "--host"), ("port", "--port")):
            if typed(context, name):
                raise click.UsageError(f"--uds excludes {option}")


def host_option(doc: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Add ``--host``, passed on as ``hosts``, for the addresses to listen on."""
    return click.option(
        "--host", "hosts", multiple=True, default=("127.0.0.1",), callback=_named, help=f"{doc} Repeatable."
    )


def _named(context: click.Context, parameter: click.Parameter, hosts: tuple[str, ...]) -> tuple[str, ...]:
    if not all(host.strip() for host in hosts):
        raise click.BadParameter("an address or name is needed: '0.0.0.0' is every IPv4 address, '::' every one")
    return hosts


def target_options(url: str, doc: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Add ``--url`` and ``--uds``, passed on as ``target``. ``url`` is the default, ``doc`` describes the target."""

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        @click.option("--url", default=url, show_default=True, help=doc)
        @click.option(
            "--uds",
            type=click.Path(),
            help="Unix socket of the server (see 'serve --uds'), instead of the URL's host and port.",
        )
        @functools.wraps(command)
        def wrapped(url: str, uds: str | None, **others: Any) -> Any:
            try:
                target = Target.parse(url, uds)
            except ValueError as error:
                raise click.BadParameter(str(error), param_hint="--url") from None
            return command(target=target, **others)

        return wrapped

    return decorate
