"""Addresses to listen on: names are resolved, wildcards cover both families, sockets are bound."""

from __future__ import annotations

import errno
import ipaddress
import socket
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

IPV4_WILDCARD, IPV6_WILDCARD = "0.0.0.0", "::"

Option = tuple[int, int, int]
"""Level, name and value of a socket option, in the order of ``socket.setsockopt``."""

PORTS = 16
"""Free ports tried until one is free at every address."""

ABSENT = frozenset({errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL})
"""Error numbers by which the kernel says that this machine has no such address, or no address of that family."""


@dataclass(frozen=True, slots=True)
class Address:
    """One address to listen on, and the ``host`` from which the address was resolved."""

    family: socket.AddressFamily
    name: tuple[Any, ...]
    """The address in the form that ``socket.bind`` takes."""
    host: str

    def at(self, port: int) -> Address:
        """Return the same address with another port."""
        return Address(self.family, (self.name[0], port, *self.name[2:]), self.host)

    @property
    def is_wildcard(self) -> bool:
        """Whether the address stands for every address of its family."""
        return self.name[0] in (IPV4_WILDCARD, IPV6_WILDCARD)

    def __str__(self) -> str:
        where = authority(self.name[0], self.name[1])
        return where if self.host == self.name[0] else f"{where} ({self.host})"


def authority(host: str, port: int) -> str:
    """Return host and port in the form of a URL."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def plain(host: str) -> str:
    """Return an IPv4 address written as IPv6 (``::ffff:127.0.0.1``) in IPv4 form; return other hosts unchanged."""
    if not host.lower().startswith("::ffff:"):
        return host
    try:
        mapped = ipaddress.IPv6Address(host).ipv4_mapped
    except ValueError:
        return host
    return host if mapped is None else str(mapped)


def resolve(hosts: Sequence[str], port: int) -> list[Address]:
    """Return the addresses of all hosts, each once. ``::`` stands for both families and gives the IPv4 wildcard as
    well.

    An address that is covered by a wildcard in the list is left out. Blocks during the lookup of names. Raises
    ``OSError``, with the host as ``filename``, for a name without an address.
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
    """Return a bound TCP socket for each address, with ``options`` set before binding; with a ``backlog`` each socket
    listens.

    Port 0 takes one free port for all addresses. An address of a family that this machine lacks is left out if another
    address of the same host (or of ``::``, which stands for both families) is available. Raises ``OSError``, with the
    address as ``filename``; no socket is left open then.
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
