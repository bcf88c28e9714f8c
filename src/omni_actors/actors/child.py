"""The child's side of a process that :class:`~omni_actors.actors.process.Launcher` spawned. Standard library only, so
that it can run before anything heavy is imported."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import socket

CONTROL_VARIABLE = "OMNI_ACTORS_CONTROL"
"""Environment variable ``SOCKET:GATE:PARENT``: the descriptors of the control socket and of the pipe that says "go",
and the pid of the process that owns this one."""

_PR_SET_PDEATHSIG = 1


class NotAdopted(RuntimeError):
    """This process was not spawned by a launcher (or :func:`adopt` was called twice)."""


def adopt() -> socket.socket:
    """Bind this process to its parent's life and return the control socket (blocking).

    Call it first thing in the main thread, before a thread or a process is made and before a slow import. When it
    returns:

    - this process is killed (SIGKILL) by the kernel when the thread that spawned it ends, thus when the parent dies,
    - a warden knows its process group and kills what is left of it when the parent is gone,
    - no descriptor above 2 passes to a program that this process starts (pass it on purpose if it should).

    When the parent is gone already, or gave up on this child, the process ends here and now (status 1).
    """
    try:
        fd, gate, parent = map(int, os.environ.pop(CONTROL_VARIABLE).split(":"))
    except (KeyError, ValueError):
        raise NotAdopted("not started by an omni_actors launcher: no control socket") from None
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    if os.getppid() != parent:  # it died before the kernel knew that we follow it
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
