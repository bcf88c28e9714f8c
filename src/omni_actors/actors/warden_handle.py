"""The owner's side of a warden: start the process, tell it the process groups in its care, reap it, close it."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys

import trio

from omni_actors.actors import warden

START_S = 10.0
"""Seconds within which a new warden must report that it works."""


class WardenError(Exception):
    """No warden could be started, so nothing would keep the promises of a launcher."""


class WardenHandle:
    """A warden process and the socket to it. Constructing the handle blocks for a fork (some 10 ms)."""

    def __init__(self) -> None:
        self._sock, theirs = socket.socketpair()
        popen: subprocess.Popen[bytes] | None = None
        try:
            popen = subprocess.Popen(
                [sys.executable, "-I", "-S", warden.__file__, str(theirs.fileno()), str(os.getpid())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,  # the warden must hold no pipe open that somebody reads to its end
                cwd="/",
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
            )
            self.pidfd = os.pidfd_open(popen.pid)
        except BaseException:
            self._sock.close()
            if popen is not None:
                popen.kill()
                popen.wait()
            raise
        finally:
            theirs.close()
        self._sock.setblocking(False)
        self._popen = popen
        self._ready = False

    @property
    def pid(self) -> int:
        """The warden's process id."""
        return self._popen.pid

    @property
    def reaped(self) -> bool:
        """Whether the warden has ended and been reaped."""
        return self.pidfd < 0

    async def wait_ready(self) -> None:
        """Wait at most :data:`START_S` seconds until the warden works.

        Raises:
            WardenError: The warden did not start. The process is killed.
        """
        with trio.move_on_after(START_S):
            await trio.lowlevel.wait_readable(self._sock)
        try:
            self._ready = bool(self._sock.recv(1))
        except OSError:
            pass
        if not self._ready:
            self._popen.kill()
            raise WardenError("the warden process did not start")

    def send(self, lines: str) -> bool:
        """Send lines to the warden; never waits.

        Returns:
            Whether the warden is known to work. If not, the warden is replaced, and the owner sends every group to the
            new one.
        """
        data = lines.encode()
        try:
            if self._sock.send(data) == len(data):
                return self._ready
        except BlockingIOError:
            pass
        except OSError:
            return False
        self._popen.kill()  # the warden does not read its socket
        return False

    def reap(self) -> None:
        """Reap a warden that has ended, and close the socket."""
        os.close(self.pidfd)
        self.pidfd = -1
        self._sock.close()
        self._popen.wait()

    async def close(self) -> None:
        """End the warden after it has ended every group still in its care; reap it.

        Waits at most :data:`~omni_actors.actors.warden.PATIENCE_S` seconds before the warden itself is killed.
        """
        if self.reaped:
            return
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_WR)
        with trio.move_on_after(warden.PATIENCE_S):
            await trio.lowlevel.wait_readable(self.pidfd)
        self._popen.kill()
        self.reap()
