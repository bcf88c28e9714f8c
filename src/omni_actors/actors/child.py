"""The child's side of a process that :class:`~omni_actors.actors.process.Launcher` spawned.

The module needs the standard library only, so that it can run before a slow import.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import socket

CONTROL_VARIABLE = "OMNI_ACTORS_CONTROL"
"""The environment variable ``SOCKET:GATE:PARENT`` of a child.

SOCKET is the descriptor of the control socket, GATE the descriptor of the pipe that says "go", and PARENT the pid of
the process that owns the child.
"""

_PR_SET_PDEATHSIG = 1


class NotAdopted(RuntimeError):
    """This process was not spawned by a launcher, or :func:`adopt` was called twice."""


def adopt() -> socket.socket:
    """Bind this process to the life of its parent, and return the control socket.

    Call ``adopt`` first in the main thread, before a thread or a process is made and before a slow import. When
    ``adopt`` returns:

    - this process is killed (SIGKILL) by the kernel when the thread that spawned it ends, thus when the parent dies,
    - a warden knows the process group, and kills the group when the parent is gone,
    - no descriptor above 2 passes to a program that this process starts, unless it is passed on purpose.

    When the parent is gone already, or gave up on this child, the process exits at once with status 1.

    Returns:
        The control socket to the parent, blocking.

    Raises:
        NotAdopted: This process was not spawned by a launcher, or ``adopt`` was called before.
        OSError: The kernel does not bind this process to its parent.
    """
    try:
        fd, gate, parent = map(int, os.environ.pop(CONTROL_VARIABLE).split(":"))
    except (KeyError, ValueError):
        raise NotAdopted("not started by an omni_actors launcher: no control socket") from None
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    if os.getppid() != parent:  # the parent died before the kernel knew that this process follows
        os._exit(1)
    for name in os.listdir("/proc/self/fd"):
        if int(name) > 2:
            with contextlib.suppress(OSError):  # the directory's own descriptor is closed already
                os.set_inheritable(int(name), False)
    # The parent says "go" when the warden knows this group. Until then nothing may be started that could survive.
    if not os.read(gate, 1):
        os._exit(1)
    os.close(gate)
    control = socket.socket(fileno=fd)
    control.setblocking(True)
    return control
