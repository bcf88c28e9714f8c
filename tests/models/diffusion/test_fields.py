"""The fields that a family does not read are refused by name, before any work."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.models.diffusion.parity import hello

from omni_actors.protocol.errors import OmniError
from omni_actors.protocol.params import ImageGeneration
from omni_actors.worker.engine import Work
from omni_actors.worker.engines.diffusion.adapter import DiffusionAdapter
from omni_actors.worker.named import class_named

pytestmark = [pytest.mark.slow, pytest.mark.torch]

MODELS = {
    "flux": "omni_actors.models.flux.adapter:Flux",
    "flux-schnell": "omni_actors.models.flux.adapter:Flux",
    "flux-kontext": "omni_actors.models.flux.kontext:FluxKontext",
    "flux2-klein": "omni_actors.models.flux2.adapter:Flux2Klein",
    "stable-diffusion": "omni_actors.models.stable_diffusion.adapter:StableDiffusion",
    "stable-diffusion-xl": "omni_actors.models.stable_diffusion.xl:StableDiffusionXL",
    "stable-diffusion-inpaint": "omni_actors.models.stable_diffusion.adapter:StableDiffusion",
    "pixart-sigma": "omni_actors.models.pixart.adapter:PixArtSigma",
    "ovis-image": "omni_actors.models.ovis_image.adapter:OvisImage",
}

REFUSED: dict[str, tuple[tuple[Mapping[str, Any], str], ...]] = {
    "flux": (
        ({"pictures": 1}, "image"),
        ({"layers": 2}, "layers"),
        ({"strength": 0.5}, "strength"),
        ({"negative_prompt": "rain"}, "negative_prompt"),
        ({"true_guidance": 4.0}, "true_cfg_scale"),
        ({"width": 1021, "height": 1021}, "size"),
        ({"width": 100_000, "height": 10_000}, "size"),
        ({"prompt": "word " * 600}, "prompt"),
    ),
    "flux-schnell": (({"guidance": 3.5}, "guidance_scale"),),
    "flux-kontext": (
        ({"pictures": 2}, "image"),
        ({"pictures": 1, "mask": True}, "mask"),
        ({"pictures": 1, "strength": 0.5}, "strength"),
    ),
    "flux2-klein": (
        ({"pictures": 11}, "image"),
        ({"pictures": 1, "mask": True}, "mask"),
        ({"true_guidance": 4.0}, "true_cfg_scale"),
        ({"negative_prompt": "rain", "guidance": 1.0}, "negative_prompt"),
    ),
    "stable-diffusion": (
        ({"pictures": 2}, "image"),
        ({"mask": True}, "mask"),
        ({"strength": 0.5}, "strength"),
        ({"pictures": 1, "strength": 1.5}, "strength"),
        ({"pictures": 1, "strength": 0.1, "steps": 4}, "strength"),
        ({"negative_prompt": "rain", "guidance": 1.0}, "negative_prompt"),
        ({"true_guidance": 4.0}, "true_cfg_scale"),
        ({"width": 60, "height": 64}, "size"),
        ({"prompt": "word " * 80}, "prompt"),
    ),
    "stable-diffusion-xl": (({"layers": 2}, "layers"), ({"prompt": "word " * 80}, "prompt")),
    "stable-diffusion-inpaint": (({}, "mask"), ({"pictures": 1}, "mask")),
    "pixart-sigma": (
        ({"negative_prompt": "rain", "guidance": 1.0}, "negative_prompt"),
        ({"pictures": 1}, "image"),
        ({"prompt": "word " * 320}, "prompt"),
    ),
    "ovis-image": (
        ({"negative_prompt": "rain", "guidance": 1.0}, "negative_prompt"),
        ({"pictures": 1}, "image"),
        ({"negative_prompt": "word " * 320}, "negative_prompt"),
    ),
}


@pytest.mark.parametrize("family", REFUSED)
def test_what_a_family_cannot_do_is_refused_by_name(family: str, tiny_model: Callable[[str], Path]) -> None:
    adapter: Any = class_named(MODELS[family], DiffusionAdapter, "adapter")(hello(MODELS[family], tiny_model(family)))
    adapter.load(lambda text, fraction: None)
    for fields, param in REFUSED[family]:
        image = ImageGeneration(**{"prompt": "a red house", "seed": 1, "steps": 4, "width": 64, "height": 64, **fields})
        with pytest.raises(OmniError) as refused:
            adapter.open(Work(1, "refused", {"image": image}), image)
        assert (refused.value.info.status, refused.value.info.param) == (400, param), fields
