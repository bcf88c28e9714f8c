"""The parent's side of an actor that runs in a process of its own."""

from __future__ import annotations

import logging
from collections.abc import Hashable, Mapping
from typing import Any

import msgspec
import trio

from omni_actors.actors.actor import Actor
from omni_actors.actors.child_process import ChildProcess
from omni_actors.actors.errors import ProcessDied, ProtocolError, Refusal, RemoteFailure
from omni_actors.actors.process import Launcher, python_module
from omni_actors.actors.remote.wire import (
    UNENCODABLE,
    UP,
    VERSION,
    AnswerFrame,
    AskFrame,
    CancelFrame,
    CrashedFrame,
    FrameChannel,
    HelloFrame,
    RefusedFrame,
    SignalFrame,
    StartedFrame,
    StopFrame,
    TakenFrame,
    TellFrame,
    encode,
)
from omni_actors.actors.reply import Reply

logger = logging.getLogger(__name__)

START_S = 60.0
"""Seconds from the fork within which the actor's setup must return in its process."""

WINDOW = 64
"""Messages that may be on their way to the process, beside the messages in the mailbox here."""

BACKLOG = 64 << 10
"""Bytes not yet taken by the socket, above which this side waits before it sends more."""

STOP_S = 3.0
"""Seconds between the stop message and SIGTERM. SIGKILL comes a second later, within the time of a teardown."""


class ProcessActor(Actor[Any]):
    """An actor that forwards its messages to an actor in a process of its own::

        root.start(lambda: ProcessActor(launcher, "package.module:Class", {"size": 3}), name="worker")

    (``examples/actors/word_count.py`` is a whole program.) Each incarnation is a new process, owned as
    :mod:`omni_actors.actors.process` says. The promises of :class:`~omni_actors.actors.ref.ActorRef` hold, with these
    differences:

    - Messages, answers, refusals and the values of signals must be values that msgspec encodes. The process decodes
      messages to its actor's ``message_type``; this side decodes answers to ``answer_type``. Nothing is unpickled. A
      message that cannot be encoded or decoded is refused (:class:`~omni_actors.actors.errors.Refusal`). Keys of
      signals are strings.
    - Several messages may be on their way. A crash, or the death of the process, fails every ask that is on its way
      with :class:`~omni_actors.actors.errors.ActorCrashed`. Its cause is
      :class:`~omni_actors.actors.errors.RemoteFailure` (an exception in the process, with the traceback from there) or
      :class:`~omni_actors.actors.errors.ProcessDied`.
    - An ask that is cancelled here, or whose time is over, is cancelled in the process too. Code that blocks there (a
      long computation outside of a thread) is not interrupted: the cancellation arrives at the next ``await``.
    """

    def __init__(
        self,
        launcher: Launcher,
        actor: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        answer_type: Any = Any,
        env: Mapping[str, str] | None = None,
    ) -> None:
        """Describe the process; :meth:`setup` starts it.

        Args:
            launcher: The owner of the process.
            actor: The actor's class, as ``package.module:Class``. The process imports it.
            arguments: The keyword arguments of the class, values that msgspec encodes.
            answer_type: The type to which answers are decoded (any type that msgspec knows).
            env: The whole environment of the process; ``None`` inherits this process's environment.
        """
        self._launcher = launcher
        self._actor = actor
        self._arguments = dict(arguments or {})
        self._answers = msgspec.msgpack.Decoder(answer_type)
        self._env = env
        self._child: ChildProcess
        self._channel: FrameChannel
        self._started = trio.Event()
        self._room = trio.Event()
        self._ending = False
        self._sent = 0
        self._taken = 0
        self._pending: dict[int, Reply] = {}

    async def setup(self) -> None:
        """Start the process, and wait until the actor's setup has returned there.

        Cancellation, and every failure, ends the process.

        Raises:
            OSError: The process cannot be started.
            RemoteFailure: The actor's setup failed.
            ProcessDied: The process ended.
            trio.TooSlowError: The setup took more than :data:`START_S` seconds.
        """
        self._child = self._launcher.spawn(
            python_module("omni_actors.actors.remote"), name=self.ref.name, env=self._env
        )
        self._channel = FrameChannel(self._child.sock, UP.decode)
        try:
            self.start_soon(self._channel.run_writer)
            self.start_soon(self._read)
            self._channel.post(HelloFrame(VERSION, self._actor, self._arguments, WINDOW))
            with trio.fail_after(START_S):
                await self._started.wait()
        except BaseException:
            self._ending = True
            await self._child.stop(0, 0)  # runs to its end even when it is cancelled
            raise

    async def receive(self, message: Any) -> None:
        """Send a message to the process. Waits while :data:`WINDOW` messages are on their way.

        Args:
            message: A value that msgspec encodes.

        Raises:
            Refusal: The message cannot be encoded, or is too large.
        """
        reply = self.defer()
        try:
            body = msgspec.Raw(encode(message))
        except UNENCODABLE as error:
            raise Refusal(f"the message cannot be sent: {error}") from error
        while self._sent - self._taken >= WINDOW:
            self._room = trio.Event()
            await self._room.wait()
        if reply is not None and reply.settled:  # the ask was withdrawn meanwhile
            return
        number = self._sent
        try:
            self._channel.post(TellFrame(body) if reply is None else AskFrame(number, body), now=reply is not None)
        except ProtocolError as error:
            raise Refusal(f"the message cannot be sent: {error}") from error
        self._sent += 1
        if reply is not None:
            self._pending[number] = reply
            reply.on_withdrawn(lambda: self._withdrawn(number))
        if self._channel.backlog > BACKLOG:
            await self._channel.drained()

    async def on_signal(self, key: Hashable, value: Any) -> None:
        """Send a signal to the process. A value that cannot be encoded is logged and dropped.

        Args:
            key: The name of the signal, sent as a string.
            value: A value that msgspec encodes.
        """
        try:
            self._channel.post(SignalFrame(str(key), msgspec.Raw(encode(value))))
        except (*UNENCODABLE, ProtocolError) as error:
            logger.error("signal %r to %r cannot be sent: %s", key, self.ref.name, error)
        if self._channel.backlog > BACKLOG:
            await self._channel.drained()

    async def teardown(self) -> None:
        """Stop the actor in its process, and end the process: by message, SIGTERM and SIGKILL."""
        self._channel.post(StopFrame())
        await self._child.stop(STOP_S, 1.0)

    def _withdrawn(self, number: int) -> None:
        del self._pending[number]
        self._channel.post(CancelFrame(number))

    async def _read(self) -> None:
        while (frame := await self._channel.receive()) is not None:
            match frame:
                case AnswerFrame(number, taken, body):
                    self._note_taken(taken)
                    if (reply := self._pending.pop(number, None)) is not None:
                        self._answer(reply, body)
                case RefusedFrame(number, taken, body):
                    self._note_taken(taken)
                    if (reply := self._pending.pop(number, None)) is not None:
                        reply.fail(Refusal(msgspec.msgpack.decode(body)))
                case TakenFrame(total):
                    self._note_taken(total)
                case StartedFrame(version) if version == VERSION:
                    self._started.set()
                case CrashedFrame(kind, text, remote_traceback):
                    raise RemoteFailure(kind, text, remote_traceback)
                case _:
                    raise ProtocolError(f"unexpected {frame!r}")
        if self._ending:
            return
        self._child.kill()  # the process may have closed the channel only
        raise ProcessDied(await self._child.wait())

    def _answer(self, reply: Reply, body: msgspec.Raw) -> None:
        try:
            reply.answer(self._answers.decode(body))
        except msgspec.DecodeError as error:
            reply.fail(Refusal(f"the answer has an unexpected type: {error}"))

    def _note_taken(self, total: int) -> None:
        self._taken = max(self._taken, total)
        self._room.set()
