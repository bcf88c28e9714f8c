"""The parent's side of a warden: it is started, told what is in its care, replaced, dismissed."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys

import trio

from omni_actors.actors import warden

START_S = 10.0
"""Seconds that a new warden may take until it reports for duty."""


class WardenError(Exception):
    """A warden could not be started, so that nothing would keep the promises of a launcher."""


class Custody:
    """A warden process and the line to it. Its making blocks for a fork (some 10 ms)."""

    def __init__(self) -> None:
        self._sock, theirs = socket.socketpair()
        popen: subprocess.Popen[bytes] | None = None
        try:
            popen = subprocess.Popen(
                [sys.executable, "-I", "-S", warden.__file__, str(theirs.fileno()), str(os.getpid())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,  # it must not hold a pipe open that somebody reads to its end
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
        self._at_work = False

    @property
    def pid(self) -> int:
        return self._popen.pid

    @property
    def buried(self) -> bool:
        return self.pidfd < 0

    async def report(self) -> None:
        """Wait until it is at work. Raises :class:`WardenError` if it will not be; it is killed then."""
        with trio.move_on_after(START_S):
            await trio.lowlevel.wait_readable(self._sock)
        try:
            self._at_work = bool(self._sock.recv(1))
        except OSError:
            pass
        if not self._at_work:
            self._popen.kill()
            raise WardenError("the warden process did not start")

    def tell(self, lines: str) -> bool:
        """Give it lines. Returns whether it is known to be at work. If it turns out not to be, its successor is told
        everything anew."""
        data = lines.encode()
        try:
            if self._sock.send(data) == len(data):
                return self._at_work
        except BlockingIOError:
            pass
        except OSError:
            return False
        self._popen.kill()  # it does not read
        return False

    def bury(self) -> None:
        """Reap a warden that has ended."""
        os.close(self.pidfd)
        self.pidfd = -1
        self._sock.close()
        self._popen.wait()

    async def dismiss(self) -> None:
        """End it; first it ends what is still in its care."""
        if self.buried:
            return
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_WR)
        with trio.move_on_after(warden.PATIENCE_S):
            await trio.lowlevel.wait_readable(self.pidfd)
        self._popen.kill()
        self.bury()
