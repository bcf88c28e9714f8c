"""A child process that leads its own process group, and the value that describes its end."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
from dataclasses import dataclass
from types import TracebackType
from typing import Self

import trio

KILL_PATIENCE_S = 5.0
"""Seconds to wait after SIGKILL. Only a process in uninterruptible sleep (a broken driver) lives longer."""


@dataclass(frozen=True, slots=True)
class Death:
    """The end of a process: a value, not an exception.

    >>> from omni_actors.actors import Death
    >>> print(Death("decoder", pid=4711, code=None, signal=9, at=12.5))
    decoder (pid 4711) was killed by SIGKILL
    >>> print(Death("decoder", pid=4711, code=3, signal=None, at=12.5))
    decoder (pid 4711) exited with status 3
    """

    name: str
    pid: int
    code: int | None
    """The exit status; ``None`` when a signal ended the process."""
    signal: int | None
    """The number of the signal that ended the process; ``None`` when the process exited by itself.

    (``code`` and ``signal`` are both ``None`` in an application that ignores SIGCHLD: the kernel keeps no status then.)
    """
    at: float
    """The trio time at which the end was seen."""

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

    :meth:`Launcher.spawn` makes it. A child is an async context manager that kills its group when the block is left.
    """

    def __init__(self, name: str, popen: subprocess.Popen[bytes], pidfd: int, sock: socket.socket, gate: int) -> None:
        self.name = name
        self.pid: int = popen.pid
        self.pgid: int = popen.pid
        self.sock = sock
        """The Unix stream socket to the process, non-blocking. The socket outlives the process, so that the last bytes
        can be read; :meth:`close`, :meth:`stop` and the end of the block close it."""
        self.death: Death | None = None
        """The end of the process, set as soon as it is seen. The group may still be ending: see :meth:`wait`."""
        self._popen = popen
        self._pidfd = pidfd
        self._gate = gate
        self._gone = trio.Event()
        self._reaping = trio.CancelScope(shield=True)

    def __repr__(self) -> str:
        return f"<ChildProcess {self.name} pid={self.pid} {self.death or 'alive'}>"

    async def wait(self) -> Death:
        """Wait until the process is reaped and no process of its group is left.

        Any number of tasks may wait. A cancelled wait changes nothing.

        Returns:
            The end of the process.
        """
        await self._gone.wait()
        assert self.death is not None
        return self.death

    def send_signal(self, number: int) -> None:
        """Send a signal to the whole group. Does nothing once the process is reaped.

        Args:
            number: The signal, such as :data:`signal.SIGTERM`.
        """
        if not self._gone.is_set():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pgid, number)

    def kill(self) -> None:
        """Send SIGKILL to the whole group, stopped processes included. Does not wait: see :meth:`wait`."""
        self.send_signal(signal.SIGKILL)

    async def stop(self, message_s: float = 5.0, term_s: float = 2.0) -> Death:
        """End the process in stages: the caller's own stop message, then SIGTERM, then SIGKILL to the group.

        On return no process of the group is left, the child is reaped and the socket closed.

        Cancellation: the remaining stages are skipped, the group is killed and waited for (at most
        :data:`KILL_PATIENCE_S` seconds), then the cancellation goes on.

        >>> import sys
        >>> import trio
        >>> from omni_actors.actors import open_launcher
        >>> CHILD = "from omni_actors.actors.child import adopt; adopt().recv(1)"
        >>> async def main() -> None:
        ...     async with open_launcher() as launcher:
        ...         child = launcher.spawn([sys.executable, "-c", CHILD], name="child")
        ...         child.sock.send(b".")  # the message that makes this child end
        ...         death = await child.stop(message_s=10)
        ...         print(death.code, death.signal)
        >>> trio.run(main)
        0 None

        Args:
            message_s: Seconds for the stop message, which the caller has sent already, to take effect.
            term_s: Seconds between SIGTERM and SIGKILL.

        Returns:
            The end of the process.

        Raises:
            trio.TooSlowError: A process of the group outlasted even SIGKILL.
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
        """Close the control socket. A task that waits on the socket gets :class:`trio.ClosedResourceError`."""
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
        """Let :func:`~omni_actors.actors.child.adopt` return in the child."""
        if self._gate >= 0:
            with contextlib.suppress(BrokenPipeError):  # the child may be dead already
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
