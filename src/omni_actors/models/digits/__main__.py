"""The process that trains the digits model: ``python -m omni_actors.models.digits``.

The process reads one line of JSON from standard input, the request::

    {"encoder": "…/llm", "folder": "…", "state": "…", "parent": 4711}

with any field of :class:`~omni_actors.models.digits.train.Recipe` beside, and writes lines of JSON to standard output:
``{"step": …, "steps": …, "loss": …, "left_s": …}``, about one a second. It ends when its parent ends; the next process
with the same ``state`` continues.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import msgspec

_PR_SET_PDEATHSIG = 1
_TOLD_S = 1.0


class Progress:
    """Tells the loss (the mean since it was told last) and the time that is left, about once a second."""

    def __init__(self, steps: int) -> None:
        self._steps = steps
        self._first: tuple[int, float] | None = None
        self._said = 0.0
        self._losses: list[float] = []

    def told(self, step: int, loss: float) -> None:
        now = time.monotonic()
        self._losses.append(loss)
        if self._first is None:
            self._first = (step, now)
        if now - self._said < _TOLD_S and step < self._steps:
            return
        first, began = self._first
        left_s = (now - began) / (step - first) * (self._steps - step) if step > first else None
        say(step=step, steps=self._steps, loss=sum(self._losses) / len(self._losses), left_s=left_s)
        self._said, self._losses = now, []


def say(**fields: Any) -> None:
    """Write one line."""
    try:
        os.write(1, (json.dumps(fields) + "\n").encode())
    except BrokenPipeError:
        os._exit(1)


def main() -> None:
    asked = json.loads(sys.stdin.readline())
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != asked.pop("parent"):  # it died before the kernel knew that this process follows it
        os._exit(1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of a terminal: the parent ends this process
    import torch

    from omni_actors.models.digits.train import Recipe, train

    torch.set_num_threads(1)
    encoder, folder, state = (Path(asked.pop(name)) for name in ("encoder", "folder", "state"))
    recipe = msgspec.convert(asked, Recipe, strict=True)
    train(encoder, folder, recipe, state=state, told=Progress(recipe.steps).told)


if __name__ == "__main__":
    main()
