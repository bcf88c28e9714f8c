"""The life of a worker process: the handshake, loading, and the loop."""

from __future__ import annotations

import gc
import logging
import os
import resource
import socket
from collections.abc import Callable
from typing import Any

import msgspec

from omni_actors.connectors.device import CONNECTOR, DeviceMemory
from omni_actors.connectors.listener import Listener
from omni_actors.protocol.codec import told_frame
from omni_actors.protocol.errors import ErrorInfo, OmniError
from omni_actors.protocol.frames import (
    MAX_CONTROL_FRAME,
    PROTOCOL_VERSION,
    Fatal,
    Hello,
    Progress,
    Ready,
    Welcome,
)
from omni_actors.telemetry.logs import configure
from omni_actors.worker.bridge import Bridge
from omni_actors.worker.compiled import keep_what_is_compiled
from omni_actors.worker.device import runtime_of
from omni_actors.worker.diagnosis import why_not_loaded
from omni_actors.worker.engine import Engine
from omni_actors.worker.liveness import Liveness
from omni_actors.worker.loop import Worker
from omni_actors.worker.named import bridge_named, connectors_of, engine_named
from omni_actors.worker.ranks import Followers, own_rendezvous
from omni_actors.worker.returned import facts_of

log = logging.getLogger("omni_actors.worker")

LOADING_GC = (50_000, 20, 20)
"""Thresholds of the garbage collector while a worker loads. Imports make millions of objects that stay; with the usual
thresholds, walking over them again and again takes 12 % of the time that torch and transformers take to import."""


def main(control: socket.socket) -> int:
    """Serve one incarnation of one replica, and return the exit status."""
    hello = handshake(control)
    if hello is None:
        return 1
    rank = f" rank {hello.rank}" if hello.ranks else ""
    configure(hello.log_level, f"{hello.stage}#{hello.replica}@{hello.incarnation}{rank}")
    _show_as(f"{hello.stage}#{hello.replica}{rank.replace(' rank ', '.')}")
    _take_descriptors()
    keep_what_is_compiled()
    return follow(control, hello) if hello.rank else serve(control, hello)


def serve(control: socket.socket, hello: Hello) -> int:
    """Be the worker known to the serving process: the only rank of its replica, or the leader of the others."""
    followers: Followers | None = None
    try:
        listener = Listener(hello.host) if any(edge.connector == "tcp" for edge in hello.inputs) else None
        followers = Followers(hello, control) if hello.ranks else None
        usual = gc.get_threshold()
        gc.set_threshold(*LOADING_GC)
        engine, bridges, info = load(control, hello, followers)
        memory = device_memory(hello)
        connectors = connectors_of(hello, memory)
        # Objects left by loading live as long as the process: no garbage collection need walk over them.
        gc.collect()
        gc.freeze()
        gc.set_threshold(*usual)
        tell(control, Ready(info, None if listener is None else listener.address))
    except Exception as error:
        give_up(control, hello, error)
        if followers is not None:
            followers.close()
        return 1
    if followers is not None:
        followers.control = None  # from here on the loop owns the control socket
    worker = Worker(control, hello, engine, bridges, listener, Liveness.inherited(), memory, connectors)
    try:
        worker.run()
    except Exception as error:
        log.exception("the worker cannot go on")
        reason = f"{type(error).__name__} in the worker's loop: {error}"
        worker.last_words(Fatal(ErrorInfo(message=reason, stage=hello.stage)), patience_s=1.0)
        return 1
    finally:
        worker.close()
        engine.close()
        if followers is not None:
            followers.close()
    return 0


def follow(control: socket.socket, hello: Hello) -> int:
    """Be a rank led by another process of the replica. The leader owns this process and sees the end of it."""
    try:
        runtime_of(hello)  # first: a runtime may patch modules that must not be imported before
        engine = engine_named(hello)(hello)
        engine.follow(control, own_rendezvous())
    except Exception as error:
        give_up(control, hello, error)
        return 1
    return 0


def _show_as(name: str) -> None:
    """Set the process's name in ``top`` and ``/proc``: all workers have one command line. The kernel keeps 15 bytes."""
    with open("/proc/self/comm", "w") as comm:
        comm.write(name)


def _take_descriptors() -> None:
    """Raise the limit of open descriptors to the hard limit. A slab takes two descriptors here and one in each worker
    that reads the slab, so the usual 1024 are used up by an arena of 2 GiB; the soft limit is low for the sake of
    select(2), unused here."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def handshake(control: socket.socket) -> Hello | None:
    """Read exactly one frame: the frames behind it belong to the loop. Return ``None`` if the frame is not a Hello of
    this version of the protocol."""
    length = int.from_bytes(control.recv(4, socket.MSG_WAITALL), "little")
    if not 0 < length <= MAX_CONTROL_FRAME:
        return None
    try:
        hello = msgspec.msgpack.decode(control.recv(length, socket.MSG_WAITALL), type=Hello)
    except msgspec.DecodeError as error:
        tell(control, Fatal(ErrorInfo(message=f"the first frame is not a Hello: {error}")))
        return None
    if hello.version != PROTOCOL_VERSION:
        message = f"the worker speaks protocol {PROTOCOL_VERSION}, the server {hello.version}"
        tell(control, Fatal(ErrorInfo(message=message)))
        return None
    tell(control, Welcome(PROTOCOL_VERSION, os.getpid()))
    return hello


def load(
    control: socket.socket, hello: Hello, followers: Followers | None
) -> tuple[Engine, dict[int, Callable[[], Bridge]], dict[str, Any]]:
    """Return the loaded engine, the bridges of its inputs, and the facts that the engine reports."""

    def progress(text: str, fraction: float | None = None) -> None:
        tell(control, Progress(text, fraction))

    progress("opening the device")
    runtime_of(hello)  # first: a runtime may patch modules that must not be imported before
    progress("importing the engine")
    engine = engine_named(hello)(hello)
    bridges = {edge.index: bridge_named(edge.bridge) for edge in hello.inputs if edge.bridge}
    info: dict[str, Any] = {"commands": sorted(engine.commands)}
    if followers is not None:
        engine.followers = followers
        followers.greet()
        info["ranks"] = [os.getpid(), *followers.pids]
    return engine, bridges, facts_of(engine, engine.load(progress)) | info


def device_memory(hello: Hello) -> DeviceMemory | None:
    """Return the device's memory for payloads that may stay there; ``None`` if there are no such edges, or if tensors
    cannot leave the device except through the host."""
    if all(edge.connector != CONNECTOR for edge in (*hello.inputs, *hello.outputs)):
        return None
    from omni_actors.worker.tensors import TorchMemory  # imports torch, and some engines do without torch

    return TorchMemory.of(runtime_of(hello))


def give_up(control: socket.socket, hello: Hello, error: Exception) -> None:
    """Report why this worker cannot serve."""
    foreseen = isinstance(error, OmniError) and error.__cause__ is None
    log.error("loading failed: %s", error, exc_info=None if foreseen else error)
    tell(control, Fatal(why_not_loaded(hello, error)))


def tell(control: socket.socket, message: msgspec.Struct) -> None:
    """Send a frame before there is a loop."""
    try:
        control.sendall(told_frame(message))
    except OSError:
        log.warning("the serving process has ended")
