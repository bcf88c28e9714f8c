"""The hosting side of a process actor, run by ``python -m omni_actors.actors.remote``.

:class:`~omni_actors.actors.remote.process_actor.ProcessActor` starts the process and speaks the parent's side.
"""

from __future__ import annotations

import logging
import pkgutil
import traceback
from functools import partial
from typing import Any

import msgspec
import trio

from omni_actors.actors.actor import Actor
from omni_actors.actors.cell import Cell
from omni_actors.actors.child import adopt
from omni_actors.actors.errors import ProtocolError, Refusal
from omni_actors.actors.remote.wire import (
    DOWN,
    UNENCODABLE,
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

HANDSHAKE_S = 10.0
"""Seconds within which the parent's first frame must arrive, and within which the last frame must leave."""

TEXT_LIMIT = 64 << 10
"""Characters of an error's text, and of its traceback, that are sent to the parent."""


class _Host(Actor[msgspec.Raw]):
    """The wrapper of the hosted actor: decodes messages, and counts them for the parent's window."""

    def __init__(self, hello: HelloFrame, channel: FrameChannel) -> None:
        self._channel = channel
        self._window = hello.window
        self._taken = 0
        self._reported = 0
        kind = pkgutil.resolve_name(hello.actor)
        if not (isinstance(kind, type) and issubclass(kind, Actor)):
            raise TypeError(f"{hello.actor} is not a class of actors")
        self._inner: Actor[Any] = kind(**hello.arguments)
        self._decoder = msgspec.msgpack.Decoder(kind.message_type)

    async def setup(self) -> None:
        self._inner._cell = self._cell
        await self._inner.setup()
        self._channel.post(StartedFrame(VERSION))

    async def receive(self, message: msgspec.Raw) -> Any:
        self.count()
        try:
            decoded = self._decoder.decode(message)
        except msgspec.DecodeError as error:
            raise Refusal(f"not a message of this actor: {error}") from None
        return await self._inner.receive(decoded)

    def count(self) -> None:
        """Count a message that has left the mailbox, and tell the parent after every half window."""
        self._taken += 1
        if self._taken - self._reported >= self._window // 2:
            self._channel.post(TakenFrame(self.report()))

    def report(self) -> int:
        """Return the count for a frame that is about to be sent."""
        self._reported = self._taken
        return self._reported

    async def on_signal(self, key: Any, value: msgspec.Raw) -> None:
        await self._inner.on_signal(key, msgspec.msgpack.decode(value))

    async def teardown(self) -> None:
        await self._inner.teardown()


class _HostedActor:
    """One incarnation of the hosted actor, and the channel to its parent."""

    def __init__(self, hello: HelloFrame, channel: FrameChannel) -> None:
        self._channel = channel
        self._host: _Host | None = None
        self._hello = hello
        self._open: dict[int, Reply] = {}
        self._cell = Cell(hello.actor, self._make, hello.window)

    def _make(self) -> _Host:
        self._host = _Host(self._hello, self._channel)
        return self._host

    async def run(self) -> Exception | None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._read, nursery.cancel_scope)
            error = await self._cell.run_incarnation()
            nursery.cancel_scope.cancel()
        return error

    async def _read(self, scope: trio.CancelScope) -> None:
        while (frame := await self._channel.receive()) is not None:
            match frame:
                case TellFrame(body):
                    self._cell.mailbox.put(body)  # the mailbox has room: the parent respects the window
                case AskFrame(number, body):
                    reply = Reply(body, partial(self._settled, number))
                    reply.cell = self._cell
                    self._open[number] = reply
                    self._cell.mailbox.put(reply)
                case CancelFrame(number):
                    asked = self._open.pop(number, None)
                    if asked is not None and asked.withdraw() and self._host is not None:
                        self._host.count()
                case SignalFrame(key, body):
                    self._cell.mailbox.signal(key, body)
                case StopFrame():
                    self._cell.stop()
                case _:
                    raise ProtocolError(f"unexpected {type(frame).__name__}")
        scope.cancel()  # the parent is gone

    def _settled(self, number: int, reply: Reply) -> None:
        del self._open[number]
        taken = 0 if self._host is None else self._host.report()
        try:
            if reply.error is None:
                self._channel.post(AnswerFrame(number, taken, msgspec.Raw(encode(reply.value))))
            elif isinstance(reply.error, Refusal):
                self._channel.post(RefusedFrame(number, taken, msgspec.Raw(encode(reply.error.value))))
            # Any other error ends this incarnation, and the parent fails the asks.
        except (*UNENCODABLE, ProtocolError) as error:
            logger.error("the answer of %s cannot be sent: %s", self._hello.actor, error)
            self._channel.post(RefusedFrame(number, taken, msgspec.Raw(encode(f"the answer cannot be sent: {error}"))))


async def serve(channel: FrameChannel) -> int:
    """Run the actor that the parent names.

    Args:
        channel: The channel to the parent.

    Returns:
        The exit status of the process: 0 after a stop, 1 after a failure.
    """
    async with trio.open_nursery() as nursery:
        nursery.start_soon(channel.run_writer)
        error: Exception | None = None
        with trio.fail_after(HANDSHAKE_S):
            hello = await channel.receive()
        if not isinstance(hello, HelloFrame) or hello.version != VERSION:
            error = ProtocolError(
                f"this process speaks version {VERSION} of the actor protocol, and its parent does not"
            )
        else:
            error = await _HostedActor(hello, channel).run()
        if error is not None:
            text = "".join(traceback.format_exception(error))
            channel.post(CrashedFrame(type(error).__name__, str(error)[:TEXT_LIMIT], text[-TEXT_LIMIT:]))
        with trio.move_on_after(HANDSHAKE_S):
            await channel.drained()
        nursery.cancel_scope.cancel()
    return 0 if error is None else 1


def main() -> int:
    """Adopt this process, and run the actor that the parent names. Returns the exit status."""
    control = adopt()
    control.setblocking(False)
    return trio.run(serve, FrameChannel(control, DOWN.decode))
