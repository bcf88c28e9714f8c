"""A folder of diffusers: ``model_index.json`` names the pipeline's class, and its components with a folder each."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from omni_actors.pipelines.weights.files import read_json

INDEX = "model_index.json"

WEIGHTS = (".safetensors", ".bin", ".gguf", ".pt", ".pth", ".msgpack", ".onnx")
"""Suffixes of files of weights."""


def is_diffusers(folder: Path) -> bool:
    """Return whether a folder is one of diffusers."""
    return (folder / INDEX).is_file()


def class_of(folder: Path) -> str:
    """Return the name of the pipeline's class. Raises OSError, or ValueError for a file that names none."""
    read = read_json(folder / INDEX)
    named = read.get("_class_name") if isinstance(read, dict) else None
    if not isinstance(named, str):
        raise ValueError("it names no '_class_name'")
    return named


def components_of(folder: Path) -> dict[str, tuple[str, str]]:
    """Return the components that a folder's pipeline has, as name → (library, class). A damaged file names none."""
    try:
        read = read_json(folder / INDEX)
    except (OSError, ValueError):
        return {}
    if not isinstance(read, dict):
        return {}
    found = {}
    for name, source in read.items():
        if isinstance(source, list) and len(source) == 2 and all(isinstance(part, str) for part in source):
            found[name] = (source[0], source[1])
    return found


def lacking(folder: Path) -> Iterator[Path]:
    """Yield the components' folders that do not exist, and the files of weights that components lack."""
    for name in components_of(folder):
        own = folder / name
        if not own.is_dir():
            yield own
        elif (own / "config.json").is_file() and not any(path.suffix in WEIGHTS for path in own.iterdir()):
            yield own / "diffusion_pytorch_model.safetensors"
