"""Bytes and the descriptors that ride on them."""

from __future__ import annotations

import array
import socket

RECV_BYTES = 256 << 10
_MAX_FDS = 16
_SPACE = socket.CMSG_SPACE(_MAX_FDS * array.array("i").itemsize)


def receive(sock: socket.socket) -> tuple[bytes, list[int], bool]:
    """What a non-blocking Unix socket has: at most :data:`RECV_BYTES`, the descriptors on them (close-on-exec: they
    pass to no program that is started), and whether there may be more. No bytes: end-of-file. Raises what ``recvmsg``
    does.

    :func:`socket.recv_fds` would do, but drops its flags (Python 3.11).
    """
    data, ancillary, _flags, _address = sock.recvmsg(RECV_BYTES, _SPACE, socket.MSG_CMSG_CLOEXEC)
    fds: list[int] = []
    for level, kind, content in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            packed = array.array("i")
            packed.frombytes(content[: len(content) - len(content) % packed.itemsize])
            fds += packed
    # The kernel ends a read where descriptors lie, so a short one with descriptors is not the last.
    return data, fds, len(data) == RECV_BYTES or bool(fds)
