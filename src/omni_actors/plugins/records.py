"""Findings about plug-ins, kept on disk, so that a start need not import every plug-in in a process of its own.

A record holds while the plug-in's code is unchanged: the version of its distribution, and the size and modification
time of each file of its package, since an editable install changes files without a new version. A record about a broken
plug-in holds for :data:`BROKEN_FOR_S`, since a missing requirement may have been installed meanwhile.
"""

from __future__ import annotations

import hashlib
import importlib.util
import logging
import os
import sys
import tempfile
import time
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import msgspec

from omni_actors.cache import cache_root
from omni_actors.version import __version__

log = logging.getLogger(__name__)

BROKEN_FOR_S = 600.0
MOST_FILES = 2000
"""Most files of a package that are compared; findings about a larger package are not kept."""


class Record(msgspec.Struct):
    """A plug-in's answer, or one sentence about the failure. ``at`` is in seconds since 1970, ``code`` identifies the
    plug-in's code."""

    trouble: str = ""
    answer: Any = None
    at: float = 0.0
    code: str = ""

    @property
    def broken(self) -> bool:
        return bool(self.trouble) or (isinstance(self.answer, dict) and bool(self.answer.get("broken")))


class Records:
    """The records of one cache directory: one small file for each plug-in of each environment."""

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder or cache_root() / "plugins"

    def read(self, plugin: EntryPoint) -> Record | None:
        """Return the record of this plug-in's code; ``None`` if there is no valid one."""
        try:
            record = msgspec.json.decode(self._path(plugin).read_bytes(), type=Record)
        except (OSError, msgspec.MsgspecError):
            return None
        age = time.time() - record.at
        if not record.code or record.code != code_of(plugin) or age < 0 or (record.broken and age > BROKEN_FOR_S):
            return None
        return record

    def write(self, plugin: EntryPoint, record: Record) -> None:
        """Keep a finding. A finding that cannot be written is made again the next time."""
        record.at, record.code = time.time(), code_of(plugin)
        if not record.code:
            return
        path = self._path(plugin)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile(dir=path.parent, prefix=".", delete=False) as file:
                file.write(msgspec.json.encode(record))
            os.replace(file.name, path)
        except OSError as error:
            log.debug("the finding about plugin '%s' is not kept: %s", plugin.name, error)

    def _path(self, plugin: EntryPoint) -> Path:
        told = "\0".join((sys.prefix, plugin.group, plugin.name, plugin.value))
        return self._folder / f"{hashlib.sha256(told.encode()).hexdigest()[:32]}.json"


def code_of(plugin: EntryPoint) -> str:
    """Return a text that changes with the plug-in's code, this package's version and Python's. Empty if the files
    cannot be found without an import."""
    files = _files(plugin.value.partition(":")[0].partition(".")[0])
    if not files:
        return ""
    digest = hashlib.sha256()
    version = "" if plugin.dist is None else f"{plugin.dist.name} {plugin.dist.version}"
    digest.update("\0".join((__version__, sys.version, plugin.value, version)).encode())
    for file in files:
        try:
            it = file.stat()
        except OSError:
            return ""
        digest.update(f"\0{file}\0{it.st_size}\0{it.st_mtime_ns}".encode())
    return digest.hexdigest()


def _files(package: str) -> list[Path]:
    try:
        spec = importlib.util.find_spec(package)
    except (ImportError, ValueError, AttributeError):
        return []
    if spec is None:
        return []
    if spec.submodule_search_locations is None:
        return [Path(spec.origin)] if spec.origin and Path(spec.origin).is_file() else []
    found: list[Path] = []
    for place in spec.submodule_search_locations:
        for file in Path(place).rglob("*.py"):
            found.append(file)
            if len(found) > MOST_FILES:
                return []
    return sorted(found)
