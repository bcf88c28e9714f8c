"""The serving process's end of a worker's control socket, ordered and non-blocking, which can carry descriptors."""

from __future__ import annotations

import os
import socket
from collections import deque

import trio

_RECV_BYTES = 256 << 10


class Channel:
    """A channel that sends frames and receives bytes.

    ``send`` never waits: it writes as much as the socket takes, and ``run_writer`` writes the rest. Admission bounds
    the waiting frames, since each request sends a bounded number of frames.
    """

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._incoming = memoryview(bytearray(_RECV_BYTES))  # one for all reads: a new one each time costs page faults
        self._out: deque[tuple[bytes | bytearray, int | None]] = deque()
        self._writer: trio.lowlevel.Task | None = None
        self._closed = False

    def send(self, data: bytes, *, later: bool = False) -> None:
        """Queue a frame and write it, at once or (``later``) together with other frames of this turn of the loop."""
        if self._closed:
            return
        out = self._out
        if out and out[-1][1] is None and type(out[-1][0]) is bytearray:
            out[-1][0].extend(data)
        else:
            out.append((bytearray(data), None))
        if later or not self._flush():
            self._wake()

    def send_fd(self, data: bytes, fd: int) -> None:
        """Queue a frame with a descriptor, which is closed here once it is sent, or when the channel closes."""
        if self._closed:
            os.close(fd)
            return
        self._out.append((data, fd))
        if not self._flush():
            self._wake()

    async def run_writer(self) -> None:
        """Write the rest of the frames, until cancelled."""
        while True:
            if self._out:
                if not self._flush():
                    await trio.lowlevel.wait_writable(self._sock)
                continue
            self._writer = trio.lowlevel.current_task()
            await trio.lowlevel.wait_task_rescheduled(self._abort_wait)

    async def receive(self) -> bytes:
        """Receive the next bytes; empty at end-of-file. Always a checkpoint."""
        while True:
            await trio.lowlevel.wait_readable(self._sock)
            try:
                return bytes(self._incoming[: self._sock.recv_into(self._incoming)])
            except (BlockingIOError, InterruptedError):
                continue
            except OSError:
                return b""

    def close(self) -> None:
        """Drop the queued frames. The socket belongs to the child process's object."""
        self._closed = True
        for _data, fd in self._out:
            if fd is not None:
                os.close(fd)
        self._out.clear()

    def _abort_wait(self, _raise_cancel: object) -> trio.lowlevel.Abort:
        self._writer = None
        return trio.lowlevel.Abort.SUCCEEDED

    def _wake(self) -> None:
        if self._writer is not None:
            trio.lowlevel.reschedule(self._writer)
            self._writer = None

    def _flush(self) -> bool:
        """Write as much as the socket takes now; return whether everything is written, or the other end is gone."""
        out = self._out
        while out:
            data, fd = out[0]
            try:
                sent = self._sock.send(data) if fd is None else socket.send_fds(self._sock, [data], [fd])
            except (BlockingIOError, InterruptedError):
                return False
            except OSError:
                self.close()  # the reader sees the end
                return True
            if fd is not None:
                os.close(fd)
            if sent < len(data):
                if type(data) is bytearray:
                    del data[:sent]
                else:
                    out[0] = (bytearray(data[sent:]), None)
                return False
            out.popleft()
        return True
