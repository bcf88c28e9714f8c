"""The addresses that a server may connect to at a client's request.

A client's URL must not reach anything that only this machine can reach: local services, the machine's network, the
cloud's metadata service. So only public unicast addresses are allowed, by IANA's registries of special-purpose
addresses (RFC 6890 and its updates). An IPv6 form of an IPv4 address is judged by the IPv4 address.
"""

from __future__ import annotations

from collections.abc import Iterable
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

_REFUSED: tuple[Network, ...] = tuple(
    map(
        ip_network,
        (
            "0.0.0.0/8",  # this network; 0.0.0.0 is this host
            "10.0.0.0/8",  # private
            "100.64.0.0/10",  # carriers' shared space, and Alibaba's metadata service
            "127.0.0.0/8",  # loopback
            "169.254.0.0/16",  # link-local, and most clouds' metadata service
            "172.16.0.0/12",  # private
            "192.0.0.0/24",  # protocol assignments, and Oracle's metadata service
            "192.0.2.0/24",  # documentation
            "192.88.99.0/24",  # 6to4 relays
            "192.168.0.0/16",  # private
            "198.18.0.0/15",  # benchmarks
            "198.51.100.0/24",  # documentation
            "203.0.113.0/24",  # documentation
            "224.0.0.0/4",  # multicast
            "240.0.0.0/4",  # reserved, and broadcast
            "168.63.129.16/32",  # Azure's platform service, inside a public range
        ),
    )
)
_PUBLIC_V6 = IPv6Network("2000::/3")
"""The addresses assigned to unicast. All others (loopback, ULA, link-local, multicast, …) are refused."""
_REFUSED_V6 = tuple(
    map(
        IPv6Network,
        (
            "2001::/23",  # protocol assignments, Teredo and ORCHID among them
            "2001:db8::/32",  # documentation
            "3fff::/20",  # documentation
        ),
    )
)
_NAT64 = (IPv6Network("64:ff9b::/96"),)
"""RFC 6052's well-known prefix: the last 32 bits are an IPv4 address."""
_6TO4 = IPv6Network("2002::/16")


def carried(address: Address) -> Address:
    """Return the IPv4 address in an IPv6 form (mapped, NAT64, 6to4), or any other address unchanged."""
    if isinstance(address, IPv4Address):
        return address
    number = int(address)
    if address.ipv4_mapped is not None:
        return address.ipv4_mapped
    if any(address in network for network in _NAT64):
        return IPv4Address(number & 0xFFFFFFFF)
    if address in _6TO4:
        return IPv4Address(number >> 80 & 0xFFFFFFFF)
    return address


def is_public(address: Address) -> bool:
    """Whether every host on the internet could connect to the address."""
    if isinstance(address, IPv6Address) and address.scope_id is not None:
        return False
    address = carried(address)
    if isinstance(address, IPv4Address):
        return not any(address in network for network in _REFUSED)
    return address in _PUBLIC_V6 and not any(address in network for network in _REFUSED_V6)


class AllowList:
    """The hosts and networks that an operator trusts, public or not.

    An entry is a network (``10.1.0.0/16``), an address, a host's name, or ``*.`` and a domain for every host of the
    domain. Raises :class:`ValueError` for any other entry.
    """

    def __init__(self, entries: Iterable[str]) -> None:
        self._networks: list[Network] = []
        self._hosts: set[str] = set()
        self._domains: list[str] = []
        for entry in entries:
            try:
                self._networks.append(ip_network(entry))
                continue
            except ValueError:
                pass
            name = entry.lower().rstrip(".")
            bare = name.removeprefix("*.")
            if any(character in bare for character in "/:*") or not bare or bare.startswith("."):
                raise ValueError(f"{entry!r} is no host name and no network")
            if name.startswith("*."):
                self._domains.append("." + bare)
            else:
                self._hosts.add(name)

    def host(self, name: str) -> bool:
        name = name.lower().rstrip(".")
        return name in self._hosts or any(name.endswith(domain) for domain in self._domains)

    def address(self, address: Address) -> bool:
        return any(address in network for network in self._networks)


def parse(text: str) -> Address:
    """Parse an address in a resolver's notation. Raises :class:`ValueError`."""
    return ip_address(text)
