"""Records of the files that a pull of a public checkpoint has set out to fetch, with sizes and digests.

A record is written before anything large is fetched, so that a snapshot whose download was cut short is told from a
whole one, also by a program that may not ask the hub. It lies in this package's own cache directory: the hub client's
cache holds nothing that is foreign to it. A snapshot that another program has fetched has no record.
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
    """Write down these files (``size`` and ``digest`` of each). ``complete`` says that no more are needed; without it
    they are those that are known so far. Raises OSError."""
    file.parent.mkdir(parents=True, exist_ok=True)
    written = file.with_name(f"{file.name}.{os.getpid()}")
    try:
        written.write_text(json.dumps({"complete": complete, "files": files}, indent=1) + "\n", encoding="utf-8")
        os.replace(written, file)
    finally:
        written.unlink(missing_ok=True)


def unfetched(snapshot: Path) -> list[Path] | None:
    """Files of a snapshot that its record names and that are not there in full; ``None`` without a record. A record
    that is not complete leaves the snapshot's folder itself unfetched."""
    try:
        read = read_json(record_file(snapshot))
        sizes = {name: int(entry["size"]) for name, entry in read["files"].items()}
        complete = read["complete"] is True
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    lacking = [snapshot / name for name, size in sorted(sizes.items()) if _size(snapshot / name) != size]
    return lacking if complete else [snapshot, *lacking]


def is_whole(snapshot: Path) -> bool:
    """Whether all that is needed of a checkpoint is in its snapshot's folder, as far as a quick look tells. Without a
    record, that is weights which are whole by their own formats."""
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
