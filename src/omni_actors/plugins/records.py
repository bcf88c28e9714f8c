"""Findings about plug-ins, kept on disk: so that not all plug-ins are imported, each in a process, at every start.

A record holds while the plug-in's code is what it was: its distribution's version, and the size and time of change of
each file of its package, which an editable install changes without a version. One about a plug-in that was broken holds
for :data:`BROKEN_FOR_S`, since what it needs may have been installed meanwhile.
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
"""Files of a package that are looked at; what is found of a larger one is not kept."""


class Record(msgspec.Struct):
    """A plug-in's answer, or one sentence about what became of the question. ``at`` is in seconds since 1970,
    ``code`` says what the plug-in's code was."""

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
        """Return the record of this plug-in's code; ``None`` if there is none that still holds."""
        try:
            record = msgspec.json.decode(self._path(plugin).read_bytes(), type=Record)
        except (OSError, msgspec.MsgspecError):
            return None
        age = time.time() - record.at
        if not record.code or record.code != code_of(plugin) or age < 0 or (record.broken and age > BROKEN_FOR_S):
            return None
        return record

    def write(self, plugin: EntryPoint, record: Record) -> None:
        """Keep what was found. Where it cannot be kept, it is found again the next time."""
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
            log.debug("what was found of plugin '%s' is not kept: %s", plugin.name, error)

    def _path(self, plugin: EntryPoint) -> Path:
        told = "\0".join((sys.prefix, plugin.group, plugin.name, plugin.value))
        return self._folder / f"{hashlib.sha256(told.encode()).hexdigest()[:32]}.json"


def code_of(plugin: EntryPoint) -> str:
    """A text that is another one when the plug-in's code is, or this package's version, or Python's. Empty when its
    files cannot be found without importing it."""
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
