"""A folder of diffusers is recognised by its ``model_index.json``, and its components are looked into."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from omni_actors.pipelines.explain import as_builtins
from omni_actors.pipelines.factory import resolve
from omni_actors.pipelines.plan import Plan, PlanError
from omni_actors.pipelines.planning.missing import damaged_weights, missing_weights

HEADER = json.dumps({"w": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
WEIGHTS = len(HEADER).to_bytes(8, "little") + HEADER + bytes(4)
COMPONENTS = {
    "transformer": ["diffusers", "SD3Transformer2DModel"],
    "scheduler": ["diffusers", "FlowMatchEulerDiscreteScheduler"],
    "vae": ["diffusers", "AutoencoderKL"],
    "image_encoder": [None, None],
}


def write(folder: Path, named: str | None = "StableDiffusion3Pipeline", **changes: Any) -> Path:
    """Write a folder of diffusers. ``changes`` are further entries of the transformer's configuration."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "model_index.json").write_text(json.dumps({"_class_name": named, **COMPONENTS}))
    for name in ("transformer", "vae"):
        (folder / name).mkdir(exist_ok=True)
        (folder / name / "config.json").write_text(json.dumps(changes if name == "transformer" else {}))
        (folder / name / "diffusion_pytorch_model.safetensors").write_bytes(WEIGHTS)
    (folder / "scheduler").mkdir(exist_ok=True)
    (folder / "scheduler" / "scheduler_config.json").write_text("{}")
    return folder


def planned(folder: Path) -> Plan:
    return resolve(str(folder), platform="cpu")


def why(plan: Plan) -> str:
    """Return the origin of the choice of a pipeline, as ``explain`` prints it."""
    value = as_builtins(plan)["values"]["pipeline"]
    return f"{value['origin']} {value['where']}"


@pytest.mark.parametrize(
    ("named", "pipeline"),
    [
        ("StableDiffusion3Pipeline", "stable-diffusion-3"),
        ("QwenImagePipeline", "qwen-image"),
        ("QwenImageEditPipeline", "qwen-image-edit"),
        ("QwenImageEditPlusPipeline", "qwen-image-edit-plus"),
        ("QwenImageLayeredPipeline", "qwen-image-layered"),
        ("ZImagePipeline", "z-image"),
    ],
)
def test_the_class_in_the_index_chooses_the_family(tmp_path: Path, named: str, pipeline: str) -> None:
    plan = planned(write(tmp_path / "model", named))
    assert (plan.name, missing_weights(plan), damaged_weights(plan)) == (pipeline, [], {})
    assert why(plan) == f"model model_index.json names {named}"
    assert plan.served_model_name == "model"


def test_any_other_class_runs_request_by_request_and_explain_says_why(tmp_path: Path) -> None:
    plan = planned(write(tmp_path / "model", "LuminaPipeline"))
    assert plan.name == "diffusers"
    assert why(plan).endswith("names LuminaPipeline, which no family serves step by step: it runs request by request")
    assert plan.stage("image").adapter.endswith(":GenericDiffusers")


def test_a_family_can_be_forced_to_run_request_by_request(tmp_path: Path) -> None:
    plan = resolve(str(write(tmp_path / "model")), platform="cpu", pipeline="diffusers")
    assert plan.name == "diffusers"


@pytest.mark.parametrize("text", ["no json", "[]", "{}", '{"_class_name": 3}'])
def test_a_damaged_index_is_named(tmp_path: Path, text: str) -> None:
    folder = write(tmp_path / "model")
    (folder / "model_index.json").write_text(text)
    with pytest.raises(PlanError, match=r"(?s)damaged:.*model_index\.json: it cannot be used"):
        planned(folder)


def test_what_components_lack_is_missing_weights(tmp_path: Path) -> None:
    folder = write(tmp_path / "model")
    (folder / "vae" / "diffusion_pytorch_model.safetensors").unlink()
    (folder / "scheduler" / "scheduler_config.json").unlink()
    (folder / "scheduler").rmdir()
    index = {"weight_map": {"w": "part-1.safetensors", "v": "diffusion_pytorch_model.safetensors"}}
    (folder / "transformer" / "diffusion_pytorch_model.safetensors.index.json").write_text(json.dumps(index))
    assert sorted(missing_weights(planned(folder))) == [
        str(folder / "scheduler"),
        str(folder / "transformer" / "part-1.safetensors"),
        str(folder / "vae" / "diffusion_pytorch_model.safetensors"),
    ]


def test_damage_of_a_components_files_is_found(tmp_path: Path) -> None:
    folder = write(tmp_path / "model")
    (folder / "transformer" / "diffusion_pytorch_model.safetensors").write_bytes(WEIGHTS[:-2])
    (folder / "scheduler" / "scheduler_config.json").write_text("{")
    found = damaged_weights(planned(folder))
    assert sorted(one.path.name for damage in found.values() for one in damage) == [
        "diffusion_pytorch_model.safetensors",
        "scheduler_config.json",
    ]


def test_a_quantized_component_is_refused_unless_diffusers_loads_it(tmp_path: Path) -> None:
    plan = planned(write(tmp_path / "model", quantization_config={"quant_method": "torchao"}))
    assert plan.name == "stable-diffusion-3"
    with pytest.raises(PlanError, match=r"stage 'image': .* quantized \(fp8\)"):
        planned(write(tmp_path / "model", quantization_config={"quant_method": "fp8"}))


def test_a_folder_in_the_hubs_cache_is_found_by_its_public_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    own = tmp_path / "models--someone--painter"
    (own / "refs").mkdir(parents=True)
    (own / "refs" / "main").write_text("abc")
    snapshot = write(own / "snapshots" / "abc", "LuminaPipeline")
    plan = resolve("someone/painter", platform="cpu")
    assert (plan.name, plan.model, plan.checkpoint) == ("diffusers", str(snapshot), "someone/painter")
    assert "LuminaPipeline" in why(plan)
