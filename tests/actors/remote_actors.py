"""Actors that tests run in processes of their own: ``remote_actors:Recorder`` with this folder on PYTHONPATH."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import msgspec
import trio

from omni_actors.actors import Actor, Refusal, Reply


class Add(msgspec.Struct, tag="add"):
    left: int
    right: int


class Fail(msgspec.Struct, tag="fail"):
    text: str


class Typed(Actor[Add | Fail]):
    message_type = Add | Fail

    async def receive(self, message: Add | Fail) -> Any:
        match message:
            case Add(left, right):
                return left + right
            case Fail(text):
                raise Refusal(Fail(text))


class Recorder(Actor[Any]):
    """An actor that records messages, answers ``log`` with its records, and obeys some other words."""

    def __init__(self, marker: str | None = None, fail: bool = False, slow_s: float = 0) -> None:
        self.log: list[Any] = []
        self.marker = marker
        self.fail = fail
        self.slow_s = slow_s
        self.kept: list[Reply] = []

    async def setup(self) -> None:
        await trio.sleep(self.slow_s)
        if self.fail:
            raise OSError("no weights here")

    async def receive(self, message: Any) -> Any:
        match message:
            case "log":
                return self.log
            case "pid":
                return os.getpid()
            case "crash":
                raise ValueError("remote boom")
            case "exit":
                os._exit(7)
            case "defer":
                if (reply := self.defer()) is not None:
                    self.kept.append(reply)
            case "settle":
                for number, reply in enumerate(self.kept):
                    reply.answer(number)
            case "object":
                return object()
            case "number":
                return 1 << 64
            case "refuse":
                raise Refusal(object())
            case ["sleep", seconds]:
                self.log.append("begun")
                try:
                    await trio.sleep(seconds)
                except trio.Cancelled:
                    self.log.append("cancelled")
                    raise
                self.log.append("slept")
            case _:
                self.log.append(message)
        return message

    async def on_signal(self, key: Any, value: Any) -> None:
        self.log.append([key, value])

    async def teardown(self) -> None:
        if self.marker:
            Path(self.marker).write_text("torn down")
