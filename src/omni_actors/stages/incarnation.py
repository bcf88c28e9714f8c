"""One incarnation of a replica: an actor under the pool's supervisor that owns a worker process."""

from __future__ import annotations

import os
from typing import Never, assert_never

import trio

from omni_actors.actors.actor import Actor
from omni_actors.actors.child_process import ChildProcess, Death
from omni_actors.actors.errors import ProcessDied, Renewed
from omni_actors.actors.process import python_module
from omni_actors.protocol.codec import ProtocolError, up_reader
from omni_actors.protocol.errors import ErrorInfo
from omni_actors.protocol.frames import Fatal, Step, Unlinked
from omni_actors.protocol.liveness import VARIABLE
from omni_actors.protocol.states import ReplicaState
from omni_actors.protocol.status import ExitCause
from omni_actors.stages.channel import Channel
from omni_actors.stages.liveness import LivenessPage, Watch
from omni_actors.stages.replica import StageReplica

EXIT_GRACE_S = 1.0
"""Seconds for a killed worker to end, within which its socket is read to the end."""


class WorkerEnded(ProcessDied):
    """The end of a worker, with the worker's own error if it reported one."""

    def __init__(self, error: ErrorInfo, death: Death | None) -> None:
        Exception.__init__(self, error.message if death is None else f"{error.message} ({death})")


class Incarnation(Actor[Never]):
    """One incarnation of a replica, from the start of a worker to the worker's end. The actor has no messages.

    Setup returns when the worker is ready, within the stage's start timeout. From then on a watch kills a worker that
    has work and makes no progress. When the worker ends, for whatever cause, the incarnation ends with
    :class:`WorkerEnded`, and the pool's supervisor starts the next one after the backoff. A replaced worker ends the
    incarnation with :class:`~omni_actors.actors.errors.Renewed`.
    """

    def __init__(self, replica: StageReplica) -> None:
        self._replica = replica
        self._child: ChildProcess
        self._page: LivenessPage
        self._settled = trio.Event()
        """Set when the worker is ready, or is known never to become ready."""
        self._final_error: ErrorInfo | None = None

    async def setup(self) -> None:
        replica = self._replica
        stage = replica.stage
        try:
            self._page = LivenessPage()
        except OSError as error:  # no descriptor is free
            replica.exited("start", ErrorInfo(message=f"the worker could not be started: {error}", stage=stage.name))
            raise
        try:
            await self._start()
        except BaseException:
            self._page.close()
            raise
        watch = Watch(stage, self._page, replica.has_work)
        replica.watch = watch
        self.start_soon(self._watch, watch)

    async def receive(self, message: Never) -> Never:
        """Never called: the actor has no messages."""
        assert_never(message)

    async def _start(self) -> None:
        replica = self._replica
        stage = replica.stage
        environment = {**os.environ, **stage.environment_of(replica.index), VARIABLE: str(self._page.fd)}
        try:
            self._child = replica.launcher.spawn(
                python_module("omni_actors.worker"), name=replica.name, env=environment, pass_fds=(self._page.fd,)
            )
        except OSError as error:
            replica.exited("start", ErrorInfo(message=f"the worker could not be started: {error}", stage=stage.name))
            raise
        finally:
            self._page.handed_over()
        try:
            channel = Channel(self._child.sock)
            self.start_soon(channel.run_writer)
            self.start_soon(self._read, channel)
            replica.connected(channel, self._child)
            with trio.move_on_after(stage.start_timeout_s):
                await self._settled.wait()
            if not self._settled.is_set():
                self._final_error = ErrorInfo(message=f"not ready after {stage.start_timeout_s:g} s", stage=stage.name)
                raise WorkerEnded(self._final_error, await self._end("start", self._final_error))
        except BaseException:
            with trio.CancelScope(shield=True):
                await self._end("start", self._final_error)
            raise

    async def teardown(self) -> None:
        await self._replica.stop()
        await self._end(None, None)
        self._page.close()

    async def _read(self, channel: Channel) -> None:
        """Read the channel until its end, and report how the worker ended."""
        replica = self._replica
        reader = up_reader()
        cause: ExitCause = "crash"
        try:
            while self._final_error is None and (data := await channel.receive()):
                for message in reader.feed(data):
                    if type(message) is Step:
                        replica.on_step(message)
                    elif type(message) is Fatal:
                        self._final_error = message.error
                    elif type(message) is Unlinked:
                        self.start_soon(replica.on_unlinked, replica, message)
                    else:
                        replica.handle(message)
                if replica.state is ReplicaState.READY:
                    self._settled.set()
        except ProtocolError as broken:
            cause = "protocol"
            self._final_error = ErrorInfo(message=f"protocol error: {broken}", stage=replica.stage.name)
        if replica.state is ReplicaState.DEAD:
            return  # the code that found the worker dead reports it
        if replica.restarting:
            await self._end("replaced", None)
            raise Renewed("its worker was replaced by command")
        if replica.state is ReplicaState.DRAINING:
            self._settled.set()
            return  # the worker was asked to end
        error = self._final_error or ErrorInfo(message="the worker ended without a message", stage=replica.stage.name)
        if replica.state is ReplicaState.STARTING:
            cause = "start"
        if replica.kill_reason is not None:
            cause, error = replica.kill_reason
        # Tell the waiters first, because the end of the whole group may take a moment.
        replica.exited(cause, error)
        raise WorkerEnded(error, await self._end(cause, error))

    async def _watch(self, watch: Watch) -> None:
        """End a worker that is stuck.

        The worker's last frames are read first, and then the end of the socket, which ends the incarnation. If not even
        SIGKILL ends the worker soon, all waiters are told.
        """
        replica = self._replica
        why = f"the worker is stuck: {await watch.until_stuck()}"
        replica.kill("stuck", why)
        await trio.sleep(EXIT_GRACE_S)
        error = ErrorInfo(message=why, stage=replica.stage.name)
        replica.exited("stuck", error)
        raise WorkerEnded(error, await self._end("stuck", error))

    async def _end(self, cause: ExitCause | None, error: ErrorInfo | None) -> Death | None:
        """End the worker, and return its death, or ``None`` if it outlasts SIGKILL. Idempotent."""
        replica = self._replica
        death = None
        try:
            death = await self._child.stop(message_s=0.0, term_s=0.0)
        except trio.TooSlowError:
            pass  # logged by the launcher, and left to the warden
        finally:
            replica.exited(cause, error)
        if death is not None:
            replica.record_exit(death)
        return death


def start_incarnation(replica: StageReplica) -> Incarnation:
    """Begin the next incarnation of a replica, and return its actor: the factory that the pool's supervisor calls."""
    replica.start()
    return Incarnation(replica)
