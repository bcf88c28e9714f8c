"""The hibari package, imported under a name of its own from the weights' folder, without installation."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

NAME = "_omni_demo_hibari"


def package(folder: str | Path) -> ModuleType:
    """Import the package in ``folder/hibari``. Raises :class:`FileNotFoundError` if the folder is missing."""
    if NAME in sys.modules:
        return sys.modules[NAME]
    root = Path(folder) / "hibari"
    init = root / "__init__.py"
    if not init.is_file():
        raise FileNotFoundError(f"no voice in {folder}: run python -m omni_actors models pull demo/tts")
    spec = importlib.util.spec_from_file_location(NAME, init, submodule_search_locations=[str(root)])
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[NAME] = module  # its modules import each other by this name
    spec.loader.exec_module(module)
    return module


def signal_processing(folder: str | Path) -> ModuleType:
    """Return hibari's module for turning spectra into sound."""
    package(folder)
    return importlib.import_module(f"{NAME}.dsp")
