"""The frames between a process actor and the process that hosts it, and the channel that carries the frames.

A frame is a 4-byte little-endian length and one msgpack-encoded tagged array. ``body`` is a message, an answer or a
signal's value, encoded on its own. The reader decodes ``body`` to the type that the reader wants, never to a type that
the writer names.

============  =========  ================================================================================
frame         direction  meaning
============  =========  ================================================================================
HelloFrame    down       the version, the actor to host, the arguments of its constructor, and the window
StartedFrame  up         the version is the same, and the actor's setup has returned
TellFrame     down       a message
AskFrame      down       a message whose answer is wanted under this id
CancelFrame   down       the asker of this id has gone
SignalFrame   down       a signal
StopFrame     down       end after the current message
TakenFrame    up         the total number of messages taken from the mailbox
AnswerFrame   up         the answer to an ask
RefusedFrame  up         the value of a Refusal that answers an ask
CrashedFrame  up         the actor failed with this error; its process is about to end
============  =========  ================================================================================
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable
from typing import Any

import msgspec
import trio

from omni_actors.actors.errors import ProtocolError

VERSION = 1

MAX_FRAME = 16 << 20
"""Bytes of a frame, at most. Messages are for control; send bulk data by other ways."""

encode = msgspec.msgpack.Encoder().encode

UNENCODABLE = (TypeError, ValueError, OverflowError, RecursionError)
"""The exceptions of :func:`encode` for a value that cannot be sent.

Such values are an object of an unknown class, half a surrogate pair, a number over 64 bits, and too deep a nesting."""


class HelloFrame(msgspec.Struct, tag="hello", array_like=True):
    version: int
    actor: str
    arguments: dict[str, Any]
    window: int


class StartedFrame(msgspec.Struct, tag="started", array_like=True):
    version: int


class TellFrame(msgspec.Struct, tag="tell", array_like=True):
    body: msgspec.Raw


class AskFrame(msgspec.Struct, tag="ask", array_like=True):
    id: int
    body: msgspec.Raw


class CancelFrame(msgspec.Struct, tag="cancel", array_like=True):
    id: int


class SignalFrame(msgspec.Struct, tag="signal", array_like=True):
    key: str
    body: msgspec.Raw


class StopFrame(msgspec.Struct, tag="stop", array_like=True):
    pass


class TakenFrame(msgspec.Struct, tag="taken", array_like=True):
    total: int


class AnswerFrame(msgspec.Struct, tag="answer", array_like=True):
    id: int
    taken: int
    body: msgspec.Raw


class RefusedFrame(msgspec.Struct, tag="refused", array_like=True):
    id: int
    taken: int
    body: msgspec.Raw


class CrashedFrame(msgspec.Struct, tag="crashed", array_like=True):
    kind: str
    text: str
    traceback: str


DOWN = msgspec.msgpack.Decoder(HelloFrame | TellFrame | AskFrame | CancelFrame | SignalFrame | StopFrame)
UP = msgspec.msgpack.Decoder(StartedFrame | TakenFrame | AnswerFrame | RefusedFrame | CrashedFrame)


class FrameChannel:
    """One end of a channel of frames over a non-blocking stream socket. The channel does not own the socket.

    One task receives; another runs :meth:`run_writer` for as long as the channel is used. The receiver sees a broken or
    closed socket as the end; the writing side then drops its frames.
    """

    def __init__(self, sock: socket.socket, decode: Callable[[bytes | memoryview], Any]) -> None:
        self._sock = sock
        self._decode = decode
        self._in = bytearray()
        self._out = bytearray()
        self._kick = trio.Event()
        self._empty = trio.Event()
        self._empty.set()

    def post(self, frame: msgspec.Struct, *, now: bool = True) -> None:
        """Send a frame. Never waits: bytes that the socket does not take are sent later (:meth:`drained` waits).

        Args:
            frame: The frame.
            now: ``False`` leaves the frame to the next turn of the writer, so that several frames leave together.

        Raises:
            ProtocolError: The frame is larger than :data:`MAX_FRAME`.
        """
        data = encode(frame)
        if len(data) > MAX_FRAME:
            raise ProtocolError(f"a frame of {len(data)} bytes is over the limit of {MAX_FRAME}")
        self._out += len(data).to_bytes(4, "little")
        self._out += data
        if now:
            self._send()
        if self._out and self._empty.is_set():
            self._empty = trio.Event()
            self._kick.set()

    @property
    def backlog(self) -> int:
        """The number of bytes posted and not yet sent."""
        return len(self._out)

    async def drained(self) -> None:
        """Wait until everything posted is sent, or the socket is broken."""
        await self._empty.wait()

    async def run_writer(self) -> None:
        """Send posted bytes whenever the socket takes them, until cancelled."""
        while True:
            await self._kick.wait()
            self._kick = trio.Event()
            self._send()
            while self._out:
                with contextlib.suppress(trio.ClosedResourceError):  # sending finds the closed socket too
                    await trio.lowlevel.wait_writable(self._sock)
                self._send()
            self._empty.set()

    async def receive(self) -> Any:
        """Receive the next frame. A checkpoint only if there is none yet; a cancelled call loses nothing.

        Returns:
            The frame, or ``None`` at the end.

        Raises:
            ProtocolError: The bytes are not a frame of this version. The channel is of no use any more.
        """
        while True:
            if len(self._in) >= 4:
                length = int.from_bytes(self._in[:4], "little")
                if length > MAX_FRAME:
                    raise ProtocolError(f"a frame of {length} bytes is over the limit of {MAX_FRAME}")
                if len(self._in) >= 4 + length:
                    frame = bytes(self._in[4 : 4 + length])
                    del self._in[: 4 + length]
                    try:
                        return self._decode(frame)
                    except msgspec.DecodeError as error:
                        raise ProtocolError(str(error)) from error
            try:
                data = self._sock.recv(65536)
            except BlockingIOError:
                try:
                    await trio.lowlevel.wait_readable(self._sock)
                except trio.ClosedResourceError:
                    return None
                continue
            except OSError:
                return None
            if not data:
                return None
            self._in += data

    def _send(self) -> None:
        try:
            del self._out[: self._sock.send(self._out)]
        except BlockingIOError:
            pass
        except OSError:
            self._out.clear()
