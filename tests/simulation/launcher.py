"""Workers as tasks: a launcher whose children run the production worker loop in this process, under virtual time.

A child does what :func:`omni_actors.worker.main.main` does, over real socket pairs, in the same order; between any two
turns of its loop the schedule's chance decides how long it pauses, and a fault may end it, stall it or falsify what it
writes. A child that is killed closes its sockets without a word, as the kernel does for a process.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import trio

from omni_actors.actors.child_process import ChildProcess, Death
from omni_actors.connectors.listener import Listener
from omni_actors.connectors.tcp import TcpLink
from omni_actors.protocol.errors import ErrorInfo, stage_failed
from omni_actors.protocol.frames import Fatal, Ready
from omni_actors.protocol.liveness import Activity
from omni_actors.worker.control_socket import ControlSocket, Hangup
from omni_actors.worker.liveness import Liveness
from omni_actors.worker.loop import Worker
from omni_actors.worker.main import give_up, handshake, load, tell

from .deployments import socket_pair
from .world import WORLD, Crash, World

MOST_TURNS = 20_000
"""Of one worker: more are a loop that does not end."""


class SimChild(ChildProcess):
    """A child whose process is a task. What is inherited sees only ``_gone``, ``death`` and :meth:`send_signal`."""

    def __init__(self, world: World, name: str, pid: int, sock: socket.socket, theirs: socket.socket) -> None:
        self.name = name
        self.pid = self.pgid = pid
        self.sock = sock
        self.death = None
        self.stage, _, rest = name.partition("#")
        self.replica, self.incarnation = map(int, rest.split("@"))
        self.worker: Worker | None = None
        self.engine: Any = None
        self.world = world
        self.turns = 0
        self._theirs = theirs
        self._gone = trio.Event()
        self._life = trio.CancelScope(shield=True)  # its launcher ends it
        self._signal: int | None = None
        self._stall_s = 0.0
        self._held_back = False
        self._writes_left = -1
        self._partial = False
        self._deaf = False

    # ---- what the parent sees

    def send_signal(self, number: int) -> None:
        if number == signal.SIGTERM and self._deaf:
            return
        if self._signal is None and not self._gone.is_set():
            self._signal = number
            self._life.cancel()

    # ---- what befalls it

    def stall(self, seconds: float) -> None:
        """The next turn begins so much later."""
        self._stall_s += seconds

    def lag(self) -> None:
        """What the next turn tells the serving process arrives later than what it tells other workers."""
        self._held_back = True

    def die_writing(self, writes: int, *, partial: bool) -> None:
        """Die at one of the next writes, or within it."""
        self._writes_left, self._partial = writes, partial

    def be_deaf(self) -> None:
        """Hear neither Stop nor SIGTERM."""
        self._deaf = True

    def break_link(self, *, mangle: bool, which: int) -> bool:
        """Break one of the links that can while both ends live, by its end or by what is no frame; whether one is."""
        if self.worker is None or self.death is not None:
            return False
        links = [link for link in self.worker._links if isinstance(link, TcpLink) and link.deadline is None]
        if not links:
            return False
        sock = links[which % len(links)]._sock
        with contextlib.suppress(OSError):
            if mangle:
                sock.send(b"\xff" * 40)
            else:
                sock.shutdown(socket.SHUT_RDWR)
        return True

    def babble(self, data: bytes) -> None:
        """Send this to the serving process."""
        if self.worker is not None and self.death is None:
            self.worker._control._unsent += data
            with contextlib.suppress(Hangup):
                ControlSocket.flush(self.worker._control)

    # ---- its life

    async def live(self, plans: frozenset[str], page: int) -> None:
        world = self.world
        code: int | None = None
        try:
            with self._life:
                code = await self._main(plans, page)
        except Crash:
            self._signal = signal.SIGSEGV
        finally:
            if self._life.cancelled_caught or self._signal is not None:
                code = None
            if self.worker is not None:
                self.worker.close()
                self.worker._liveness.close()
                for fd in self.worker._control._fds:  # of links that it did not come to take
                    os.close(fd)
            else:
                os.close(page)
            self._theirs.close()
            if code != 0:
                world.deaths[self.stage] += 1
                world.inflicted[self.stage] += not (self.engine and self.engine.blamed)
            world.note(f"{self.name} ends: {self._signal or code}")
            self.death = Death(self.name, self.pid, code, self._signal, trio.current_time())
            self._gone.set()

    async def _main(self, plans: frozenset[str], page: int) -> int:
        world, sock = self.world, self._theirs
        await self._pause()
        await trio.lowlevel.wait_readable(sock)
        hello = handshake(sock)
        if hello is None:
            return 1
        await self._pause()
        if "kill_loading" in plans:
            world.hit("kill_loading")
            raise Crash
        listener: Listener | None = None
        try:
            listener = Listener(hello.host) if any(edge.connector == "tcp" for edge in hello.inputs) else None
            if "no_load" in plans:
                world.hit("no_load")
                raise stage_failed(hello.stage, "asked not to load")
            self.engine, bridges, info = load(sock, hello, None)
            await self._pause()
            if "no_ready" in plans:
                world.hit("no_ready")
                await trio.sleep_forever()
            tell(sock, Ready(info, None if listener is None else listener.address))
        except Exception as error:
            give_up(sock, hello, error)
            return 1
        liveness = Liveness(page, lambda: round(trio.current_time() * 1e9))
        self.worker = worker = Worker(sock, hello, self.engine, bridges, listener, liveness)
        self._intercept(worker)
        if "kill_restart" in plans:
            self.die_writing(world.chance.randint(0, 6), partial=False)
        try:
            await self._loop(worker)
        except Hangup:
            pass
        except Exception as error:
            world.hit("last_words")
            reason = f"{type(error).__name__} in the worker's loop: {error}"
            worker.last_words(Fatal(ErrorInfo(message=reason, stage=hello.stage)), patience_s=0.001)
            return 1
        return 0

    async def _loop(self, worker: Worker) -> None:
        world = self.world
        while not worker.stopping or self._deaf:
            patience_s = 1e6 if worker.stopping else worker.patience_s
            if patience_s and not self._held_back:
                with trio.move_on_after(patience_s if patience_s > 0 else float("inf")):
                    await trio.lowlevel.wait_readable(worker.fileno())
            if world.chance.random() < 0.5:
                worker._liveness.enter(Activity.WORKING)
            await self._pause()
            held_back, self._held_back = self._held_back, False
            before = world.bygone(self)
            worker.turn()
            self.turns += 1
            world.after_turn(self, before)
            if held_back:
                world.hit("lag")
                await trio.sleep(world.chance.random() * 0.05)
                worker._control.flush()
            if self.turns > MOST_TURNS:
                world.violate(f"{self.name} does not come to rest")
                raise Crash

    def _intercept(self, worker: Worker) -> None:
        """Put this child's faults at the places where the loop writes."""
        control, links = worker._control, worker._links
        flush_control, flush_link = control.flush, links.flush

        def written(data: bytearray | None = None) -> None:
            if self._writes_left == 0:
                if data and self._partial:
                    self.world.hit("kill_partial")
                    control._sock.send(data[: max(1, len(data) // 2)])
                else:
                    self.world.hit("kill_writing")
                raise Crash
            if self._writes_left > 0:
                self._writes_left -= 1

        def flush() -> None:
            if control._unsent:
                if self._held_back:
                    return
                written(control._unsent)
            flush_control()

        def flush_one(link: Any) -> None:
            written()
            flush_link(link)

        control.flush = flush  # type: ignore[method-assign]
        links.flush = flush_one  # type: ignore[method-assign]

    async def _pause(self) -> None:
        """Let the others go on, for a while or only for their turn."""
        stall_s, self._stall_s = self._stall_s, 0.0
        chance = self.world.chance.random()
        if chance > 0.4:
            stall_s += chance * 0.01 if chance < 0.95 else chance * 0.1
        await trio.sleep(stall_s)


class SimLauncher:
    """Spawns :class:`SimChild`. Made by :func:`open_sim_launcher`."""

    def __init__(self, nursery: trio.Nursery, world: World) -> None:
        self._nursery = nursery
        self._world = world
        self._pids = 1000
        self.children: set[SimChild] = set()

    def spawn(
        self,
        argv: Sequence[str],
        *,
        name: str | None = None,
        env: Mapping[str, str] | None = None,
        pass_fds: Sequence[int] = (),
        **_kept: Any,
    ) -> SimChild:
        assert name is not None
        world = self._world
        stage, _, rest = name.partition("#")
        plans = world.plans_for(stage, int(rest.split("@")[0]))
        if "no_start" in plans:
            world.hit("no_start")
            raise OSError("asked not to start")
        ours, theirs = socket_pair(world.schedule.deployment)
        ours.setblocking(False)
        self._pids += 1
        child = SimChild(world, name, self._pids, ours, theirs)
        world.children[stage, child.replica] = child
        world.spawned.append(child)
        self._nursery.start_soon(child.live, plans, os.dup(pass_fds[0]), name=name)
        return child


@asynccontextmanager
async def open_sim_launcher() -> AsyncIterator[SimLauncher]:
    """As :func:`omni_actors.actors.process.open_launcher`."""
    world = WORLD.get()
    failure: BaseException | None = None
    async with trio.open_nursery() as nursery:
        try:
            yield SimLauncher(nursery, world)
        except BaseException as exception:
            failure = exception
        for child in world.spawned:
            if child.death is None:
                child.kill()
    for child in world.spawned:
        child.close()
    if failure is not None:
        try:
            raise failure
        finally:
            del failure
