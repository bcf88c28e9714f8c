"""A cache of tiny checkpoints for tests and benchmarks."""

from __future__ import annotations

import hashlib
import shutil
import tempfile
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from omni_actors.models.tiny import build
from omni_actors.models.weights.cache import cache_root

LIBRARIES = ("torch", "transformers", "tokenizers", "safetensors", "diffusers")


def edition() -> str:
    """Return a name that changes with this package's sources and the versions of the libraries that build
    checkpoints."""
    digest = hashlib.sha256()
    root = Path(__file__).parent
    for source in sorted(root.rglob("*.py")):
        digest.update(source.relative_to(root).as_posix().encode() + source.read_bytes())
    for library in LIBRARIES:
        digest.update(f"{library}=={_version(library)}".encode())
    return digest.hexdigest()[:12]


def _version(library: str) -> str:
    try:
        return version(library)
    except PackageNotFoundError:  # not every environment makes pictures
        return "none"


def cached(family: str) -> Path:
    """Return the folder of `family`'s tiny checkpoint in the cache directory, and build the checkpoint if it is
    missing.

    Several processes may call this function at the same time: a folder appears whole, by one rename, and the first one
    stays.
    """
    folder = cache_root() / f"tiny-{edition()}" / family
    if folder.exists():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    building = Path(tempfile.mkdtemp(prefix=f".{family}-", dir=folder.parent))
    try:
        build(family, building)
        building.chmod(0o755)
        try:
            building.rename(folder)
        except OSError:
            if not folder.exists():
                raise
    finally:
        shutil.rmtree(building, ignore_errors=True)
    return folder
