"""Every scheduler of the Karras family steps for each picture as in diffusers' own pipeline, draws included."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.models.diffusion.cases.stable_diffusion import CASES, EDITS
from tests.models.diffusion.orders import EIGHT
from tests.models.diffusion.parity import TOLERANCE, Driven, Reference, Trace, difference

pytestmark = [pytest.mark.slow, pytest.mark.torch]

SCHEDULERS: dict[str, tuple[str, dict[str, Any]]] = {
    "ddim": ("DDIMScheduler", {"clip_sample": False, "set_alpha_to_one": True}),
    "euler": ("EulerDiscreteScheduler", {}),
    "euler-karras-v": ("EulerDiscreteScheduler", {"use_karras_sigmas": True, "prediction_type": "v_prediction"}),
    "euler-ancestral": ("EulerAncestralDiscreteScheduler", {}),
    "heun": ("HeunDiscreteScheduler", {}),
    "dpm++": ("DPMSolverMultistepScheduler", {}),
    "dpm++-karras": ("DPMSolverMultistepScheduler", {"use_karras_sigmas": True}),
    "dpm++-sde": ("DPMSolverMultistepScheduler", {"algorithm_type": "sde-dpmsolver++"}),
    "unipc": ("UniPCMultistepScheduler", {}),
}
"""Name → class and settings."""

BETAS = {"beta_start": 0.00085, "beta_end": 0.012, "beta_schedule": "scaled_linear", "steps_offset": 1}


def _folder(source: Path, target: Path, scheduler: str) -> Path:
    """Copy a checkpoint, with another scheduler."""
    shutil.copytree(source, target)
    kind, settings = SCHEDULERS[scheduler]
    index = json.loads((target / "model_index.json").read_text())
    index["scheduler"] = ["diffusers", kind]
    (target / "model_index.json").write_text(json.dumps(index))
    (target / "scheduler/scheduler_config.json").write_text(json.dumps({"_class_name": kind, **BETAS, **settings}))
    return target


@dataclass(frozen=True)
class Course:
    """Pictures under one scheduler: from noise, and from other pictures."""

    found: list[Trace]
    expected: list[Trace]
    clean: list[torch.Tensor]
    """The clean latents that each picture's last prediction points at."""


@pytest.fixture(scope="module", params=SCHEDULERS)
def course(
    request: pytest.FixtureRequest, tiny_model: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> Course:
    folder = _folder(tiny_model("stable-diffusion"), tmp_path_factory.mktemp("scheduler") / "model", request.param)
    orders = [(CASES[0], EIGHT[2:4]), (CASES[1], EDITS[4:6])]
    driven = Driven(CASES[0], folder)
    adapter, advance = driven.adapter, driven.adapter.advance
    clean: dict[int, torch.Tensor] = {}

    def advancing(cursor: Any, prediction: Any) -> None:
        clean[cursor.key] = adapter.clean(cursor, prediction)
        advance(cursor, prediction)

    adapter.advance = advancing
    found = driven.run([order for _, some in orders for order in some], random.Random(3))
    expected = [trace for case, some in orders for trace in map(Reference(case, folder).trace, some)]
    return Course(found, expected, [clean[key] for key in sorted(clean)])


def test_every_scheduler_steps_as_in_the_pipeline_among_other_pictures(course: Course) -> None:
    for trace, wanted in zip(course.found, course.expected, strict=True):
        assert trace.differs(wanted) <= TOLERANCE


def test_the_clean_picture_of_the_last_step_is_the_picture(course: Course) -> None:
    for clean, trace in zip(course.clean, course.found, strict=True):
        assert difference(clean, trace.latents[-1]) <= 10 * TOLERANCE


def test_a_shared_source_of_draws_is_found(tiny_model: Callable[[str], Path], tmp_path: Path) -> None:
    case = CASES[0]
    folder = _folder(tiny_model("stable-diffusion"), tmp_path / "model", "euler-ancestral")
    driven, reference = Driven(case, folder), Reference(case, folder)
    begin = driven.adapter.begin
    shared: list[Any] = []

    def beginning(cursor: Any) -> None:
        begin(cursor)
        shared.append(cursor.generator)
        cursor.generator = shared[0]

    driven.adapter.begin = beginning
    found = driven.run(EIGHT[:3], random.Random(3))
    assert any(trace.differs(reference.trace(order)) > TOLERANCE for trace, order in zip(found, EIGHT, strict=False))
