"""Edits: the size that is left open, pixels outside a mask, sizes for which a model was trained, refused pictures."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import diffusers
import numpy as np
import pytest
import torch
from tests.models.diffusion.cases import flux, flux2, pixart, stable_diffusion
from tests.models.diffusion.orders import EIGHT, Order, drawn, guided
from tests.models.diffusion.parity import TOLERANCE, Case, Driven, Reference, Trace
from transformers import CLIPConfig, CLIPImageProcessor

from omni_actors.models.flux.kontext import FluxKontext

pytestmark = [pytest.mark.slow, pytest.mark.torch]

Model = Callable[[str], Path]


def _pixels(trace: Trace) -> np.ndarray[Any, Any]:
    """Return the pixels of a picture that was made."""
    assert trace.outcome is not None
    assert trace.error is None
    (payload,) = trace.outcome.payloads
    return np.asarray(payload.tensors["pixels"])


@pytest.mark.parametrize("case", [stable_diffusion.CASES[2], stable_diffusion.CASES[-1]], ids=lambda case: case.name)
def test_pixels_outside_the_mask_stay_and_those_inside_change(case: Case, tiny_model: Model) -> None:
    order = case.orders[0]
    (trace,) = Driven(case, tiny_model(case.checkpoint)).run([order])
    picture, mask = order.pictures
    change = mask[..., 3] == 0
    made = _pixels(trace)
    assert np.array_equal(made[~change], picture[~change])
    assert not np.array_equal(made[change], picture[change])


@pytest.mark.parametrize(
    ("case", "sent", "made"),
    [
        (stable_diffusion.CASES[1], (90, 50), (88, 48)),
        (flux.CASES[2], (90, 50), (80, 48)),
        (flux2.CASES[1], (128, 64), (80, 48)),
    ],
    ids=lambda value: value.name if isinstance(value, Case) else "",
)
def test_an_edit_without_a_size_has_the_form_of_its_picture(
    case: Case, sent: tuple[int, int], made: tuple[int, int], tiny_model: Model
) -> None:
    order = Order("a boat", 1, 2, width=None, height=None, pictures=(drawn(1, *sent),))
    (trace,) = Driven(case, tiny_model(case.checkpoint)).run([order])
    height, width, _ = _pixels(trace).shape
    assert (width, height) == made


def test_kontext_reads_a_picture_in_the_trained_size_nearest_in_form(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FluxKontext, "default_size", (1024, 1024))
    monkeypatch.setattr(FluxKontext, "multiple", 16)
    adapter = FluxKontext.__new__(FluxKontext)
    assert adapter.read_size(1920, 1080) == (1392, 752)
    assert adapter.read_size(300, 300) == (1024, 1024)


def test_pixart_makes_the_trained_form_and_then_the_size_that_was_asked_for(tiny_model: Model, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(tiny_model("pixart-sigma"), folder)
    config = json.loads((folder / "transformer/config.json").read_text())
    (folder / "transformer/config.json").write_text(json.dumps({**config, "sample_size": 32}))
    arguments = lambda order: {**guided(order), "negative_prompt": ""}  # noqa: E731  # with the trained forms
    case = dataclasses.replace(pixart.CASES[0], arguments=arguments)
    order = Order("a house", 1, 2, 3.0, width=208, height=144)
    (trace,) = Driven(case, folder).run([order])
    assert trace.differs(Reference(case, folder).trace(order)) <= TOLERANCE
    assert trace.latents[-1].shape[-2:] != (144 // 8, 208 // 8)
    assert _pixels(trace).shape == (144, 208, 3)


def test_a_picture_that_the_safety_checker_flags_is_refused(tiny_model: Model, tmp_path: Path) -> None:
    case, folder = stable_diffusion.CASES[0], tmp_path / "model"
    shutil.copytree(tiny_model("stable-diffusion"), folder)
    tower = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1}
    config = CLIPConfig(
        text_config=tower, vision_config={**tower, "image_size": 32, "patch_size": 16}, projection_dim=8
    )
    checker = diffusers.pipelines.stable_diffusion.StableDiffusionSafetyChecker(config)
    with torch.no_grad():
        checker.concept_embeds_weights.fill_(-1.0)  # whatever it sees is nearer than that
    checker.save_pretrained(folder / "safety_checker")
    size = {"height": 32, "width": 32}
    CLIPImageProcessor(size=size, crop_size=size).save_pretrained(folder / "feature_extractor")
    index = json.loads((folder / "model_index.json").read_text())
    index["safety_checker"] = ["stable_diffusion", "StableDiffusionSafetyChecker"]
    index["feature_extractor"] = ["transformers", "CLIPImageProcessor"]
    (folder / "model_index.json").write_text(json.dumps(index))
    (refused,) = Driven(case, folder).run([EIGHT[6]])
    assert refused.error is not None
    assert (refused.error.status, refused.error.code) == (400, "content_policy_violation")
    (made,) = Driven(case, folder, safety_checker=False).run([EIGHT[6]])
    assert made.error is None
