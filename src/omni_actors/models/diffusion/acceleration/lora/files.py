"""LoRA files: diffusers' and peft's names of keys, and through diffusers' own converters those of other tools."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from diffusers.utils import convert_unet_state_dict_to_peft
from safetensors import SafetensorError, safe_open

from omni_actors.models.diffusion.acceleration.lora.weights import LowRank
from omni_actors.protocol.errors import OmniError, invalid_request

_USUAL_NAMES = ("adapter_model.safetensors", "pytorch_lora_weights.safetensors")
_KEY = re.compile(
    r"^(?P<module>.+)\.(?P<side>lora_A|lora_B|lora_down|lora_up|lora\.down|lora\.up)(\.default)?\.weight$"
)
_DOWN = ("lora_A", "lora_down", "lora.down")
_METADATA = "lora_adapter_metadata"
"""Key of the header of a file by diffusers, with peft's configuration as JSON."""

Tensors = Mapping[str, torch.Tensor]


def find_file(path: str) -> Path:
    """Return the file of weights that ``path`` names: a file, or a folder with one. Raises 400 otherwise."""
    place = Path(path)
    if place.is_file():
        if place.suffix != ".safetensors":
            raise bad_file(f"'{path}' is no .safetensors file.")
        return place
    if not place.is_dir():
        raise bad_file(f"'{path}' does not exist.")
    for name in _USUAL_NAMES:
        if (place / name).is_file():
            return place / name
    files = sorted(place.glob("*.safetensors"))
    if len(files) != 1:
        raise bad_file(f"The folder '{path}' has {len(files)} .safetensors files; name one of them.")
    return files[0]


def read_lora(file: Path, component: str, pipeline: type, modules: Mapping[str, Any]) -> dict[str, LowRank]:
    """Read a LoRA adapter.

    Args:
        file: The .safetensors file.
        component: The name of the denoiser in its pipeline (``transformer`` or ``unet``).
        pipeline: diffusers' pipeline class, which converts the keys of other tools.
        modules: The denoiser's modules by name.

    Returns:
        Name of a module → its term, in the file's number type.

    Raises:
        OmniError: The file is no adapter of this model, or has parts that are not supported; status 400, ``path``.
    """
    try:
        with safe_open(file, framework="pt") as opened:
            metadata = opened.metadata() or {}
            tensors = {key: opened.get_tensor(key) for key in opened.keys()}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise bad_file(f"'{file}' cannot be read: {error}.") from error
    if not tensors:
        raise bad_file(f"'{file}' has no weights.")
    if unsupported := [
        key for key in tensors if re.search(r"dora_scale|magnitude_vector|hada_|lokr_|lora_B.*bias", key)
    ]:
        raise bad_file(f"'{file}' is no plain LoRA adapter: '{unsupported[0]}' is not supported.")
    scales = _configured(file, metadata, component)
    return _terms(file, _converted(file, tensors, component, pipeline, modules), modules, scales)


# ---- names


def _converted(
    file: Path, tensors: Tensors, component: str, pipeline: type, modules: Mapping[str, Any]
) -> dict[str, torch.Tensor]:
    """Return the tensors by names of the denoiser's modules: as they are, else through diffusers' converters."""
    plain = _stripped(file, tensors, component)
    if _known(plain, modules):
        return plain
    convert = getattr(pipeline, "lora_state_dict", None)
    converted: Any = None
    if convert is not None:
        try:
            converted = convert(dict(tensors), use_safetensors=True)
        except OmniError:
            raise
        except Exception as error:
            raise bad_file(f"'{file}' has keys of a form that diffusers cannot read: {error}.") from error
    alphas: Tensors = {}
    if isinstance(converted, tuple):
        converted, alphas = converted[0], converted[1] or {}
    found = dict(converted or tensors) | {
        f"{key.removesuffix('.alpha')}.alpha": torch.tensor(float(value)) for key, value in alphas.items()
    }
    return dict(convert_unet_state_dict_to_peft(_stripped(file, found, component)))


def _stripped(file: Path, tensors: Tensors, component: str) -> dict[str, torch.Tensor]:
    found = {}
    for key, tensor in tensors.items():
        name = key.removeprefix("base_model.model.")
        if name.startswith("text_encoder") or re.match(r"lora_te\d?_", name):
            raise bad_file(f"'{file}' also changes the text encoder ('{key}'), which this stage leaves as it is.")
        found[name.removeprefix(f"{component}.")] = tensor
    return found


def _known(tensors: Tensors, modules: Mapping[str, Any]) -> bool:
    for key in tensors:
        match = _KEY.match(key)
        if match is None and key.endswith(".alpha"):
            continue
        if match is None or match["module"] not in modules:
            return False
    return True


# ---- factors


def _configured(file: Path, metadata: Mapping[str, str], component: str) -> Callable[[str, int], float]:
    """Return the function of module and rank to the factor that the adapter's configuration tells: beside the file
    (peft), or in its header (diffusers). Without a configuration the factor is 1."""
    config: dict[str, Any] = {}
    beside = file.parent / "adapter_config.json"
    try:
        if beside.is_file():
            config = json.loads(beside.read_bytes())
        elif _METADATA in metadata:
            prefix = f"{component}."
            said = json.loads(metadata[_METADATA])
            config = {key.removeprefix(prefix): value for key, value in said.items() if key.startswith(prefix)}
    except ValueError as error:
        raise bad_file(f"The configuration of '{file}' cannot be read: {error}.") from error
    if config.get("use_dora"):
        raise bad_file(f"'{file}' is no plain LoRA adapter: its configuration says 'use_dora'.")
    patterns = dict(config.get("alpha_pattern") or {})

    def factor(module: str, rank: int) -> float:
        alpha = next((value for end, value in patterns.items() if _ends(module, end)), config.get("lora_alpha", rank))
        return float(alpha) / (math.sqrt(rank) if config.get("use_rslora") else rank)

    return factor


def _ends(module: str, pattern: str) -> bool:
    return module == pattern or re.search(rf"(^|\.)({pattern})$", module) is not None


def _terms(
    file: Path, tensors: Tensors, modules: Mapping[str, Any], configured: Callable[[str, int], float]
) -> dict[str, LowRank]:
    sides: dict[str, dict[bool, torch.Tensor]] = {}
    alphas: dict[str, float] = {}
    for key, tensor in tensors.items():
        if key.endswith(".alpha"):
            alphas[re.sub(r"(\.lora_A|\.lora_down|\.lora\.down)?(\.weight)?\.alpha$", "", key)] = float(tensor)
            continue
        match = _KEY.match(key)
        if match is None or match["module"] not in modules:
            raise bad_file(f"'{file}' changes '{key}', which this model does not have.")
        sides.setdefault(match["module"], {})[match["side"] in _DOWN] = tensor
    terms = {}
    for module, both in sides.items():
        if len(both) != 2:
            raise bad_file(f"'{file}' has one half of '{module}' only.")
        down, up = both[True], both[False]
        rank = down.shape[0]
        factor = alphas[module] / rank if module in alphas else configured(module, rank)
        terms[module] = LowRank(down, up, factor)
    return terms


def bad_file(message: str) -> OmniError:
    """Return the error for a file that is no adapter of the model."""
    return invalid_request(message, "path")
