"""Questions that are asked in processes of their own, each with a deadline.

For code that is not to be trusted with the serving process: a vendor's management library opens the device and may hang
in its driver, a plugin may do anything. What such a process answers is data. Whatever else becomes of it (it crashes,
exits, hangs, floods its output) is a sentence.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import select
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from omni_actors.plugins import answering
from omni_actors.telemetry.opt_out import quiet_environment

MOST_OUTPUT = 1 << 20
"""Bytes that a child may print; one that goes on is ended."""
MOST_ANSWER = 1 << 20
KILL_S = 2.0
"""Seconds that a killed process has to be gone. It takes longer only in a call of a driver that hangs."""

TAIL = 300
"""Bytes of its output that are told when it dies without an answer."""


@dataclass(frozen=True, slots=True)
class Inquiry:
    """A file of Python whose function ``answer(argument)`` returns something that JSON can say. It runs without this
    package's being imported, with this process's ``sys.path``, and with ``environment`` on top of its variables (what
    that has as PYTHONPATH is searched first)."""

    script: Path
    argument: Any = None
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Answer:
    """``value`` as it was returned, if ``trouble`` is empty; else one sentence about what became of the question.
    ``silent`` says that the deadline came first."""

    value: Any = None
    trouble: str = ""
    silent: bool = False


class _Envelope(msgspec.Struct):
    answer: Any = None
    error: str = ""


@dataclass(slots=True, eq=False)
class _Child:
    """A question that is being asked: the process, its pidfd, a pipe for its answer and one for what it prints."""

    popen: subprocess.Popen[bytes]
    life: int
    answers: int
    prints: int
    said: bytearray = field(default_factory=bytearray)
    printed: int = 0
    tail: bytes = b""
    over: bool = False

    def read(self, descriptor: int) -> bool:
        """Take what came; whether more may come from there."""
        content = os.read(descriptor, 1 << 16)
        if descriptor == self.prints:
            self.printed += len(content)
            self.tail = (self.tail + content)[-TAIL:]
        else:
            self.said += content
        return bool(content)

    @property
    def flooding(self) -> bool:
        return self.printed > MOST_OUTPUT or len(self.said) > MOST_ANSWER

    @property
    def answered(self) -> bool:
        return self.said.endswith(b"\n")

    def end(self) -> int | None:
        """Kill what is left of its process group; how the process ended (negative: by that signal). ``None`` if it does
        not end: a hanging driver holds it in the kernel, which reaps it whenever that lets go."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.popen.pid, signal.SIGKILL)  # it is not reaped yet, so the number is still its own
        end = select.poll()
        end.register(self.life, select.POLLIN)
        self.over = True
        return self.popen.wait() if end.poll(KILL_S * 1000) else None

    def last_words(self) -> str:
        os.set_blocking(self.prints, False)
        with contextlib.suppress(BlockingIOError):
            while not self.flooding and self.read(self.prints):
                pass
        lines = self.tail.decode(errors="replace").strip().splitlines()
        return f" ({lines[-1].strip()})" if lines else ""

    def close(self) -> None:
        if not self.over:
            self.end()
        for descriptor in (self.life, self.answers, self.prints):
            os.close(descriptor)


def ask(inquiries: Sequence[Inquiry], within_s: float) -> list[Answer]:
    """Ask them all at once and return each one's answer, at the latest after ``within_s`` seconds (and
    :data:`KILL_S` for each that a driver does not let end).

    Their process groups are killed when this returns, however it does; should this process be killed, they are too.
    """
    with contextlib.ExitStack() as stack:
        children: list[_Child | Answer] = []
        for inquiry in inquiries:
            child = _start(inquiry)
            if isinstance(child, _Child):
                stack.callback(child.close)
            children.append(child)
        running = [child for child in children if isinstance(child, _Child)]
        open_ones = _listen(running, time.monotonic() + within_s)
        return [
            child if isinstance(child, Answer) else _answer_of(child, child in open_ones, within_s)
            for child in children
        ]


def _start(inquiry: Inquiry) -> _Child | Answer:
    answers, answering_end = _pipe()
    prints, printing_end = _pipe()
    first = [entry for entry in inquiry.environment.get("PYTHONPATH", "").split(os.pathsep) if entry]
    path = [entry for entry in sys.path if isinstance(entry, str)]  # imports pass over whatever else is in it
    said = json.dumps({"path": [*first, *path], "argument": inquiry.argument})
    arguments = [str(answering_end), str(os.getpid()), str(inquiry.script), said]
    try:
        popen = subprocess.Popen(
            [sys.executable, "-P", answering.__file__, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=printing_end,
            stderr=printing_end,
            pass_fds=(answering_end,),
            env=quiet_environment(inquiry.environment),
            start_new_session=True,
        )
    except OSError as error:
        os.close(answers)
        os.close(prints)
        return Answer(trouble=f"no process could be started to ask it in: {error}")
    finally:
        os.close(answering_end)
        os.close(printing_end)
    return _Child(popen, os.pidfd_open(popen.pid), answers, prints)


def _pipe() -> tuple[int, int]:
    """None of its ends is one of the numbers that become the child's standard streams, even where ours are closed."""
    ends = os.pipe()
    try:
        reads, writes = (fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 3) for end in ends)
    finally:
        for end in ends:
            os.close(end)
    return reads, writes


def _listen(children: list[_Child], deadline: float) -> set[_Child]:
    """Read until each has answered, ended or printed too much, or the deadline comes: then those are returned that have
    done neither."""
    waiting = set(children)
    with selectors.DefaultSelector() as selector:
        for child in children:
            selector.register(child.answers, selectors.EVENT_READ, child)
            selector.register(child.prints, selectors.EVENT_READ, child)
        while waiting and (left := deadline - time.monotonic()) > 0:
            for key, _ in selector.select(left):
                child = key.data
                if child not in waiting:
                    continue
                more = child.read(key.fd)
                if child.answered or child.flooding or (not more and key.fd == child.answers):
                    waiting.discard(child)
                    for descriptor in (child.answers, child.prints):
                        with contextlib.suppress(KeyError):
                            selector.unregister(descriptor)
                elif not more:
                    selector.unregister(key.fd)
    return waiting


def _answer_of(child: _Child, silent: bool, within_s: float) -> Answer:
    status = child.end()
    if child.answered:
        try:
            envelope = msgspec.json.decode(child.said, type=_Envelope)
        except msgspec.MsgspecError as error:
            return Answer(trouble=f"it answered what is no JSON: {error}")
        return Answer(envelope.answer, one_line(envelope.error))
    if child.flooding:
        return Answer(trouble=f"it printed more than {MOST_OUTPUT >> 20} MiB and did not come to an end")
    if silent or status is None:
        return Answer(trouble=f"it gave no answer in {within_s:g} s", silent=True)
    how = f"died of {_signal_name(-status)}" if status < 0 else f"ended its process with status {status}"
    return Answer(trouble=one_line(f"it {how}{child.last_words()}"))


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def one_line(text: str, most: int = 400) -> str:
    """A text as one line that can be logged, cut where it is longer than that."""
    flat = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return flat if len(flat) <= most else f"{flat[: most - 1]}…"
