"""The rooms of the house: who may import whom, and what the serving process never loads."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

SERVING_ROOMS = ("entrypoints", "sessions", "orchestrator", "stages", "pipelines", "protocol", "actors", "telemetry")

IMPORT_ALL_OF_SERVING = f"""
import importlib, pathlib, sys
import omni_actors
root = pathlib.Path(omni_actors.__file__).parent
modules = [f for room in {SERVING_ROOMS!r} for f in (root / room).rglob("*.py")]
modules += (root / "models").glob("*/pipeline.py")
for file in modules:
    parts = file.relative_to(root.parent).with_suffix("").parts
    if parts[-1] == "__main__":
        continue
    importlib.import_module(".".join(parts[:-1] if parts[-1] == "__init__" else parts))
assert len(modules) > 10, modules
from pkgutil import resolve_name
from omni_actors.pipelines.registry import Registry
registry = Registry.installed([])
for describe in filter(None, (registry.load(name).describe for name in registry.targets)):
    assert callable(resolve_name(describe)), describe
heavy = {{"torch", "transformers", "onnxruntime", "diffusers", "vllm", "omni_actors.worker"}} & set(sys.modules)
sys.exit(f"the serving process loaded {{sorted(heavy)}}" if heavy else 0)
"""


@pytest.mark.deadline(120)
def test_import_contract_is_kept() -> None:
    command = [str(Path(sys.executable).with_name("lint-imports")), "--no-cache"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.deadline(120)
def test_serving_process_never_loads_model_code() -> None:
    done = subprocess.run([sys.executable, "-c", IMPORT_ALL_OF_SERVING], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
