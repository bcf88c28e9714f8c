"""The Hugging Face cache of this machine: where the snapshot of a public checkpoint lies.

Nothing is fetched and no hub is asked. The layout is the hub client's: ``models--organisation--name`` holds
``refs/main`` (the revision that was downloaded) and ``snapshots/<revision>`` (links into ``blobs``).
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

BRANCH = "main"


def cache_folder(environment: Mapping[str, str] = os.environ) -> Path:
    """Where the hub's client keeps snapshots, by the variables that it reads itself."""
    if given := environment.get("HF_HUB_CACHE") or environment.get("HUGGINGFACE_HUB_CACHE"):
        return Path(given).expanduser()
    base = environment.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(environment.get("HF_HOME") or Path(base, "huggingface")).expanduser() / "hub"


def snapshot_folder(checkpoint: str, environment: Mapping[str, str] = os.environ) -> Path:
    """The folder of a checkpoint's main snapshot. When it is not there, the path that says what is missing."""
    own = cache_folder(environment) / f"models--{checkpoint.replace('/', '--')}"
    try:
        revision = (own / "refs" / BRANCH).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError):
        revision = BRANCH
    return own / "snapshots" / revision


def missing_shards(folder: Path) -> Iterator[Path]:
    """Files that the folder's own index of weights names and that are not there (a download that was cut short).

    Nothing for a folder without an index; a damaged index is itself what is missing.
    """
    for index in sorted(folder.glob("*.index.json")):
        try:
            named = json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()
            shards = [folder / shard for shard in sorted(set(named))]
        except (OSError, ValueError, KeyError, AttributeError, TypeError):
            yield index
            continue
        yield from (shard for shard in shards if not os.path.exists(shard))  # also for what no file can be called
