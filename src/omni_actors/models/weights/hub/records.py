"""Records of the files that a pull of a public checkpoint intends to fetch, with sizes and digests.

A record is written before anything large is fetched. Any program, even offline, can therefore tell an interrupted
download from a complete snapshot. Records lie in this package's own cache directory, and nothing foreign lies in the
hub client's cache. A snapshot fetched by another program has no record.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from omni_actors.models.weights.cache import cache_root
from omni_actors.pipelines.weights.files import read_json, weights_of
from omni_actors.pipelines.weights.intact import damage_of


def record_file(snapshot: Path) -> Path:
    """Where the record of a snapshot's folder is."""
    return records_folder(snapshot.parent.parent.name) / f"{snapshot.name}.json"


def records_folder(repository: str) -> Path:
    """The folder of a repository's records; it is named as the repository's folder in the hub's cache is."""
    return cache_root() / "hub" / repository


def write_record(file: Path, files: Mapping[str, Mapping[str, Any]], *, complete: bool) -> None:
    """Write a record of files (``size`` and ``digest`` of each). ``complete`` says that no further files are needed;
    otherwise the files are the ones known so far. Raises OSError."""
    file.parent.mkdir(parents=True, exist_ok=True)
    written = file.with_name(f"{file.name}.{os.getpid()}")
    try:
        written.write_text(json.dumps({"complete": complete, "files": files}, indent=1) + "\n", encoding="utf-8")
        os.replace(written, file)
    finally:
        written.unlink(missing_ok=True)


def unfetched(snapshot: Path) -> list[Path] | None:
    """Return the missing or short files of a snapshot by its record; ``None`` without a record. For an incomplete
    record the snapshot's folder itself is returned as unfetched."""
    try:
        read = read_json(record_file(snapshot))
        sizes = {name: int(entry["size"]) for name, entry in read["files"].items()}
        complete = read["complete"] is True
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    lacking = [snapshot / name for name, size in sorted(sizes.items()) if _size(snapshot / name) != size]
    return lacking if complete else [snapshot, *lacking]


def is_whole(snapshot: Path) -> bool:
    """Return whether all needed files of a checkpoint are in the snapshot's folder, by a quick check. Without a record,
    all weights must be whole by their own formats."""
    if not snapshot.is_dir():
        return False
    lacking = unfetched(snapshot)
    if lacking is None:
        names = [path.relative_to(snapshot).as_posix() for path in snapshot.rglob("*")]
        lacking = [] if weights_of(names, lambda name: read_json(snapshot / name)) else [snapshot]
    return not lacking and not damage_of(snapshot)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return -1
