"""Child processes that a trio scope owns. No process of a child's group outlives its owner, not even after ``kill -9``.

:func:`open_launcher` starts a :mod:`warden <omni_actors.actors.warden>` and gives a :class:`Launcher`;
:meth:`Launcher.spawn` starts a child in a session and process group of its own. The child calls
:func:`omni_actors.actors.child.adopt` first. The events that end a child, and the fate of its group:

====================================  ========================================================================
the child ends, in whatever way       the launcher sees its end by a pidfd and kills the rest of the group
:meth:`ChildProcess.stop`             message (the caller's), SIGTERM, SIGKILL, each with its own patience
the block of the child or launcher    is left, normally, by an exception or by cancellation: SIGKILL
the parent dies, SIGKILL included     the kernel kills the child (PDEATHSIG), the warden its whole group
the warden dies                       the child lives on; a new warden is started and told of every group
====================================  ========================================================================

A descendant that makes a *session* of its own (``setsid``) has left the group and is no longer owned.
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
from pathlib import Path
from typing import IO

import trio

from omni_actors.actors.child import CONTROL_VARIABLE
from omni_actors.actors.child_process import KILL_PATIENCE_S, ChildProcess, Death
from omni_actors.actors.warden import kill_group
from omni_actors.actors.warden_handle import WardenError, WardenHandle

logger = logging.getLogger(__name__)

LOOK_AGAIN_S = 0.1
"""Seconds between two attempts to look at a dying group while this process has no free descriptor."""

WARDEN_BACKOFF_S = 5.0
"""Seconds between two attempts to replace a lost warden, at most. The first attempt is made at once."""


class Launcher:
    """The owner of child processes, made by :func:`open_launcher`."""

    def __init__(self, nursery: trio.Nursery, warden: WardenHandle) -> None:
        self._nursery = nursery
        self._warden = warden
        self._children: set[ChildProcess] = set()
        self._spawned: weakref.WeakSet[ChildProcess] = weakref.WeakSet()
        self._keeping = trio.CancelScope(shield=True)
        self._closing = False

    @property
    def children(self) -> frozenset[ChildProcess]:
        """The children whose process groups may not have ended yet."""
        return frozenset(self._children)

    @property
    def warden_pid(self) -> int:
        """The pid of the current warden."""
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
        """Start a program that calls :func:`~omni_actors.actors.child.adopt` first. Its standard input is empty.

        Not a checkpoint: the call blocks for the fork (some 10 ms). The child belongs to *the calling thread*: the
        kernel kills the child when the thread ends. A child that ends at once is no error here: it is a
        :class:`ChildProcess` with a :class:`Death`.

        Args:
            argv: The command line. :func:`python_module` makes the command line of a module.
            name: The child's name in logs; the program's file name if not given.
            env: The whole environment of the child; ``None`` inherits this process's environment.
            cwd: The child's working directory.
            pass_fds: Descriptors that the child inherits, beside its control socket.
            stdout: Standard output, as for :class:`subprocess.Popen`.
            stderr: Standard error, as for :class:`subprocess.Popen`.

        Returns:
            The running child.

        Raises:
            OSError: The program cannot be started; no process is left.
            RuntimeError: The launcher's block is being left.
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
        # warden is lost at this moment, the next warden is told of the group, and the go is given then.
        if self._warden.send(f"+{child.pgid}\n"):
            child._go()
        return child

    async def _reap(self, child: ChildProcess) -> None:
        # Shielded: the owner of a child may wait for its end in a shielded scope of its own while this nursery is being
        # cancelled. The task ends all the same, because leaving the launcher's block kills every child.
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
                logger.warning("the warden (pid %d) has died; a new warden takes over", self.warden_pid)
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
                        logger.error("no warden could be started for %d children: %s", len(self._children), error)

    async def _close(self) -> None:
        """Kill every child, and wait at most :data:`KILL_PATIENCE_S` seconds. Called in a shielded scope."""
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
    """Open a :class:`Launcher` with its warden, one small process.

    Leaving the block, in whatever way, kills every child with its group, waits for all of them, and ends the warden.
    Cancellation does not cut the end of the block short; it takes at most some seconds.

    >>> import sys
    >>> import trio
    >>> from omni_actors.actors import open_launcher
    >>> CHILD = '''
    ... from omni_actors.actors.child import adopt
    ... control = adopt()
    ... control.sendall(b"hello from the child")
    ... control.recv(1)  # the end of the socket says that the parent is done
    ... '''
    >>> async def main() -> None:
    ...     async with open_launcher() as launcher:
    ...         child = launcher.spawn([sys.executable, "-c", CHILD], name="child")
    ...         await trio.lowlevel.wait_readable(child.sock)
    ...         print(child.sock.recv(100).decode())
    ...         child.kill()
    ...         death = await child.wait()
    ...         print(death.name, death.signal)
    >>> trio.run(main)
    hello from the child
    child 9

    Yields:
        The launcher.

    Raises:
        OSError: No warden can be started.
        WardenError: The warden did not report within some seconds.
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
    """Return the command line that runs a module in this interpreter.

    >>> import sys
    >>> from omni_actors.actors import python_module
    >>> python_module("http.server", "8000")[1:]
    ['-m', 'http.server', '8000']

    Args:
        module: The module's dotted name.
        arguments: The arguments of the command line.
    """
    return [sys.executable, "-m", module, *arguments]


def _death_of(child: ChildProcess) -> Death:
    """Return how a process ended that is a zombie and remains one."""
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
    """Kill the rest of a child's group, and wait until no process of the group is left."""
    logged = False
    while True:
        try:
            dying = kill_group(child.pgid, child.pid)
        except OSError as error:
            # No descriptor is free to look at the group. No event tells when a descriptor is free, so look again.
            if not logged:
                logger.warning("cannot yet see whether the group of %s has ended: %s", child.name, error)
            logged = True
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
