"""The leader of a replica's ranks: what it says of a follower that ends."""

from __future__ import annotations

import os
import socket
import threading

import pytest

from omni_actors.protocol.codec import up_reader
from omni_actors.protocol.frames import PROTOCOL_VERSION, Fatal, Hello, RankPlace
from omni_actors.worker import ranks
from omni_actors.worker.ranks import Followers

PATIENCE_S = 60


@pytest.mark.deadline(PATIENCE_S)
def test_why_a_follower_cannot_load_is_said_though_its_leader_loads_still(monkeypatch: pytest.MonkeyPatch) -> None:
    killed = threading.Event()
    kill = os.kill
    monkeypatch.setattr(os, "kill", lambda pid, number: killed.set() if pid == os.getpid() else kill(pid, number))
    monkeypatch.setattr(ranks, "GRACE_S", 0.0)
    hello = Hello(
        version=PROTOCOL_VERSION,
        stage="llm",
        replica=0,
        incarnation=1,
        engine="",
        adapter="",
        platform="no.such.package:Platform",
        ranks=(RankPlace("cpu", {}), RankPlace("cpu", {})),
    )
    serving, control = socket.socketpair()
    with serving, control:
        followers = Followers(hello, control)
        try:
            assert killed.wait(PATIENCE_S), "the leader would load on, without one of its ranks"
        finally:
            followers.close()
        (said,) = up_reader().feed(serving.recv(1 << 16))
    assert isinstance(said, Fatal)
    assert said.error.stage == "llm"
    assert said.error.message.startswith("rank 1: ModuleNotFoundError: No module named 'no'")
