"""Listing and removing the content of the caches of weights: this package's own cache, and the hub client's."""

from __future__ import annotations

import shutil
import stat
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from omni_actors.models.weights.cache import cache_root, demo_folder, folder_of, locked
from omni_actors.models.weights.catalogue import ALL
from omni_actors.models.weights.hub.records import is_whole, records_folder, unfetched
from omni_actors.pipelines.weights.hub import PUBLIC_NAME, REVISION, cache_folder, repository_folder, snapshot_folder
from omni_actors.pipelines.weights.intact import damage_of
from omni_actors.protocol.errors import OmniError, not_found

_PREFIX = "models--"


@dataclass(frozen=True, slots=True)
class Held:
    """An entry of a cache: ``name`` is the entry's name in commands, ``folders`` are all its folders."""

    name: str
    what: str
    folders: tuple[Path, ...]

    @property
    def size(self) -> int:
        return disk_size(self.folders)


def held() -> list[Held]:
    """Return all entries of the two caches."""
    return [*_own(), *checkpoints()]


def checkpoints() -> Iterator[Held]:
    """The public checkpoints in the hub's cache."""
    for folder in sorted(cache_folder().glob(f"{_PREFIX}*--*")):
        name = folder.name.removeprefix(_PREFIX).replace("--", "/", 1)
        if PUBLIC_NAME.fullmatch(name) and repository_folder(name) == folder and folder.is_dir():
            yield _checkpoint(name)


def state_of(name: str) -> str:
    """``ready``, ``damaged`` or ``incomplete``: what a quick look tells of a checkpoint's main snapshot."""
    snapshot = snapshot_folder(name)
    if is_whole(snapshot):
        return "ready"
    lacking = unfetched(snapshot) or []
    cut_short = snapshot in lacking or any(not path.exists() for path in lacking)
    return "incomplete" if cut_short or not (lacking or damage_of(snapshot)) else "damaged"


def disk_size(folders: Iterable[Path]) -> int:
    """Bytes of the files in folders; those with several names count once, and links for nothing."""
    seen: dict[tuple[int, int], int] = {}
    for folder in folders:
        for path in (folder, *folder.rglob("*")):
            with suppress(OSError):  # it was removed meanwhile
                known = path.lstat()
                if stat.S_ISREG(known.st_mode):
                    seen[known.st_dev, known.st_ino] = known.st_size
    return sum(seen.values())


def find(name: str, revision: str | None = None) -> Held:
    """Find a cache's entry by name. Raises :class:`OmniError` (404) without such an entry."""
    if revision is not None and not REVISION.fullmatch(revision):
        raise not_found(f"'{revision}' is not the name of a revision.")
    if PUBLIC_NAME.fullmatch(name) and repository_folder(name).is_dir():
        return _checkpoint(name) if revision is None else _snapshot(name, revision)
    if revision is not None:
        raise not_found(f"--revision is for public checkpoints; '{name}' is not one in the Hugging Face cache.")
    for weights in ALL:
        if weights.name == name and folder_of(weights).is_dir():
            return Held(name, weights.title, (folder_of(weights),))
    for one in _own():
        if one.name == name:
            return one
    raise not_found(f"The caches contain nothing called '{name}'; 'models du' lists their contents.")


def remove(one: Held) -> None:
    """Remove an entry. Nothing outside the two caches is touched, wherever links lead. Raises OSError, or
    :class:`OmniError` for an entry outside the caches."""
    roots = [cache_root().resolve(), cache_folder().resolve()]
    for folder in one.folders:
        place = folder.parent.resolve() / folder.name
        if folder.name in ("", "..") or not any(root in place.parents for root in roots):
            raise OmniError(not_found(f"{folder} lies outside of the caches.").info)
    with locked(lambda: None):
        for folder in one.folders:
            if folder.is_symlink():
                folder.unlink()
            elif folder.is_dir():
                shutil.rmtree(folder)
            else:
                folder.unlink(missing_ok=True)


_OWN = {
    "demo": "the demo of another version",
    "downloads": "downloads that have not ended",
    "test": "sound for tests",
    "tiny": "tiny checkpoints, for tests",
    "training": "trainings that have not ended",
}
"""What folders of this package's cache hold, by the first word of their names. There are others, and no weights."""


def _own() -> Iterator[Held]:
    for folder in sorted(cache_root().glob("*")):
        what = _OWN.get(folder.name.partition("-")[0])
        if folder.is_dir() and what is not None:
            current = folder == demo_folder()
            yield Held("demo", "the built-in demo", (folder,)) if current else Held(folder.name, what, (folder,))


def _checkpoint(name: str) -> Held:
    folder = repository_folder(name)
    return Held(
        name, "public checkpoint", (folder, records_folder(folder.name), cache_folder() / ".locks" / folder.name)
    )


def _snapshot(name: str, revision: str) -> Held:
    """Return one snapshot, with the blobs used by no other snapshot."""
    folder, snapshot = repository_folder(name), snapshot_folder(name, revision=revision)
    if not snapshot.is_dir():
        raise not_found(f"'{name}' has no revision '{revision}' in the Hugging Face cache.")
    others = [path for path in (folder / "snapshots").iterdir() if path != snapshot]
    kept = {path.resolve() for other in others for path in other.rglob("*") if path.is_symlink()}
    own = {path.resolve() for path in snapshot.rglob("*") if path.is_symlink()} - kept
    references = [
        path
        for path in (folder / "refs").rglob("*")
        if path.is_file() and path.read_text(encoding="utf-8", errors="replace").strip() == snapshot.name
    ]
    blobs = [path for path in own if path.parent == (folder / "blobs").resolve()]
    record = records_folder(folder.name) / f"{snapshot.name}.json"
    return Held(f"{name} at {snapshot.name}", "one revision", (snapshot, *references, *blobs, record))
