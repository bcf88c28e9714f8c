"""The ports that tests give to their servers."""

from __future__ import annotations

import multiprocessing
import socket
from pathlib import Path

import pytest
from tests.harness import ports


def _ports(count: int) -> list[int]:
    return [ports.free_port() for _ in range(count)]


def test_no_two_processes_are_given_the_same_port(monkeypatch: pytest.MonkeyPatch) -> None:
    with multiprocessing.get_context("fork").Pool(4) as pool:
        monkeypatch.setattr(ports, "LAST", ports.FIRST + 400)
        given = [port for found in pool.map(_ports, [20] * 8) for port in found]
    assert len(set(given)) == len(given) == 160


def test_a_port_is_no_ephemeral_one_and_not_taken() -> None:
    first = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    port = ports.free_port()
    assert port < max(first, ports.LAST)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", port))
        assert ports.free_port() != port


def test_a_full_range_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ports, "LAST", ports.FIRST)
    with pytest.raises(OSError, match="no TCP port between"):
        ports.free_port()
