"""The cache directory: the folders of weights, checks of their completeness, and their creation.

A folder of weights appears under its final name by one rename, after all content is on disk. The marker file names the
sources of the folder, and the record has the sizes and digests of its files. A folder with a matching marker was
therefore complete once, whatever process was killed, and the record shows later damage.

Versions of this package with other weights or other conversions have separate folders. Common files are on disk once
(hard links).
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from omni_actors.cache import CACHE_VARIABLE as CACHE_VARIABLE
from omni_actors.cache import cache_root as cache_root
from omni_actors.models.weights.catalogue import DEMO, DIGITS, STYLE, Weights, named
from omni_actors.pipelines.weights.intact import MARKER, RECORD, Damage, damage_of, record

State = Literal["ready", "missing", "damaged"]


def demo_folder() -> Path:
    """The demo's model folder, with ``llm``, ``asr``, ``tts`` and ``vad`` in it when they have been pulled. The
    folder's name stands for exactly the catalogue's weights and recipes."""
    edition = json.dumps([(weights.folder, marker_of(weights)) for weights in DEMO], sort_keys=True)
    return cache_root() / f"demo-{hashlib.sha256(edition.encode()).hexdigest()[:8]}"


def digits_folder() -> Path:
    """The folder of the digits model, whether it has been trained or not."""
    return folder_of(DIGITS)


def style_folder() -> Path:
    """The folder of the networks of style transfer, whether they have been fetched or not."""
    return folder_of(STYLE)


def folder_of(weights: Weights) -> Path:
    return demo_folder() / weights.folder


def training_folder(weights: Weights) -> Path:
    """Return the folder in which an unfinished training of the weights is kept."""
    edition = json.dumps(marker_of(weights), sort_keys=True)
    return cache_root() / "training" / hashlib.sha256(edition.encode()).hexdigest()[:16]


def marker_of(weights: Weights) -> dict[str, Any]:
    """Return the content of the marker of an up-to-date folder."""
    made_with = {"after": [marker_of(named(name)) for name in weights.after]} if weights.after else {}
    return {
        "name": weights.name,
        "package": weights.package,
        "version": weights.version,
        "sha256": weights.sha256,
        "recipe": weights.recipe,
        "revision": weights.revision,
        "licence": weights.licence,
        **made_with,
    }


def state(weights: Weights) -> State:
    """Return whether the weights are in the cache, made by the present version of their recipe, and whole by a quick
    check."""
    if not _holds(folder_of(weights), weights):
        return "missing"
    return "damaged" if damage(weights) else "ready"


def is_there(weights: Weights, demo: Path) -> bool:
    """Return whether a demo's folder has the weights, damaged or not: made by the present version of their recipe, or
    put there by hand, without a marker."""
    folder = demo / weights.folder
    return _holds(folder, weights) or (folder.is_dir() and not (folder / MARKER).exists())


def damage(weights: Weights, *, whole: bool = False) -> list[Damage]:
    """Return the damage of the weights' files: see :func:`~omni_actors.pipelines.weights.intact.damage_of`.

    A folder made by an earlier version of this package has no record. The folder gets a record here if all files are
    whole by their own formats.
    """
    folder = folder_of(weights)
    found = damage_of(folder, whole=whole)
    if not found and folder.is_dir() and not (folder / RECORD).exists():
        with suppress(OSError):  # a cache that may only be read is as good as before
            record(folder)
    return found


def elsewhere(weights: Weights) -> Path | None:
    """Return a folder of the same weights made by another version of this package, if every byte is unchanged."""
    others = (demo / weights.folder for demo in sorted(cache_root().glob("demo*")))
    candidates = (other for other in others if other != folder_of(weights) and _holds(other, weights))
    return next((other for other in candidates if not damage_of(other, whole=True)), None)


def share(other: Path, built: Path) -> None:
    """Make ``built`` of the files of :func:`elsewhere`'s folder: hard links, or copies where there are none."""

    def link(source: str, target: str) -> None:
        try:
            os.link(source, target)
        except OSError:
            shutil.copy2(source, target)

    # The marker is written anew, and a linked one would be the other's too. The second is Python's, not ours.
    shutil.copytree(other, built, copy_function=link, ignore=shutil.ignore_patterns(MARKER, "__pycache__"))


def _holds(folder: Path, weights: Weights) -> bool:
    try:
        return bool(json.loads((folder / MARKER).read_bytes()) == marker_of(weights))
    except (OSError, ValueError):
        return False


def size_on_disk(weights: Weights) -> int:
    """Bytes of the files in the weights' folder; 0 when there is none."""
    return sum(path.stat().st_size for path in folder_of(weights).rglob("*") if path.is_file())


@dataclass(frozen=True, slots=True)
class Hold:
    """The cache's lock, held: an empty ``staging`` directory on the cache's file system, and the lock's descriptor.

    A child process that inherits ``descriptor`` holds the lock too, and can safely outlive a killed parent.
    """

    staging: Path
    descriptor: int


@contextmanager
def locked(waiting: Callable[[], None]) -> Iterator[Hold]:
    """Hold the cache's lock, after removing the remains of dead processes from the staging directory.

    ``waiting`` is called once if another process holds the lock. The lock ends with its holders, in any kind of end.
    """
    root = cache_root()
    root.mkdir(parents=True, exist_ok=True)
    with open(root / "lock", "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            waiting()
            fcntl.flock(lock, fcntl.LOCK_EX)
        staging = root / "staging"
        shutil.rmtree(staging, ignore_errors=True)
        staging.mkdir()
        try:
            yield Hold(staging, lock.fileno())
        finally:
            shutil.rmtree(staging, ignore_errors=True)


def install(weights: Weights, built: Path) -> None:
    """Put the folder ``built`` (on the cache's file system) in place as these weights. Needs the lock."""
    (built / MARKER).write_text(json.dumps(marker_of(weights), indent=2) + "\n")
    if not (built / RECORD).exists():  # else it came along with the files
        record(built)
    for path in sorted(built.rglob("*"), reverse=True):
        _fsync(path)
    _fsync(built)
    target = folder_of(weights)
    target.parent.mkdir(parents=True, exist_ok=True)
    if target.exists():
        # A directory cannot replace a full one: move the old one away first. Killed in between, it is missing.
        os.rename(target, built.with_name(built.name + ".old"))
    os.rename(built, target)
    _fsync(target.parent)


def _fsync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
