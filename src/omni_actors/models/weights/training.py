"""Weights that are trained on this machine, by a process of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from omni_actors.models.weights.cache import Hold, folder_of, training_folder
from omni_actors.models.weights.catalogue import Weights, named
from omni_actors.models.weights.fetch import unavailable
from omni_actors.pipelines.weights.intact import PULL_COMMAND
from omni_actors.telemetry.opt_out import quiet_environment


def train(weights: Weights, built: Path, report: Callable[[str, int, int], None], hold: Hold) -> None:
    """Train the weights into the folder ``built``. A training that was interrupted is continued.

    Args:
        weights: What to train.
        built: The folder to make.
        report: Told of the progress in words, of the number of steps that are done, and of all steps.
        hold: The cache's lock.

    Raises:
        OmniError: The training failed.
    """
    (encoder,) = (folder_of(named(name)) for name in weights.after)
    asked: dict[str, Any] = {
        "encoder": str(encoder),
        "folder": str(built),
        "state": str(training_folder(weights)),
        "parent": os.getpid(),
        "steps": weights.steps,
    }
    command = [sys.executable, "-m", weights.recipe]
    alone = {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "OMP_NUM_THREADS": "1"}
    quiet = {"TRANSFORMERS_VERBOSITY": "error", "HF_HUB_DISABLE_PROGRESS_BARS": "1"}
    with subprocess.Popen(
        command,
        env=quiet_environment({**alone, **quiet, "TMPDIR": str(hold.staging)}),
        pass_fds=(hold.descriptor,),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        errors="replace",
    ) as child:
        try:
            said = _followed(child, asked, report)
            code = child.wait()
        except BaseException:  # Ctrl-C: the state that was kept last is continued by the next training
            child.kill()
            raise
    if code != 0:
        tail = "\n".join(said[-15:])
        raise unavailable(
            f"Training {weights.title} failed (exit status {code}). The end of its output:\n{tail}\n"
            f"When that is mended, run: {PULL_COMMAND} {weights.name}"
        )


def _followed(
    child: subprocess.Popen[str], asked: dict[str, Any], report: Callable[[str, int, int], None]
) -> list[str]:
    """Ask the process, report its progress until its output ends, and return its other output."""
    assert child.stdin is not None
    assert child.stdout is not None
    report("reading the prompts", 0, asked["steps"])
    with suppress(BrokenPipeError), child.stdin as stdin:
        stdin.write(json.dumps(asked) + "\n")
    said: list[str] = []
    for line in child.stdout:
        try:
            now = json.loads(line)
            report(f"training, loss {now['loss']:.3f}{_left(now['left_s'])}", now["step"], now["steps"])
        except (ValueError, KeyError, TypeError):
            said.append(line.rstrip())
    return said


def _left(seconds: float | None) -> str:
    if seconds is None:
        return ""
    return f", {seconds / 60:.0f} min left" if seconds >= 90 else f", {seconds:.0f} s left"
