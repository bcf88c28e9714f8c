"""The Hugging Face cache of this machine: where the snapshot of a public checkpoint lies.

Nothing here fetches anything or asks the hub. The layout is the hub client's: ``models--organisation--name`` holds
``refs/main`` (the commit that was downloaded of the branch) and ``snapshots/<commit>`` (links into ``blobs``).
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from omni_actors.pipelines.weights.files import read_json, shards_of

BRANCH = "main"

PUBLIC_NAME = re.compile(r"\w[\w.-]*/\w[\w.-]*")
"""``organisation/name``, as the hub writes it."""

REVISION = re.compile(r"\w[\w.-]*(?:/\w[\w.-]*)*")
"""Names of branches, tags and commits."""

_COMMIT = re.compile(r"\w[\w.-]*")


def cache_folder(environment: Mapping[str, str] = os.environ) -> Path:
    """Where the hub's client keeps snapshots, by the variables that it reads itself."""
    if given := environment.get("HF_HUB_CACHE") or environment.get("HUGGINGFACE_HUB_CACHE"):
        return Path(given).expanduser()
    base = environment.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(environment.get("HF_HOME") or Path(base, "huggingface")).expanduser() / "hub"


def repository_folder(checkpoint: str, environment: Mapping[str, str] = os.environ) -> Path:
    """The folder with all that the cache has of a checkpoint."""
    return cache_folder(environment) / f"models--{checkpoint.replace('/', '--')}"


def snapshot_folder(checkpoint: str, environment: Mapping[str, str] = os.environ, revision: str | None = None) -> Path:
    """The folder of a checkpoint's snapshot: of the branch main, or of ``revision`` (a branch, tag or commit). When it
    is not there, the path that says what is missing. A reference that holds no commit's name counts as missing."""
    own = repository_folder(checkpoint, environment)
    revision = revision or BRANCH
    try:
        commit = (own / "refs" / revision).read_text(encoding="utf-8").strip()
    except (OSError, ValueError):
        commit = ""
    return own / "snapshots" / (commit if _COMMIT.fullmatch(commit) else revision)


def checkpoint_of(folder: Path) -> tuple[str, str | None] | None:
    """The public name of the checkpoint whose snapshot a folder of the cache is, with the commit if it is not that of
    the branch main; ``None`` for any other folder."""
    snapshots, own = folder.parent, folder.parent.parent
    if snapshots.name != "snapshots" or not own.name.startswith("models--"):
        return None
    name = own.name.removeprefix("models--").replace("--", "/", 1)
    is_main = snapshot_folder(name, {"HF_HUB_CACHE": str(own.parent)}) == folder
    return name, None if is_main else folder.name


def is_offline(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether the environment says that the hub is not to be asked, by the variables that its client reads."""
    said = environment.get("HF_HUB_OFFLINE") or environment.get("TRANSFORMERS_OFFLINE") or ""
    return said.upper() in ("1", "ON", "YES", "TRUE")


def missing_shards(folder: Path) -> Iterator[Path]:
    """Files that the folder's own index of weights names and that are not there (a download that was cut short).

    Nothing for a folder without an index; a damaged index is itself what is missing.
    """
    for index in sorted(folder.glob("*.index.json")):
        try:
            shards = [folder / shard for shard in shards_of(read_json(index))]
        except (OSError, ValueError):
            yield index
            continue
        yield from (shard for shard in shards if not os.path.exists(shard))  # also for what no file can be called
