"""Bytes and the descriptors that ride on them."""

from __future__ import annotations

import array
import socket

RECV_BYTES = 256 << 10
_MAX_FDS = 16
_SPACE = socket.CMSG_SPACE(_MAX_FDS * array.array("i").itemsize)


class Receiver:
    """Reads a non-blocking Unix socket, always into the same memory: a buffer of this size that is new for each read
    comes from the kernel and goes back to it, at the cost of its page faults (measured: 7 us a read)."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._buffer = memoryview(bytearray(RECV_BYTES))

    def receive(self) -> tuple[bytes, list[int], bool]:
        """What the socket has: at most :data:`RECV_BYTES`, the descriptors on them (close-on-exec: they pass to no
        program that is started), and whether there may be more. No bytes: end-of-file. Raises what ``recvmsg_into``
        does."""
        count, ancillary, _flags, _address = self._sock.recvmsg_into([self._buffer], _SPACE, socket.MSG_CMSG_CLOEXEC)
        fds: list[int] = []
        for level, kind, content in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                packed = array.array("i")
                packed.frombytes(content[: len(content) - len(content) % packed.itemsize])
                fds += packed
        # The kernel ends a read where descriptors lie, so a short one with descriptors is not the last.
        return bytes(self._buffer[:count]), fds, count == RECV_BYTES or bool(fds)
