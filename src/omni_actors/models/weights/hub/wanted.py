"""The choice of a repository's files needed for serving."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from fnmatch import fnmatchcase
from pathlib import PurePosixPath
from typing import Any

from omni_actors.pipelines.weights.files import OTHER_FORMATS, weights_of

_TEXTS = ("*.json", "*.jinja", "*.model", "*.tiktoken", "merges.txt", "vocab.txt", "LICENSE*", "NOTICE*")
"""Configuration, tokenizers and templates; and what the weights may be used for."""


def texts_of(names: Iterable[str]) -> set[str]:
    """Choose the small files that describe a checkpoint from all files of the repository."""
    return {name for name in names if _visible(name) and _any(PurePosixPath(name).name, _TEXTS)}


def needed_of(names: Iterable[str], patterns: Iterable[str], read: Callable[[str], Any]) -> set[str]:
    """Choose all needed files of a repository: small files, safetensors that a loader reads (``read`` gives the content
    of a JSON file), and files that match ``patterns``."""
    names = list(names)
    present = set(names)
    named = {name for name in names if _visible(name) and _any(name, patterns)}
    return (texts_of(names) | named | weights_of(filter(_visible, names), read)) & present


def _visible(name: str) -> bool:
    parts = PurePosixPath(name).parts
    return not any(part.startswith(".") for part in parts) and not OTHER_FORMATS.intersection(parts[:-1])


def _any(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)
