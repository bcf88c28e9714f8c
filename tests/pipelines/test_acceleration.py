"""Accelerations of diffusion stages that do not go together are refused when they are planned, with the reason."""

from __future__ import annotations

import pytest
from tests.pipelines.builders import plan_of

from omni_actors.models.sd3.pipeline import PIPELINE
from omni_actors.pipelines.plan import PlanError
from omni_actors.platforms.cpu import CpuPlatform

AT = "stages.image.options."


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["offload=group", "compile=true"], "compiled blocks do not bring their weights"),
        (["offload=model", "compile=true"], "compiled blocks do not bring their weights"),
        (["compile=true", "loras=red=/loras/red"], "compiled blocks add no terms of LoRA adapters"),
    ],
)
def test_what_does_not_go_together_is_refused_by_its_setting(
    monkeypatch: pytest.MonkeyPatch, overrides: list[str], message: str
) -> None:
    monkeypatch.setattr(CpuPlatform, "own_memory", True)
    with pytest.raises(PlanError, match=message) as caught:
        plan_of(PIPELINE, *(AT + override for override in overrides))
    assert f"--set {AT}{overrides[0]}" in str(caught.value)


def test_offload_needs_a_device_with_memory_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(PlanError, match="platform 'cpu' computes in the host's memory"):
        plan_of(PIPELINE, f"{AT}offload=model")
    monkeypatch.setattr(CpuPlatform, "own_memory", True)
    assert plan_of(PIPELINE, f"{AT}offload=model").stage("image").options["offload"] == "model"


def test_an_unknown_kind_of_offload_is_refused() -> None:
    with pytest.raises(PlanError, match="offload"):
        plan_of(PIPELINE, f"{AT}offload=disk")


def test_one_acceleration_by_itself_is_planned() -> None:
    for override in ("compile=true", "loras=red=/loras/red", "cache_threshold=0.1"):
        plan_of(PIPELINE, AT + override)
