"""Tiny full checkpoints: real model classes, real special tokens, random weights, fewer than five million parameters.

``build("qwen3-omni", folder)`` writes the files of a download from the Hub (config, weights, tokenizer, processor, chat
template, generation config), so that every loader of the real checkpoint loads this one. The same family, seed and
library versions give the same bytes. Torch and transformers are imported by ``build``, never before.

A family is one module (or an object in one, ``module:name``) with ``write(folder, seed)``, and one line in
``FAMILIES``.
"""

from __future__ import annotations

from pathlib import Path
from pkgutil import resolve_name
from typing import Protocol, cast

FAMILIES: dict[str, str] = {
    "causal-lm": "omni_actors.models.tiny.causal_lm",
    "qwen3-omni": "omni_actors.models.tiny.qwen3_omni",
    "qwen2.5-omni": "omni_actors.models.tiny.qwen2_5_omni",
    "qwen3-asr": "omni_actors.models.tiny.qwen3_asr",
    "voxtral": "omni_actors.models.tiny.voxtral",
    "kyutai-stt": "omni_actors.models.tiny.kyutai_stt",
    "csm": "omni_actors.models.tiny.csm",
    "pocket-tts": "omni_actors.models.tiny.pocket_tts",
    "dia": "omni_actors.models.tiny.dia",
    "higgs-audio": "omni_actors.models.tiny.higgs_audio",
    "vibevoice": "omni_actors.models.tiny.vibevoice",
    "qwen3-tts": "omni_actors.models.tiny.qwen3_tts:CUSTOM_VOICE",
    "qwen3-tts-design": "omni_actors.models.tiny.qwen3_tts:VOICE_DESIGN",
    "qwen3-tts-base": "omni_actors.models.tiny.qwen3_tts:BASE",
    "sd3": "omni_actors.models.tiny.diffusion.sd3",
    "flux": "omni_actors.models.tiny.diffusion.flux:DEV",
    "flux-schnell": "omni_actors.models.tiny.diffusion.flux:SCHNELL",
    "flux-kontext": "omni_actors.models.tiny.diffusion.flux:KONTEXT",
    "flux2-klein": "omni_actors.models.tiny.diffusion.flux2",
    "stable-diffusion": "omni_actors.models.tiny.diffusion.stable_diffusion:BASE",
    "stable-diffusion-inpaint": "omni_actors.models.tiny.diffusion.stable_diffusion:INPAINT",
    "stable-diffusion-xl": "omni_actors.models.tiny.diffusion.stable_diffusion:XL",
    "pixart-sigma": "omni_actors.models.tiny.diffusion.pixart",
    "ovis-image": "omni_actors.models.tiny.diffusion.ovis_image",
    "qwen-image": "omni_actors.models.tiny.diffusion.qwen_image:TEXT",
    "qwen-image-edit": "omni_actors.models.tiny.diffusion.qwen_image:EDIT",
    "qwen-image-edit-plus": "omni_actors.models.tiny.diffusion.qwen_image:EDIT_PLUS",
    "qwen-image-layered": "omni_actors.models.tiny.diffusion.qwen_image:LAYERED",
    "z-image": "omni_actors.models.tiny.diffusion.z_image",
    "latent-consistency": "omni_actors.models.tiny.diffusion.latent_consistency",
}


class Family(Protocol):
    """The interface of a family's module."""

    def write(self, folder: Path, seed: int) -> None:
        """Write the checkpoint's files into `folder`, which exists."""


def build(family: str, folder: Path, *, seed: int = 0) -> Path:
    """Write a tiny checkpoint of `family` into `folder` (created; files of the same names are replaced) and return it.

    Raises KeyError for a family that is not in ``FAMILIES``. The global random state of torch is left as it was.
    """
    module = cast(Family, resolve_name(FAMILIES[family]))
    folder.mkdir(parents=True, exist_ok=True)
    # Constructing a model draws from the global generator.
    with resolve_name("torch.random:fork_rng")(devices=[]):
        module.write(folder, seed)
    for path in folder.rglob("*.safetensors"):
        path.chmod(0o644)  # files are written for their owner alone; a folder may be shared
    return folder
