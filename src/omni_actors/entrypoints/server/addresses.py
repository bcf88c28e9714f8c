"""The addresses that a server listens on: names resolved, wildcards spread over both families, sockets bound."""

from __future__ import annotations

import errno
import ipaddress
import socket
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

IPV4_WILDCARD, IPV6_WILDCARD = "0.0.0.0", "::"

Option = tuple[int, int, int]
"""Level, name and value, as ``socket.setsockopt`` takes them."""

PORTS = 16
"""How many free ports are tried until one is free at every address."""

ABSENT = frozenset({errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL})
"""How the kernel says that this machine has no such address, or none of that family."""


@dataclass(frozen=True, slots=True)
class Address:
    """One address to listen on, and the ``host`` that it was resolved from."""

    family: socket.AddressFamily
    name: tuple[Any, ...]
    """As ``socket.bind`` takes it."""
    host: str

    def at(self, port: int) -> Address:
        """The same address with another port."""
        return Address(self.family, (self.name[0], port, *self.name[2:]), self.host)

    @property
    def is_wildcard(self) -> bool:
        """Whether it stands for every address of its family."""
        return self.name[0] in (IPV4_WILDCARD, IPV6_WILDCARD)

    def __str__(self) -> str:
        where = authority(self.name[0], self.name[1])
        return where if self.host == self.name[0] else f"{where} ({self.host})"


def authority(host: str, port: int) -> str:
    """Host and port, as a URL has them."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def plain(host: str) -> str:
    """An IPv4 address that is written as an IPv6 one (``::ffff:127.0.0.1``) as IPv4; any other host as it is."""
    if not host.lower().startswith("::ffff:"):
        return host
    try:
        mapped = ipaddress.IPv6Address(host).ipv4_mapped
    except ValueError:
        return host
    return host if mapped is None else str(mapped)


def resolve(hosts: Sequence[str], port: int) -> list[Address]:
    """The addresses of all hosts, each once. ``::`` stands for both families: it gives the IPv4 wildcard as well.

    An address that a wildcard among them covers is left out. Blocks while names are looked up.
    Raises ``OSError`` with the host as its ``filename`` where a name has no address.
    """
    found: dict[tuple[Any, ...], Address] = {}
    for host in hosts:
        for address in _look_up(host, port):
            found.setdefault((address.family, address.name[0]), address)
            if address.name[0] == IPV6_WILDCARD:
                both = Address(socket.AF_INET, (IPV4_WILDCARD, port), address.host)
                found.setdefault((both.family, IPV4_WILDCARD), both)
    wild = {it.family for it in found.values() if it.is_wildcard}
    return [it for it in found.values() if it.is_wildcard or it.family not in wild]


def bind(
    addresses: Sequence[Address], options: Sequence[Option] = (), backlog: int | None = None
) -> list[socket.socket]:
    """A bound TCP socket for each address, with ``options`` set before; with a ``backlog`` it listens too.

    Port 0 is one free port for all of them. An address of a family that this machine has not is left out if another
    address of the same host (or of ``::``, which stands for both) is there.
    Raises ``OSError``, with the address as its ``filename``; nothing is left open then.
    """
    for left in reversed(range(PORTS)):
        opened: list[socket.socket] = []
        try:
            _bind_all(addresses, options, backlog, opened)
        except OSError as error:
            for listener in opened:
                listener.close()
            if not (left and opened and error.errno == errno.EADDRINUSE and addresses[0].name[1] == 0):
                raise
        else:
            return opened
    raise AssertionError("unreachable")


def _look_up(host: str, port: int) -> Iterator[Address]:
    try:
        found = socket.getaddrinfo(plain(host), port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        error.filename = host
        raise
    except UnicodeError:  # a label of a name that is empty or too long
        raise OSError(errno.EINVAL, "Not a host name", host) from None
    for family, _, _, _, name in found:
        yield Address(family, name, plain(host))


def _bind_all(
    addresses: Sequence[Address], options: Sequence[Option], backlog: int | None, opened: list[socket.socket]
) -> None:
    missing: dict[str, OSError] = {}
    served: set[str] = set()
    for address in addresses:
        if opened and address.name[1] == 0:
            address = address.at(opened[0].getsockname()[1])
        try:
            opened.append(_bound(address, options, backlog))
        except OSError as error:
            error.filename = str(address)
            if error.errno not in ABSENT:
                raise
            missing.setdefault(address.host, error)
        else:
            served.add(address.host)
    for host, absence in missing.items():
        if host not in served:
            raise absence


def _bound(address: Address, options: Sequence[Option], backlog: int | None) -> socket.socket:
    listener = socket.socket(address.family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if address.family == socket.AF_INET6:  # IPv4 has a socket of its own, where clients have IPv4 addresses
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        for level, name, value in options:
            listener.setsockopt(level, name, value)
        listener.bind(address.name)
        if backlog is not None:
            listener.listen(backlog)
    except OSError:
        listener.close()
        raise
    return listener
