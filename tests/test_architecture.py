"""The packages: what the serving process never loads, and where the names of devices may stand."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

SERVING_PACKAGES = ("entrypoints", "sessions", "orchestrator", "stages", "pipelines", "protocol", "actors", "telemetry")

IMPORT_ALL_OF_SERVING = f"""
import importlib, pathlib, sys
import omni_actors
root = pathlib.Path(omni_actors.__file__).parent
modules = [f for package in {SERVING_PACKAGES!r} for f in (root / package).rglob("*.py")]
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
heavy = {{"torch", "transformers", "onnxruntime", "diffusers", "vllm"}} & set(sys.modules)
# Of the worker only the declarations of an engine's options are loaded, and the packages around them.
allowed = {{"omni_actors.worker", "omni_actors.worker.engines"}}
for name in [name for name in sys.modules if name.startswith("omni_actors.worker.engines.")]:
    engine, _, file = name.removeprefix("omni_actors.worker.engines.").partition(".")
    if file in ("", "options"):
        allowed.add(name)
heavy |= {{name for name in sys.modules if name.startswith("omni_actors.worker")}} - allowed
sys.exit(f"the serving process loaded {{sorted(heavy)}}" if heavy else 0)
"""

PLAN_EVERY_PIPELINE = """
import sys
from omni_actors.pipelines.factory import resolve, settings_of
from omni_actors.pipelines.plan import PlanError
from omni_actors.pipelines.registry import Registry
from omni_actors.pipelines.planning.versions import check_versions
names = list(Registry.installed([]).targets)
assert len(names) > 3, names
for name in names:
    plan = resolve(name)
    settings_of(plan)
    try:
        check_versions(plan)
    except PlanError as error:  # of what vLLM alone computes
        assert str(error).startswith("vllm is not installed"), error
heavy = {"torch", "transformers", "onnxruntime", "diffusers", "vllm"} & set(sys.modules)
sys.exit(f"who makes a plan has loaded {sorted(heavy)}" if heavy else 0)
"""
"""The declaration of an engine's options stands beside the engine, in the worker's package."""


@pytest.mark.deadline(120)
@pytest.mark.parametrize("script", [IMPORT_ALL_OF_SERVING, PLAN_EVERY_PIPELINE], ids=["imports", "plans"])
def test_serving_process_never_loads_model_code(script: str) -> None:
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


DEVICE_MODULES = {"cuda", "hip", "mps", "musa", "npu", "xpu"}
"""Vendors' modules of torch, which are also what tensors are asked (``is_cuda``)."""

DEVICE_WORDS = re.compile(
    r"\btorch\.(?:backends\.)?(?:cuda|hip|mps|musa|npu|xpu)\b"
    r"|\b(?:HIP|NVML|nvml\w*|pynvml|amdsmi\w*|torch_npu|torch_musa|torchada|hccl|rccl|xccl)\b"
)


def device_names(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Where code asks what device it is on: a vendor's module of torch, or the kind of a tensor's device. Whether
    memory is the host's (``is_cpu``) is no such question."""
    asked = {f"is_{module}" for module in DEVICE_MODULES}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            owner = getattr(node.value, "id", getattr(node.value, "attr", None))
            vendor = owner == "torch" and node.attr in DEVICE_MODULES
            if vendor or node.attr in asked or (owner == "device" and node.attr == "type"):
                yield node.lineno, ast.unparse(node)
        elif isinstance(node, ast.ImportFrom | ast.Import):
            modules = [it.name for it in node.names] + [getattr(node, "module", None) or ""]
            yield from ((node.lineno, it) for it in modules if DEVICE_WORDS.search(it))


def test_device_words_are_at_home_in_platforms_only() -> None:
    source = ROOT / "src/omni_actors"
    found = []
    files = [it for it in source.rglob("*.py") if not it.is_relative_to(source / "platforms")]
    for file in files:
        text = file.read_text()
        words = [(text.count("\n", 0, it.start()) + 1, it.group()) for it in DEVICE_WORDS.finditer(text)]
        found += [f"{file.relative_to(ROOT)}:{line}: {name}" for line, name in [*device_names(ast.parse(text)), *words]]
    assert len(files) > 100
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    "code",
    [
        "torch.cuda.synchronize()",
        "if x.is_cuda: pass",
        "fast = weight.device.type != 'cpu'",
        "import torch.xpu",
        "from torch.npu import Stream",
        "getattr(torch, 'npu').synchronize()  # torch.npu",
    ],
)
def test_a_device_word_is_seen_in_every_form(code: str) -> None:
    assert list(device_names(ast.parse(code))) or DEVICE_WORDS.search(code)
