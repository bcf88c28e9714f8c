"""A leader and its followers as processes, without a network between them: their start, and their common end."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from omni_actors.protocol.errors import OmniError
from omni_actors.protocol.frames import PROTOCOL_VERSION, Hello, RankPlace
from omni_actors.worker.ranks import Followers, RankLost, RanksDesynchronized

pytestmark = pytest.mark.process

WAITING = "tests.worker.rank_engines:WaitingEngine"
LEADER = """
import sys, time
from tests.worker.test_ranks import hello, WAITING
from omni_actors.worker.ranks import Followers
followers = Followers(hello(WAITING))
followers.greet()
followers.wait_loaded()
print(*followers.pids, flush=True)
time.sleep(60)  # as in a collective that does not return
"""


def hello(engine: str, ranks: int = 2) -> Hello:
    return Hello(
        version=PROTOCOL_VERSION,
        stage="llm",
        replica=0,
        incarnation=1,
        engine=engine,
        adapter="",
        ranks=tuple(RankPlace("cpu", {"PLACE": str(rank)}) for rank in range(ranks)),
        collectives="gloo",
    )


def ended(pid: int, within_s: float = 10) -> bool:
    """Return whether a process that may not be ours ends in time."""
    try:
        fd = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([fd], [], [], within_s)[0])
    finally:
        os.close(fd)


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """In some tests this process is the leader, and must not be killed when it is slow to report a lost follower."""
    monkeypatch.setattr("omni_actors.worker.ranks.GRACE_S", 60.0)


@pytest.fixture
def leader() -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", LEADER], stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2]
    )


def follower_of(leader: subprocess.Popen[str]) -> int:
    assert leader.stdout is not None
    return int(leader.stdout.readline())


def test_a_leader_blocked_in_a_collective_ends_with_its_follower(leader: subprocess.Popen[str]) -> None:
    with leader:
        os.kill(follower_of(leader), signal.SIGKILL)
        assert leader.wait(20) == -signal.SIGKILL


def test_a_follower_ends_with_its_leader(leader: subprocess.Popen[str]) -> None:
    with leader:
        follower = follower_of(leader)
        assert os.getpgid(follower) == os.getpgid(leader.pid)
        leader.kill()
        leader.wait(20)
        assert ended(follower)


def test_each_follower_has_its_own_device_and_is_ended() -> None:
    followers = Followers(hello(WAITING, ranks=3))
    try:
        followers.greet()
        followers.wait_loaded()
        places = [Path(f"/proc/{pid}/environ").read_bytes().split(b"\0") for pid in followers.pids]
        assert [b"PLACE=1" in places[0], b"PLACE=2" in places[1]] == [True, True]
        assert len(set(followers.filenos())) == 2
        assert isinstance(followers.failure_of(ValueError("x")), RanksDesynchronized)
        followers.check(set())
    finally:
        pids = followers.pids
        followers.close()
        followers.close()
    assert all(ended(pid, 0) for pid in pids)


def test_a_failed_step_names_the_rank_that_ended() -> None:
    followers = Followers(hello(WAITING))
    try:
        followers.greet()
        followers.wait_loaded()
        (pid,) = followers.pids
        os.kill(pid, signal.SIGSTOP)
        assert isinstance(followers.failure_of(ValueError("x")), RanksDesynchronized)
        os.kill(pid, signal.SIGKILL)
        lost = followers.failure_of(ValueError("a connection broke"))
        assert isinstance(lost, RankLost)
        assert str(lost) == f"rank 1 (pid {pid}) has ended"
    finally:
        followers.close()


def test_an_engine_for_one_device_refuses_to_follow() -> None:
    followers = Followers(hello("omni_actors.worker.engines.stub:StubEngine"))
    try:
        followers.greet()
        with pytest.raises(OmniError, match="StubEngine runs on one device"):
            followers.wait_loaded()
    finally:
        followers.close()
