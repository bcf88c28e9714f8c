"""Subprocess probes: a question to code in a process of its own, with a deadline.

Probes are for code that is not to be trusted with the serving process: a vendor's management library opens the device
and may hang in its driver, a plugin may do anything. The answer of such a process is data. Any other end of the process
(a crash, an exit, a hang, a flood of output) becomes a sentence.
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

from omni_actors.plugins import probe_child
from omni_actors.telemetry.opt_out import quiet_environment

MOST_OUTPUT = 1 << 20
"""Bytes that a child may print; a child that prints more is ended."""
MOST_ANSWER = 1 << 20
KILL_S = 2.0
"""Seconds for a killed process to be gone. Only a call of a hanging driver takes longer."""

TAIL = 300
"""Bytes of a child's output that are shown if the child dies without an answer."""


@dataclass(frozen=True, slots=True)
class SubprocessProbe:
    """A probe: a Python file whose function ``answer(argument)`` returns a JSON value.

    The file runs without an import of this package, with this process's ``sys.path``, and with ``environment`` on top
    of its variables (a PYTHONPATH there is searched first).
    """

    script: Path
    argument: Any = None
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ProbeAnswer:
    """The result of a probe: ``value`` as returned if ``trouble`` is empty; else ``trouble`` is one sentence about the
    failure. ``silent`` says that the deadline came first."""

    value: Any = None
    trouble: str = ""
    silent: bool = False


class _Envelope(msgspec.Struct):
    answer: Any = None
    error: str = ""


@dataclass(slots=True, eq=False)
class _Child:
    """A running probe: the process, its pidfd, a pipe for the answer and one for printed output."""

    popen: subprocess.Popen[bytes]
    life: int
    answers: int
    prints: int
    said: bytearray = field(default_factory=bytearray)
    printed: int = 0
    tail: bytes = b""
    over: bool = False

    def read(self, descriptor: int) -> bool:
        """Read from one of the pipes, and return whether more may come."""
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
        """Kill the rest of the process group, and return the exit status (negative: a signal). ``None`` if the process
        does not end: a hanging driver holds it in the kernel, which reaps the process when the driver lets go."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(
                self.popen.pid, signal.SIGKILL
            )  # not reaped yet, so the process id cannot belong to another process
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


def run_probes(probes: Sequence[SubprocessProbe], within_s: float) -> list[ProbeAnswer]:
    """Run all probes at once, and return the answer of each.

    Args:
        probes: The probes.
        within_s: The deadline in seconds. Each child that a driver does not let end adds up to :data:`KILL_S`.

    The children's process groups are killed when this function returns or raises, and also if this process is killed.
    """
    with contextlib.ExitStack() as stack:
        children: list[_Child | ProbeAnswer] = []
        for probe in probes:
            child = _start(probe)
            if isinstance(child, _Child):
                stack.callback(child.close)
            children.append(child)
        running = [child for child in children if isinstance(child, _Child)]
        open_ones = _listen(running, time.monotonic() + within_s)
        return [
            child if isinstance(child, ProbeAnswer) else _answer_of(child, child in open_ones, within_s)
            for child in children
        ]


def _start(probe: SubprocessProbe) -> _Child | ProbeAnswer:
    answers, answering_end = _pipe()
    prints, printing_end = _pipe()
    first = [entry for entry in probe.environment.get("PYTHONPATH", "").split(os.pathsep) if entry]
    path = [entry for entry in sys.path if isinstance(entry, str)]  # imports ignore entries that are not strings
    said = json.dumps({"path": [*first, *path], "argument": probe.argument})
    arguments = [str(answering_end), str(os.getpid()), str(probe.script), said]
    try:
        popen = subprocess.Popen(
            [sys.executable, "-P", probe_child.__file__, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=printing_end,
            stderr=printing_end,
            pass_fds=(answering_end,),
            env=quiet_environment(probe.environment),
            start_new_session=True,
        )
    except OSError as error:
        os.close(answers)
        os.close(prints)
        return ProbeAnswer(trouble=f"no process could be started for the probe: {error}")
    finally:
        os.close(answering_end)
        os.close(printing_end)
    return _Child(popen, os.pidfd_open(popen.pid), answers, prints)


def _pipe() -> tuple[int, int]:
    """Return a pipe whose ends are above 2, the numbers of the child's standard streams, even if this process has those
    closed."""
    ends = os.pipe()
    try:
        reads, writes = (fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 3) for end in ends)
    finally:
        for end in ends:
            os.close(end)
    return reads, writes


def _listen(children: list[_Child], deadline: float) -> set[_Child]:
    """Read until each child has answered, ended or printed too much, or the deadline comes. Return the children that
    the deadline found still running."""
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


def _answer_of(child: _Child, silent: bool, within_s: float) -> ProbeAnswer:
    status = child.end()
    if child.answered:
        try:
            envelope = msgspec.json.decode(child.said, type=_Envelope)
        except msgspec.MsgspecError as error:
            return ProbeAnswer(trouble=f"its answer is not JSON: {error}")
        return ProbeAnswer(envelope.answer, one_line(envelope.error))
    if child.flooding:
        return ProbeAnswer(trouble=f"it printed more than {MOST_OUTPUT >> 20} MiB and did not come to an end")
    if silent or status is None:
        return ProbeAnswer(trouble=f"it gave no answer in {within_s:g} s", silent=True)
    how = f"died of {_signal_name(-status)}" if status < 0 else f"ended its process with status {status}"
    return ProbeAnswer(trouble=one_line(f"it {how}{child.last_words()}"))


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def one_line(text: str, most: int = 400) -> str:
    """Return a text as one printable line, cut at ``most`` characters.

    >>> one_line("a  b   c", most=10)
    'a b c'
    """
    flat = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return flat if len(flat) <= most else f"{flat[: most - 1]}…"
