"""The files of a checkpoint that hold the weights that a loader reads.

Repositories often hold their weights several times: in shards with an index, in one file, in a vendor's own format.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import PurePosixPath
from typing import Any

SUFFIX = ".safetensors"
INDEX_SUFFIX = ".safetensors.index.json"
SINGLE = "model.safetensors"
EXPLICIT = "transformers_weights"
"""Key of ``config.json`` that names the file, or the index of files, to read instead of the usual one."""

OTHER_FORMATS = frozenset({"coreml", "flax", "gguf", "metal", "mlx", "onnx", "openvino", "original", "tf"})
"""Names of folders with the same weights for other programs."""


def weights_of(names: Iterable[str], read: Callable[[str], Any]) -> set[str]:
    """Return the files of a checkpoint (paths with ``/``) that are safetensors and are read.

    In each folder these are the shards that an index names and ``model.safetensors``; without either, all of its
    safetensors files. A top-level ``config.json`` that names its weights overrules that. ``read`` gives the content of
    a JSON file among ``names``, or raises ValueError or OSError: such an index names nothing.
    """
    folders: dict[PurePosixPath, set[str]] = {}
    for name in names:
        path = PurePosixPath(name)
        if not OTHER_FORMATS.intersection(path.parts[:-1]):
            folders.setdefault(path.parent, set()).add(path.name)
    found: set[str] = set()
    for folder, inside in folders.items():
        found |= {str(folder / name) for name in _of_folder(folder, inside, read)}
    return found


def shards_of(index: Any) -> list[str]:
    """Return the files that an index of weights (the content of a ``….index.json``) names. Raises ValueError for
    another content."""
    weight_map = index.get("weight_map") if isinstance(index, dict) else None
    if not isinstance(weight_map, dict) or not all(isinstance(shard, str) for shard in weight_map.values()):
        raise ValueError("it has no 'weight_map' of names to files")
    return sorted(set(weight_map.values()))


def _of_folder(folder: PurePosixPath, inside: set[str], read: Callable[[str], Any]) -> set[str]:
    every = {name for name in inside if name.endswith(SUFFIX)}
    indexes = {name for name in inside if name.endswith(INDEX_SUFFIX)}
    single = every & {SINGLE}
    explicit = _explicit(read) if folder == PurePosixPath(".") and "config.json" in inside else None
    if explicit is not None and explicit in inside:
        if explicit in every:
            return {explicit}
        indexes, single = {explicit}, set()
    if not indexes:
        return single or every
    found = set(single)
    for index in indexes:
        try:
            found |= set(shards_of(read(str(folder / index))))
        except (OSError, ValueError):
            continue
    return found


def _explicit(read: Callable[[str], Any]) -> str | None:
    try:
        named = read("config.json").get(EXPLICIT)
    except (OSError, ValueError, AttributeError):
        return None
    return named if isinstance(named, str) else None


def read_json(path: Any) -> Any:
    """Return the content of a JSON file. Raises OSError or ValueError."""
    with open(path, encoding="utf-8") as file:
        return json.load(file)
