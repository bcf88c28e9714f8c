"""Repositories that a checkpoint names and that its pipeline reads beside it: the codec of a speech model.

No model library is imported here.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from omni_actors.pipelines.weights.files import read_json
from omni_actors.pipelines.weights.hub import PUBLIC_NAME, snapshot_folder


def codec_of(folder: Path) -> str | None:
    """Return the codec that a checkpoint's processor names: a path in its folder, a path of this machine, or a public
    name; ``None`` when it names none. Raises OSError or ValueError for files that cannot be read."""
    named = _read(folder / "audio_tokenizer_config.json") or _read(folder / "processor_config.json").get(
        "audio_tokenizer"
    )
    name = named.get("audio_tokenizer_name_or_path") if isinstance(named, dict) else None
    return name if isinstance(name, str) and name else None


def places_of(folder: Path, name: str) -> tuple[Path, ...]:
    """Where a checkpoint's codec may lie, in the order in which it is looked for."""
    return folder / name, Path(name), snapshot_folder(name)


def companions_of(folder: Path) -> list[str]:
    """The public names of repositories that are needed beside a checkpoint's folder, whether or not they are here."""
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
