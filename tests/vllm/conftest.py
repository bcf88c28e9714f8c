"""The tests of the vLLM engine need vLLM, which has an environment of its own: ``make vllm-test``. Elsewhere they are
skipped, and say so."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
INSTALLED = find_spec("vllm") is not None
SHAPE = {"hidden_size": 128, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32}
"""vLLM's attention on the CPU has no heads of 16."""
EAGER = {"kv_memory_mib": 64, "arguments": {"enforce_eager": True}}
"""Options of a stage whose start should not take longer than it must."""

Direct = Callable[[Path, list[dict[str, Any]]], list[dict[str, Any]]]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker("vllm")
            if not INSTALLED:
                item.add_marker(pytest.mark.skip(reason="vLLM is not installed here: make vllm-test"))


@pytest.fixture(scope="session")
def tiny_qwen3(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Qwen3 with random weights, a token per byte."""
    from tests.worker.engines import tiny_models

    folder = tmp_path_factory.mktemp("qwen3")
    tiny_models.save(folder, "qwen3", **SHAPE)
    return folder


@pytest.fixture(scope="session")
def tiny_idefics3(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Idefics3 with random weights."""
    from tests.vllm import tiny_idefics3

    folder = tmp_path_factory.mktemp("idefics3")
    tiny_idefics3.save(folder)
    return folder


@pytest.fixture(scope="session")
def accent(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A LoRA adapter of the tiny Qwen3 that changes what it says."""
    import torch
    from safetensors.torch import save_file

    folder, random = tmp_path_factory.mktemp("accent"), torch.Generator().manual_seed(0)
    width, rank, heads = SHAPE["hidden_size"], 8, SHAPE["num_attention_heads"] * SHAPE["head_dim"]
    weights = {}
    for layer in range(3):
        at = f"base_model.model.model.layers.{layer}.self_attn.q_proj"
        weights[f"{at}.lora_A.weight"] = torch.randn(rank, width, generator=random)
        weights[f"{at}.lora_B.weight"] = torch.randn(heads, rank, generator=random)
    save_file(weights, folder / "adapter_model.safetensors")
    about = {"peft_type": "LORA", "r": rank, "lora_alpha": 2 * rank, "target_modules": ["q_proj"], "bias": "none"}
    (folder / "adapter_config.json").write_text(json.dumps({**about, "task_type": "CAUSAL_LM"}))
    return folder


@pytest.fixture(scope="session")
def direct() -> Direct:
    """What vLLM says by itself, in a process of its own: ``LLM.generate`` for requests of ``tokens``, ``sampling``
    (fields of ``SamplingParams``) and maybe the folder of a ``lora`` or ``images`` (PNGs in base64), each with
    ``tokens``, ``text`` and ``logprobs`` (of the tokens that were chosen)."""

    def ask(folder: Path, requests: list[dict[str, Any]]) -> list[dict[str, Any]]:
        done = subprocess.run(
            [sys.executable, str(HERE / "direct.py"), str(folder)],
            input=json.dumps(requests),
            capture_output=True,
            text=True,
            timeout=280,
        )
        assert done.returncode == 0, done.stderr[-3000:]
        answers: list[dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
        return answers

    return ask


@pytest.fixture(scope="module")
def worker_environment() -> Iterator[None]:
    """This process's environment is a vLLM worker's."""
    from omni_actors.worker.engines.vllm.options import ENVIRONMENT

    before = {name: os.environ.get(name) for name in ENVIRONMENT}
    os.environ.update(ENVIRONMENT)
    yield
    for name, value in before.items():
        if value is None:
            del os.environ[name]
        else:
            os.environ[name] = value
