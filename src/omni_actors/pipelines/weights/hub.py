"""The Hugging Face cache of this machine, with the snapshots of public checkpoints.

Nothing in this module downloads anything or asks the hub. The layout is the hub client's:
``models--organisation--name`` holds ``refs/main`` (the commit of the branch that was downloaded) and
``snapshots/<commit>`` (links into ``blobs``).
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from omni_actors.pipelines.weights.diffusers_folder import lacking
from omni_actors.pipelines.weights.files import read_json, shards_of

BRANCH = "main"

PUBLIC_NAME = re.compile(r"\w[\w.-]*/\w[\w.-]*")
"""The pattern of a public name: ``organisation/name``."""

REVISION = re.compile(r"\w[\w.-]*(?:/\w[\w.-]*)*")
"""The pattern of the names of branches, tags and commits."""

_COMMIT = re.compile(r"\w[\w.-]*")


def cache_folder(environment: Mapping[str, str] = os.environ) -> Path:
    """Return the folder in which the hub's client keeps snapshots, by the environment variables of the client.

    >>> str(cache_folder({"HF_HOME": "/data/hf"}))
    '/data/hf/hub'
    """
    if given := environment.get("HF_HUB_CACHE") or environment.get("HUGGINGFACE_HUB_CACHE"):
        return Path(given).expanduser()
    base = environment.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(environment.get("HF_HOME") or Path(base, "huggingface")).expanduser() / "hub"


def repository_folder(checkpoint: str, environment: Mapping[str, str] = os.environ) -> Path:
    """Return the cache's folder of a checkpoint."""
    return cache_folder(environment) / f"models--{checkpoint.replace('/', '--')}"


def snapshot_folder(checkpoint: str, environment: Mapping[str, str] = os.environ, revision: str | None = None) -> Path:
    """Return the folder of a checkpoint's snapshot.

    Args:
        checkpoint: The public name.
        environment: The environment variables.
        revision: A branch, tag or commit; ``None`` for the branch main.

    Returns:
        The folder. If the snapshot does not exist, the path names what is missing; a reference without a commit's name
        counts as missing.
    """
    own = repository_folder(checkpoint, environment)
    revision = revision or BRANCH
    try:
        commit = (own / "refs" / revision).read_text(encoding="utf-8").strip()
    except (OSError, ValueError):
        commit = ""
    return own / "snapshots" / (commit if _COMMIT.fullmatch(commit) else revision)


def checkpoint_of(folder: Path) -> tuple[str, str | None] | None:
    """Return the public name of the checkpoint in a folder of the cache, and the commit if it is not that of the branch
    main; ``None`` for any other folder."""
    snapshots, own = folder.parent, folder.parent.parent
    if snapshots.name != "snapshots" or not own.name.startswith("models--"):
        return None
    name = own.name.removeprefix("models--").replace("--", "/", 1)
    is_main = snapshot_folder(name, {"HF_HUB_CACHE": str(own.parent)}) == folder
    return name, None if is_main else folder.name


def is_offline(environment: Mapping[str, str] = os.environ) -> bool:
    """Return whether the environment forbids requests to the hub, by the environment variables of the client."""
    said = environment.get("HF_HUB_OFFLINE") or environment.get("TRANSFORMERS_OFFLINE") or ""
    return said.upper() in ("1", "ON", "YES", "TRUE")


def missing_shards(folder: Path) -> Iterator[Path]:
    """Yield the files that the folder's own indexes of weights name and that do not exist, as after an interrupted
    download; for a folder of diffusers, the components' indexes, folders and weights.

    A folder without an index yields nothing; for a damaged index, the index itself is missing.
    """
    yield from lacking(folder)
    for index in sorted((*folder.glob("*.index.json"), *folder.glob("*/*.index.json"))):
        try:
            shards = [index.parent / shard for shard in shards_of(read_json(index))]
        except (OSError, ValueError):
            yield index
            continue
        yield from (
            shard for shard in shards if not os.path.exists(shard)
        )  # os.path.exists, since a shard's name may be no valid file name
