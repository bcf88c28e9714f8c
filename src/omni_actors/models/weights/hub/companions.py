"""Further repositories named by a checkpoint and read by its pipeline, such as the codec of a speech model.

No model library is imported here.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from omni_actors.pipelines.weights.files import read_json
from omni_actors.pipelines.weights.hub import PUBLIC_NAME, snapshot_folder


def codec_of(folder: Path) -> str | None:
    """Return the codec named by a checkpoint's processor: a path in the folder, a path on the machine, or a public
    name; ``None`` without a codec. Raises OSError or ValueError for unreadable files."""
    named = _read(folder / "audio_tokenizer_config.json") or _read(folder / "processor_config.json").get(
        "audio_tokenizer"
    )
    name = named.get("audio_tokenizer_name_or_path") if isinstance(named, dict) else None
    return name if isinstance(name, str) and name else None


def places_of(folder: Path, name: str) -> tuple[Path, ...]:
    """Return the possible places of a checkpoint's codec, in the order of the search."""
    return folder / name, Path(name), snapshot_folder(name)


def companions_of(folder: Path) -> list[str]:
    """Return the public names of repositories needed beside a checkpoint's folder, present or not."""
    try:
        name = codec_of(folder)
    except (OSError, ValueError):
        return []  # its own files are looked at elsewhere
    if name is None or any((place / "config.json").exists() for place in places_of(folder, name)[:2]):
        return []
    return [name] if PUBLIC_NAME.fullmatch(name) else []


def _read(path: Path) -> dict[str, Any]:
    try:
        read = read_json(path)
    except FileNotFoundError:
        return {}
    return read if isinstance(read, dict) else {}
