"""Child processes: no process survives its owner, whichever process is killed, and nothing leaks."""

from __future__ import annotations

import contextlib
import os
import resource
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest
import trio
import trio.testing

from omni_actors.actors import process, warden
from omni_actors.actors.child_process import ChildProcess
from omni_actors.actors.process import Launcher, open_launcher

ADOPT = """
import os, signal, subprocess, sys, time
from omni_actors.actors.child import adopt
control = adopt()
"""

IDLE = ADOPT + "control.recv(1)"
"""A child that ends when its control socket is closed or readable."""

DEAF = ADOPT + "signal.signal(signal.SIGTERM, signal.SIG_IGN); control.send(b'!'); time.sleep(600)"
"""A child that ignores messages and SIGTERM."""

GRANDCHILD = "import os, signal, time; [signal.signal(n, signal.SIG_IGN) for n in (signal.SIGTERM, signal.SIGHUP)]"
WITH_GRANDCHILDREN = f"""{ADOPT}
for code in ("", "; os.setpgid(0, 0)"):  # one in our group, one that moved to a group of its own
    code = {GRANDCHILD!r} + code + "; print(flush=True); time.sleep(600)"
    p = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    p.stdout.readline()
    control.sendall(b"%d\\n" % p.pid)
"""

OWNER = f"""
import trio
import trio.testing
from omni_actors.actors import process, warden
from omni_actors.actors.process import open_launcher
async def main():
    async with open_launcher() as launcher:
        child = launcher.spawn([{sys.executable!r}, "-c", {WITH_GRANDCHILDREN + "time.sleep(600)"!r}])
        data = b""
        while data.count(b"\\n") < 2:
            await trio.lowlevel.wait_readable(child.sock)
            data += child.sock.recv(100)
        print(launcher.warden_pid, child.pid, *data.decode().split(), flush=True)
        await trio.sleep_forever()
trio.run(main)
"""


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def state(pid: int) -> str | None:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return None


def alive(pid: int) -> bool:
    return state(pid) not in (None, "Z", "X")


def gone_within(seconds: float, pids: list[int]) -> bool:
    """Wait for all processes at once, by their pidfds."""
    deadline = time.monotonic() + seconds
    for pid in pids:
        try:
            fd = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        poll = select.poll()
        poll.register(fd, select.POLLIN)
        ended = poll.poll(max(0.0, deadline - time.monotonic()) * 1000)
        os.close(fd)
        if not ended:
            return False
    return True


def open_fds() -> set[str]:
    found = set()
    for name in os.listdir("/proc/self/fd"):
        try:
            found.add(f"{name}:{os.readlink(f'/proc/self/fd/{name}')}")
        except FileNotFoundError:
            continue  # the listing's own
    return found


async def receive_lines(child: ChildProcess, count: int) -> list[int]:
    data = b""
    with trio.fail_after(20):
        while data.count(b"\n") < count:
            await trio.lowlevel.wait_readable(child.sock)
            chunk = child.sock.recv(1000)
            assert chunk, f"the channel ended after {data!r}"
            data += chunk
    return [int(line) for line in data.split()]


async def running(child: ChildProcess) -> None:
    """Wait until the child's own code runs and sends a byte."""
    with trio.fail_after(20):
        await trio.lowlevel.wait_readable(child.sock)
        assert child.sock.recv(1) == b"!"


async def test_a_death_has_the_exit_status_or_the_signal() -> None:
    async with open_launcher() as launcher:
        exits = launcher.spawn(python(ADOPT + "sys.exit(3)"), name="three")
        killed = launcher.spawn(python(ADOPT + "os.kill(os.getpid(), signal.SIGUSR1)"))
        with trio.fail_after(20):
            three, usr1 = await exits.wait(), await killed.wait()
        assert (three.code, three.signal, three.name, three.pid) == (3, None, "three", exits.pid)
        assert str(three) == f"three (pid {exits.pid}) exited with status 3"
        assert (usr1.code, usr1.signal) == (None, signal.SIGUSR1)
        assert str(usr1).endswith("was killed by SIGUSR1")
        assert not launcher.children


async def test_the_control_socket_works_both_ways_and_outlives_the_child() -> None:
    echo = ADOPT + "assert control.getblocking(); control.sendall(control.recv(5)[::-1] + b'last words')"
    async with open_launcher() as launcher, launcher.spawn(python(echo)) as child:
        child.sock.send(b"hello")
        with trio.fail_after(20):
            await child.wait()
        assert child.sock.recv(100) == b"ollehlast words"
        assert child.sock.recv(100) == b""
    assert child.sock.fileno() == -1


async def test_the_child_leads_its_own_session_and_passes_on_no_descriptor() -> None:
    code = f"""{ADOPT}
assert os.getpid() == os.getpgid(0) == os.getsid(0)
assert "OMNI_ACTORS_CONTROL" not in os.environ
assert os.environ["MARK"] == "here"
extra = int(sys.argv[1])
assert os.read(extra, 4) == b"data"
seen = subprocess.run(["ls", "/proc/self/fd"], capture_output=True, text=True, close_fds=False).stdout.split()
assert seen == ["0", "1", "2", "3"], seen  # 3 is the listing
"""
    reader, writer = os.pipe()
    os.write(writer, b"data")
    async with open_launcher() as launcher:
        env = {**os.environ, "MARK": "here"}
        child = launcher.spawn([*python(code), str(reader)], env=env, pass_fds=[reader])
        with trio.fail_after(20):
            death = await child.wait()
    os.close(reader)
    os.close(writer)
    assert death.code == 0


async def test_a_program_that_cannot_start_raises_and_leaves_nothing() -> None:
    async with open_launcher() as launcher:
        before = open_fds()
        with pytest.raises(FileNotFoundError):
            launcher.spawn(["/no/such/program"])
        assert open_fds() == before
        assert not launcher.children


@pytest.mark.parametrize("code", ["raise SystemExit(7)", "import os; os.kill(os.getpid(), 9)", "import no_such_module"])
async def test_death_before_adoption_is_a_value(code: str) -> None:
    async with open_launcher() as launcher, launcher.spawn(python(code), stderr=subprocess.DEVNULL) as child:
        with trio.fail_after(20):
            death = await child.wait()
        assert (death.code, death.signal) in {(7, None), (None, signal.SIGKILL), (1, None)}


async def test_death_right_after_the_fork_is_a_value() -> None:
    async with open_launcher() as launcher:
        for _ in range(5):
            child = launcher.spawn(python(IDLE))
            child.kill()
            with trio.fail_after(5):
                assert (await child.wait()).signal == signal.SIGKILL
            assert state(child.pid) is None


def test_adopt_refuses_a_process_that_no_launcher_spawned() -> None:
    done = subprocess.run(python(ADOPT), capture_output=True, text=True)
    assert done.returncode == 1
    assert "NotAdopted" in done.stderr


def run_adopting(*, parent: int, go: bool) -> tuple[int, bytes]:
    """Run a child with its ends of the channel and the gate, as a launcher does. Return its status and output."""
    ours, theirs = socket.socketpair()
    gate, opener = os.pipe()
    if go:
        os.write(opener, b"!")
    env = {**os.environ, "OMNI_ACTORS_CONTROL": f"{theirs.fileno()}:{gate}:{parent}"}
    code = python(ADOPT + "print('went on')")
    with (
        ours,
        theirs,
        subprocess.Popen(code, env=env, pass_fds=[theirs.fileno(), gate], stdout=subprocess.PIPE) as child,
    ):
        os.close(gate)
        os.close(opener)
        output, _ = child.communicate(timeout=20)
    return child.returncode, output


def test_a_child_continues_after_its_parents_go() -> None:
    assert run_adopting(parent=os.getpid(), go=True) == (0, b"went on\n")


def test_a_child_whose_parent_ended_before_the_adoption_ends() -> None:
    assert run_adopting(parent=1, go=True) == (1, b"")


def test_a_child_that_never_gets_its_go_ends() -> None:
    """The kernel closes the gate when the parent dies after the fork, before the warden knows the group."""
    assert run_adopting(parent=os.getpid(), go=False) == (1, b"")


def test_adopting_loads_nothing_heavy() -> None:
    code = (
        "import sys; from omni_actors.actors.child import adopt; sys.exit(bool({'trio', 'msgspec'} & set(sys.modules)))"
    )
    assert subprocess.run(python(code)).returncode == 0


async def test_kill_9_of_the_child_ends_its_grandchildren() -> None:
    async with open_launcher() as launcher:
        child = launcher.spawn(python(WITH_GRANDCHILDREN + "time.sleep(600)"))
        grandchildren = await receive_lines(child, 2)
        assert all(map(alive, grandchildren))
        os.kill(child.pid, signal.SIGKILL)
        with trio.fail_after(2):
            await child.wait()
        assert not any(map(alive, grandchildren))


async def test_a_clean_exit_ends_the_grandchildren() -> None:
    async with open_launcher() as launcher:
        child = launcher.spawn(python(WITH_GRANDCHILDREN))
        grandchildren = await receive_lines(child, 2)
        with trio.fail_after(5):
            assert (await child.wait()).code == 0
        assert not any(map(alive, grandchildren))


def start_owner() -> tuple[subprocess.Popen[str], list[int]]:
    owner = subprocess.Popen(python(OWNER), stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    pids = [int(word) for word in owner.stdout.readline().split()]
    assert len(pids) == 4
    return owner, pids


def end(owner: subprocess.Popen[str], number: int) -> None:
    owner.send_signal(number)
    owner.wait(10)
    assert owner.stdout is not None
    owner.stdout.close()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_nothing_outlives_the_parent(number: int) -> None:
    owner, pids = start_owner()
    assert all(map(alive, pids))
    end(owner, number)
    assert gone_within(2, pids), [pid for pid in pids if alive(pid)]


@contextmanager
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "600"], start_new_session=True) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize("way", ["end of the line", "death of the owner"])
def test_the_warden_kills_the_groups_in_its_care_and_no_other(way: str) -> None:
    ours, theirs = socket.socketpair()
    with sleeper() as owner, sleeper() as kept, sleeper() as released, sleeper() as stranger:
        holder = os.getpid() if way == "end of the line" else owner.pid
        argv = [sys.executable, "-I", "-S", warden.__file__, str(theirs.fileno()), str(holder)]
        with subprocess.Popen(argv, pass_fds=[theirs.fileno()]) as process:
            theirs.close()
            if way == "end of the line":
                assert ours.recv(1) == b"!"
            ours.sendall(b"+%d\n+%d\n" % (kept.pid, released.pid))
            ours.sendall(b"-%d\n" % released.pid)
            if way == "end of the line":
                ours.close()
            assert process.wait(5) == 0
        ours.close()
        assert kept.wait(5) == -signal.SIGKILL
        assert [p.poll() for p in (owner, released, stranger)] == [None] * 3


async def test_children_wait_while_the_warden_cannot_be_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "WARDEN_BACKOFF_S", 0.01)
    async with open_launcher() as launcher:
        lost = launcher.warden_pid
        with monkeypatch.context() as patch:
            patch.setattr(warden, "__file__", "/no/such/file")
            os.kill(lost, signal.SIGKILL)
            assert gone_within(5, [lost])
            child = launcher.spawn(python(ADOPT + "control.send(b'!'); time.sleep(600)"))
            with trio.move_on_after(0.5) as patience:
                await running(child)
            assert patience.cancelled_caught
            assert child.death is None
        await running(child)
        assert launcher.warden_pid != lost


async def test_a_process_that_outlasts_sigkill_is_left_to_the_warden(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(process, "KILL_PATIENCE_S", 0.1)
    monkeypatch.setattr(ChildProcess, "send_signal", lambda self, number: None)  # as if it hung in the kernel
    async with open_launcher() as launcher:
        child = launcher.spawn(python(DEAF))
        await running(child)
        with pytest.raises(trio.TooSlowError, match="outlasted SIGKILL"):
            await child.stop(0, 0)
    assert "is left to the warden" in caplog.text
    assert os.waitpid(child.pid, 0) == (child.pid, signal.SIGKILL)


def test_orphans_that_the_owner_inherits_are_reaped() -> None:
    """The owner inherits orphans, like a container's first process."""
    code = OWNER.replace("import trio", "import ctypes, os, pathlib, trio; ctypes.CDLL(None).prctl(36, 1)", 1).replace(
        "await trio.sleep_forever()",
        """os.kill(child.pid, 9)
        await child.wait()
        print(pathlib.Path(f"/proc/self/task/{os.getpid()}/children").read_text(), flush=True)""",
    )
    done = subprocess.run(python(code), capture_output=True, text=True)
    first, second = done.stdout.splitlines()
    assert second.split() == [first.split()[0]], done.stdout  # the warden is all that is left


def test_signals_meant_for_the_application_do_not_end_the_warden() -> None:
    owner, (warden, child, *grandchildren) = start_owner()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        os.kill(warden, number)
    assert os.getsid(warden) == warden
    os.kill(child, signal.SIGSTOP)  # a stopped child cannot be asked to go
    end(owner, signal.SIGKILL)
    assert gone_within(2, [warden, child, *grandchildren])


def test_the_kernel_kills_the_child_even_when_the_warden_cannot() -> None:
    owner, (warden, child, *grandchildren) = start_owner()
    os.kill(warden, signal.SIGSTOP)
    end(owner, signal.SIGKILL)
    assert gone_within(2, [child])
    assert all(map(alive, grandchildren))
    os.kill(warden, signal.SIGCONT)
    assert gone_within(2, [warden, *grandchildren])


def test_a_fork_that_holds_the_wardens_socket_open_does_not_deceive_the_warden() -> None:
    code = OWNER.replace("print(", "import os, time; fork = os.fork() or time.sleep(600); print(fork,")
    owner = subprocess.Popen(python(code), stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    fork, *pids = [int(word) for word in owner.stdout.readline().split()]
    try:
        end(owner, signal.SIGKILL)
        assert alive(fork)
        assert gone_within(2, pids), [pid for pid in pids if alive(pid)]
    finally:
        os.kill(fork, signal.SIGKILL)


def test_a_dead_warden_is_replaced_and_told_every_group() -> None:
    code = OWNER.replace(
        "print(launcher.warden_pid,",
        """import os
        os.kill(lost := launcher.warden_pid, 9)
        while launcher.warden_pid == lost:
            await trio.sleep(0.01)
        await trio.lowlevel.checkpoint()
        print(launcher.warden_pid,""",
    )
    owner = subprocess.Popen(python(code), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    assert owner.stderr is not None
    pids = [int(word) for word in owner.stdout.readline().split()]
    assert len(pids) == 4, owner.stderr.read()
    end(owner, signal.SIGKILL)
    assert gone_within(2, pids), [pid for pid in pids if alive(pid)]
    assert "has died; a new warden takes over" in owner.stderr.read()
    owner.stderr.close()


async def test_children_are_spawned_and_stopped_after_the_death_of_a_warden() -> None:
    async with open_launcher() as launcher:
        early = launcher.spawn(python(IDLE))
        os.kill(lost := launcher.warden_pid, signal.SIGKILL)
        with trio.fail_after(5):
            while launcher.warden_pid == lost:
                await trio.sleep(0.005)
        late = launcher.spawn(python(IDLE))
        with trio.fail_after(10):
            await early.stop(0, 5)
            await late.stop(0, 5)
        assert alive(launcher.warden_pid)
    assert state(launcher.warden_pid) is None


async def test_stop_by_message() -> None:
    async with open_launcher() as launcher:
        child = launcher.spawn(python(IDLE))
        child.sock.send(b"!")
        with trio.fail_after(20):
            death = await child.stop(message_s=20)
        assert death.code == 0
        assert child.sock.fileno() == -1


async def test_stop_by_sigterm() -> None:
    async with open_launcher() as launcher:
        child = launcher.spawn(python(ADOPT + "control.send(b'!'); time.sleep(600)"))
        await running(child)
        with trio.fail_after(10):
            assert (await child.stop(message_s=0.05, term_s=10)).signal == signal.SIGTERM


@pytest.mark.parametrize("stopped", [False, True])
async def test_stop_by_sigkill(stopped: bool) -> None:
    async with open_launcher() as launcher:
        child = launcher.spawn(python(DEAF))
        await running(child)
        if stopped:
            os.kill(child.pid, signal.SIGSTOP)
        with trio.fail_after(5):
            assert (await child.stop(message_s=0.05, term_s=0.05)).signal == signal.SIGKILL
        assert state(child.pid) is None


async def test_stop_of_a_dead_child_returns_its_death() -> None:
    async with open_launcher() as launcher:
        child = launcher.spawn(python(ADOPT + "sys.exit(4)"))
        with trio.fail_after(20):
            await child.wait()
            assert (await child.stop()).code == (await child.stop()).code == 4


@pytest.mark.parametrize("stage", [(60.0, 60.0), (0.0, 60.0)])
async def test_cancelled_stop_still_kills_and_reaps(stage: tuple[float, float]) -> None:
    async with open_launcher() as launcher:
        child = launcher.spawn(python(DEAF))
        await running(child)
        with trio.move_on_after(0.1) as scope:
            await child.stop(*stage)
        assert scope.cancelled_caught
        assert child.death is not None
        assert child.death.signal == signal.SIGKILL
        assert state(child.pid) is None
        assert child.sock.fileno() == -1


async def test_leaving_the_launcher_by_cancellation_ends_everything() -> None:
    children: list[ChildProcess] = []
    pids: list[int] = []

    async def own(task_status: trio.TaskStatus[None]) -> None:
        async with open_launcher() as launcher:
            pids.append(launcher.warden_pid)
            for code in (DEAF, IDLE):
                children.append(launcher.spawn(python(code)))
            # A child with an owner of its own, which stops it while the launcher itself is being cancelled.
            async with launcher.spawn(python(WITH_GRANDCHILDREN + "time.sleep(600)")) as child:
                children.append(child)
                pids.extend(await receive_lines(child, 2))
                task_status.started()
                await trio.sleep_forever()

    with trio.fail_after(20):
        async with trio.open_nursery() as nursery:
            await nursery.start(own)
            nursery.cancel_scope.cancel()
    pids += [child.pid for child in children]
    assert not any(map(alive, pids))
    assert all(child.death and child.sock.fileno() == -1 for child in children)


async def test_an_exception_of_the_block_comes_out_unchanged() -> None:
    with pytest.raises(ZeroDivisionError):
        async with open_launcher() as launcher:
            child = launcher.spawn(python(DEAF))
            _ = 1 / 0
    assert state(child.pid) is None
    with pytest.raises(RuntimeError, match="closing"):
        launcher.spawn(python(IDLE))


async def test_a_task_that_reads_the_socket_learns_of_its_closing() -> None:
    async with open_launcher() as launcher:
        child = launcher.spawn(python(IDLE))
        async with trio.open_nursery() as nursery:

            async def read() -> None:
                with pytest.raises(trio.ClosedResourceError):
                    await trio.lowlevel.wait_readable(child.sock)

            nursery.start_soon(read)
            await trio.testing.wait_all_tasks_blocked(0.01)
            child.close()


async def killed(launcher: Launcher, child: ChildProcess) -> None:
    child.kill()
    await child.wait()
    child.close()


async def stopped(launcher: Launcher, child: ChildProcess) -> None:
    await child.stop(0, 0.01)


async def left(launcher: Launcher, child: ChildProcess) -> None:
    async with child:
        pass


async def test_a_death_while_no_descriptor_is_free_is_seen_and_ends_the_group() -> None:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken: list[int] = []
    async with open_launcher() as launcher:
        child = launcher.spawn(python(WITH_GRANDCHILDREN + "time.sleep(600)"))
        data = b""
        while data.count(b"\n") < 2:
            await trio.lowlevel.wait_readable(child.sock)
            data += child.sock.recv(100)
        before = open_fds()
        resource.setrlimit(resource.RLIMIT_NOFILE, (len(before) + 10, limits[1]))
        try:
            with contextlib.suppress(OSError):
                while True:
                    taken.append(os.dup(0))
            os.kill(child.pid, signal.SIGKILL)
            while child.death is None:
                await trio.sleep(0.01)
            with trio.move_on_after(3 * process.LOOK_AGAIN_S):  # and the launcher lives
                await child.wait()
        finally:
            for fd in taken:
                os.close(fd)
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        with trio.fail_after(5):
            assert (await child.wait()).signal == signal.SIGKILL
        assert not any(alive(int(pid)) for pid in data.split())
        assert len(open_fds()) == len(before) - 1  # its pidfd


@pytest.mark.slow
async def test_many_cycles_leak_neither_descriptors_nor_zombies() -> None:
    ways: list[Callable[[Launcher, ChildProcess], object]] = [killed, stopped, left]
    outside = open_fds()
    async with open_launcher() as launcher:
        before = open_fds()
        for n in range(51):
            child = launcher.spawn(python(IDLE))
            if n % 2:  # half of them die while Python starts, half while they run
                await trio.sleep(0.03)
            with trio.fail_after(5):
                await partial(ways[n % 3], launcher, child)()  # type: ignore[misc]
            assert state(child.pid) is None
        assert open_fds() == before
    assert open_fds() == outside
