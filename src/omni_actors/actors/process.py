"""Child processes that a trio scope owns, and that nothing survives: not a crash, not ``kill -9`` of anybody.

:func:`open_launcher` starts a :mod:`warden <omni_actors.actors.warden>` and gives a :class:`Launcher`; its
:meth:`~Launcher.spawn` starts a child in a session and process group of its own. The child calls
:func:`omni_actors.actors.child.adopt` first. What ends a child, its group, and everything in it:

====================================  ========================================================================
the child ends, in whatever way       the launcher sees it by a pidfd and kills the rest of the group
:meth:`ChildProcess.stop`             message (the caller's), SIGTERM, SIGKILL, each with its own patience
the block of the child or launcher    is left, normally, by an exception or by cancellation: SIGKILL
the parent dies, SIGKILL included     the kernel kills the child (PDEATHSIG), the warden its whole group
the warden dies                       it is replaced at once and told every group again; the loss is logged
====================================  ========================================================================

A descendant that makes a *session* of its own (``setsid``) has left the group and this ownership.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import subprocess
import sys
import weakref
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Self

import trio

from omni_actors.actors.child import CONTROL_VARIABLE
from omni_actors.actors.warden import kill_group
from omni_actors.actors.warden_handle import WardenError, WardenHandle

logger = logging.getLogger(__name__)

KILL_PATIENCE_S = 5.0
"""How long a wait goes on after SIGKILL. Only a process in uninterruptible sleep (a broken driver) outlasts it."""

LOOK_AGAIN_S = 0.1
"""Pause between two looks at a dying group while this process has no descriptor free for one."""

WARDEN_BACKOFF_S = 5.0
"""The longest pause between two attempts to replace a lost warden (the first is made at once)."""


@dataclass(frozen=True, slots=True)
class Death:
    """How a process ended: a value, not an exception. ``at`` is :func:`trio.current_time` when it was seen."""

    name: str
    pid: int
    code: int | None
    """Exit status; ``None`` when a signal ended it."""
    signal: int | None
    """Number of the signal that ended it; ``None`` when it exited by itself. (Both are ``None`` in an application that
    ignores SIGCHLD: the kernel keeps no status then.)"""
    at: float

    def __str__(self) -> str:
        if self.signal is None:
            return f"{self.name} (pid {self.pid}) exited with status {self.code}"
        try:
            name = signal.Signals(self.signal).name
        except ValueError:
            name = f"signal {self.signal}"
        return f"{self.name} (pid {self.pid}) was killed by {name}"


class ChildProcess:
    """A child process, leader of its own process group, and the parent's end of its control socket.

    Made by :meth:`Launcher.spawn`. As an async context manager it kills the group when its block is left.
    """

    def __init__(self, name: str, popen: subprocess.Popen[bytes], pidfd: int, sock: socket.socket, gate: int) -> None:
        self.name = name
        self.pid: int = popen.pid
        self.pgid: int = popen.pid
        self.sock = sock
        """Unix stream socket, non-blocking. It outlives the process, so that its last words can be read; :meth:`close`,
        :meth:`stop` and the end of the block close it."""
        self.death: Death | None = None
        """Set as soon as the process has ended (its group may still be ending: see :meth:`wait`)."""
        self._popen = popen
        self._pidfd = pidfd
        self._gate = gate
        self._gone = trio.Event()
        self._reaping = trio.CancelScope(shield=True)

    def __repr__(self) -> str:
        return f"<ChildProcess {self.name} pid={self.pid} {self.death or 'alive'}>"

    async def wait(self) -> Death:
        """Wait until the process has ended and been reaped and nothing of its group is left. Any number of tasks may
        wait. Cancelling a wait changes nothing."""
        await self._gone.wait()
        assert self.death is not None
        return self.death

    def send_signal(self, number: int) -> None:
        """Send a signal to the whole group. Nothing happens once the process has been reaped."""
        if not self._gone.is_set():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pgid, number)

    def kill(self) -> None:
        """SIGKILL to the whole group, stopped processes included. Does not wait: see :meth:`wait`."""
        self.send_signal(signal.SIGKILL)

    async def stop(self, message_s: float = 5.0, term_s: float = 2.0) -> Death:
        """End the process in stages. The caller has sent its own stop message: give it ``message_s`` seconds to take
        effect, then SIGTERM to the group and ``term_s`` seconds, then SIGKILL.

        On return nothing of the group is left, the process is reaped and the socket closed. The same holds when the
        call is cancelled: the stages that are left are skipped, the group is killed and waited for (at most
        :data:`KILL_PATIENCE_S`), then the cancellation goes on. Raises :class:`trio.TooSlowError` if the process
        outlasts even SIGKILL.
        """
        try:
            if not await self._gone_within(message_s):
                self.send_signal(signal.SIGTERM)
                await self._gone_within(term_s)
        finally:
            await self._end()
        if self.death is None or not self._gone.is_set():
            raise trio.TooSlowError(f"{self!r} outlasted SIGKILL by {KILL_PATIENCE_S:g} s")
        return self.death

    def close(self) -> None:
        """Close the control socket; whoever waits on it through trio gets :class:`trio.ClosedResourceError`."""
        if self.sock.fileno() >= 0:
            trio.lowlevel.notify_closing(self.sock)
            self.sock.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._end()

    def _go(self) -> None:
        """Let the child's ``adopt`` return."""
        if self._gate >= 0:
            with contextlib.suppress(BrokenPipeError):  # it may be dead already
                os.write(self._gate, b"!")
            self._close_gate()

    def _close_gate(self) -> None:
        if self._gate >= 0:
            os.close(self._gate)
            self._gate = -1

    async def _gone_within(self, seconds: float) -> bool:
        with trio.move_on_after(seconds):
            await self._gone.wait()
        return self._gone.is_set()

    async def _end(self) -> None:
        self.kill()
        with trio.move_on_after(KILL_PATIENCE_S, shield=True):
            await self._gone.wait()
        self.close()


class Launcher:
    """Spawns children and owns them. Made by :func:`open_launcher`."""

    def __init__(self, nursery: trio.Nursery, warden: WardenHandle) -> None:
        self._nursery = nursery
        self._warden = warden
        self._children: set[ChildProcess] = set()
        self._spawned: weakref.WeakSet[ChildProcess] = weakref.WeakSet()
        self._keeping = trio.CancelScope(shield=True)
        self._closing = False

    @property
    def children(self) -> frozenset[ChildProcess]:
        """The children of whose groups something may be left."""
        return frozenset(self._children)

    @property
    def warden_pid(self) -> int:
        """The pid of the warden in office."""
        return self._warden.pid

    @trio.lowlevel.enable_ki_protection
    def spawn(
        self,
        argv: Sequence[str],
        *,
        name: str | None = None,
        env: Mapping[str, str] | None = None,
        cwd: str | os.PathLike[str] | None = None,
        pass_fds: Sequence[int] = (),
        stdout: int | IO[bytes] | None = None,
        stderr: int | IO[bytes] | None = None,
    ) -> ChildProcess:
        """Start ``argv``, a program that calls :func:`~omni_actors.actors.child.adopt` first (:func:`python_module`
        makes the command line of a module). ``env`` is the whole environment; ``None`` inherits this process's.
        Standard input is empty.

        Not a checkpoint: it blocks for the fork (some 10 ms). The child is *this thread's*: the kernel kills it when
        the thread ends. Raises :class:`OSError` when the program cannot be started; nothing is left then. A child that
        ends at once is no error: it is a :class:`ChildProcess` that dies.
        """
        if self._closing:
            raise RuntimeError("the launcher is closing")
        with contextlib.ExitStack() as childs, contextlib.ExitStack() as undo:
            ours, theirs = socket.socketpair()
            childs.callback(theirs.close)
            undo.callback(ours.close)
            gate, opener = os.pipe()
            childs.callback(os.close, gate)
            undo.callback(os.close, opener)
            ours.setblocking(False)
            environment = dict(os.environ if env is None else env)
            environment[CONTROL_VARIABLE] = f"{theirs.fileno()}:{gate}:{os.getpid()}"
            popen = subprocess.Popen(
                list(argv),
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
                env=environment,
                cwd=cwd,
                pass_fds=(theirs.fileno(), gate, *pass_fds),
                start_new_session=True,
            )
            undo.callback(popen.wait)
            undo.callback(os.killpg, popen.pid, signal.SIGKILL)
            pidfd = os.pidfd_open(popen.pid)
            undo.pop_all()
        child = ChildProcess(name or Path(argv[0]).name, popen, pidfd, ours, opener)
        self._children.add(child)
        self._spawned.add(child)
        self._nursery.start_soon(self._reap, child, name=f"reaper of {child.name}")
        # First the warden, then the go: a child that runs on can leave nothing behind that no warden knows of. If the
        # warden is lost just now, its successor is told and the go is given then.
        if self._warden.send(f"+{child.pgid}\n"):
            child._go()
        return child

    async def _reap(self, child: ChildProcess) -> None:
        # Shielded: the owner of a child may wait for it in a shielded scope of its own while this nursery is being
        # cancelled. It ends all the same, because leaving the launcher's block kills every child.
        with child._reaping:
            try:
                await trio.lowlevel.wait_readable(child._pidfd)
                child.death = _death_of(child)
                # The process is a zombie now and holds its number: the group is still ours, not a stranger's.
                await _end_group(child)
            finally:
                os.close(child._pidfd)
                child._close_gate()
            self._warden.send(f"-{child.pgid}\n")  # before the number is free
            child._popen.wait()
            self._children.discard(child)
            child._gone.set()

    async def _keep_warden(self) -> None:
        failures = 0
        with self._keeping:
            while True:
                await trio.lowlevel.wait_readable(self._warden.pidfd)
                logger.warning("the warden (pid %d) is lost; a new one takes over", self.warden_pid)
                self._warden.reap()
                while self._warden.reaped:
                    if failures:
                        await trio.sleep(min(WARDEN_BACKOFF_S, 0.05 * 2**failures))
                    try:
                        self._warden = WardenHandle()
                        self._warden.send("".join(f"+{child.pgid}\n" for child in self._children))
                        await self._warden.wait_ready()
                        for child in self._children:
                            child._go()
                        failures = 0
                    except (OSError, WardenError) as error:
                        failures += 1
                        logger.error("no warden watches over %d children: %s", len(self._children), error)

    async def _close(self) -> None:
        """Kill every child and wait, not for ever, until all is gone. Called in a shielded scope."""
        self._closing = True
        for child in self._children:
            child.kill()
        with trio.move_on_after(KILL_PATIENCE_S):
            for child in list(self._children):
                await child._gone.wait()
        for child in self._children:
            logger.error("%r outlasts SIGKILL; it is left to the warden", child)
            child._reaping.cancel()
        for child in self._spawned:
            child.close()
        self._keeping.cancel()


@asynccontextmanager
async def open_launcher() -> AsyncIterator[Launcher]:
    """A :class:`Launcher` with its warden (one small process). Leaving the block, in whatever way, kills every child
    that is left with its group, waits for all of them, and ends the warden. Cancellation does not cut that short, but
    it takes at most some seconds. Raises :class:`OSError` or :class:`WardenError` when no warden can be started.
    """
    failure: BaseException | None = None
    warden = WardenHandle()
    launcher: Launcher | None = None
    try:
        await warden.wait_ready()
        async with trio.open_nursery() as nursery:
            launcher = Launcher(nursery, warden)
            nursery.start_soon(launcher._keep_warden, name="keeper of the warden")
            try:
                yield launcher
            except BaseException as exception:  # raised again below, not wrapped in the nursery's group
                failure = exception
            finally:
                with trio.CancelScope(shield=True):
                    await launcher._close()
    finally:
        with trio.CancelScope(shield=True):
            await (warden if launcher is None else launcher._warden).close()
    if failure is not None:
        try:
            raise failure
        finally:
            del failure  # no cycle of frame and traceback


def python_module(module: str, *arguments: str) -> list[str]:
    """The command line that runs a module in this interpreter."""
    return [sys.executable, "-m", module, *arguments]


def _death_of(child: ChildProcess) -> Death:
    """How a process ended that is a zombie still, and stays one."""
    try:
        result = os.waitid(os.P_PIDFD, child._pidfd, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:  # the application ignores SIGCHLD, so the kernel keeps no status
        result = None
    code = signal_number = None
    if result is not None and result.si_code == os.CLD_EXITED:
        code = result.si_status
    elif result is not None:
        signal_number = result.si_status
    return Death(child.name, child.pid, code, signal_number, trio.current_time())


async def _end_group(child: ChildProcess) -> None:
    """Kill what is left of a child's group and wait until nothing is."""
    told = False
    while True:
        try:
            dying = kill_group(child.pgid, child.pid)
        except OSError as error:
            # No descriptor is free to see by who is left. No event tells when one is, so look again.
            if not told:
                logger.warning("cannot see yet whether the group of %s has ended: %s", child.name, error)
            told = True
            await trio.sleep(LOOK_AGAIN_S)
            continue
        if not dying:
            return
        await _all_readable(dying)


async def _all_readable(fds: list[int]) -> None:
    """Wait for each descriptor in turn; close them all."""
    try:
        for fd in fds:
            await trio.lowlevel.wait_readable(fd)
    finally:
        for fd in fds:
            os.close(fd)
