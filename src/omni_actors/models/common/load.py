"""Loading of one part of a checkpoint alone: a stage holds its own weights and no other stage's."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors import SafetensorError, safe_open
from transformers import PreTrainedModel
from transformers.initialization import no_init_weights
from transformers.utils import SAFE_WEIGHTS_INDEX_NAME, SAFE_WEIGHTS_NAME
from transformers.utils.logging import disable_progress_bar

from omni_actors.protocol.errors import ErrorInfo, OmniError

log = logging.getLogger(__name__)

M = TypeVar("M", bound=PreTrainedModel)

_EXPERT = re.compile(r"(.+\.experts)\.(\d+)\.(gate|up|down)_proj\.weight")
"""Weights of one expert, as checkpoints store them. The classes hold all experts of a layer in one tensor."""


def load_part(
    cls: type[M], config: Any, folder: str | Path, prefix: str, dtype: torch.dtype, device: str | torch.device
) -> M:
    """Return the module of a checkpoint whose weights are named ``prefix…`` (``"code2wav."``; ``""`` for all), built
    from ``config`` alone, in evaluation mode.

    Only these weights are read, each once and straight onto the device. Experts stored one by one are stacked, and
    weights stored in another form than the class's are converted, as transformers does for the whole model. Raises
    :class:`OmniError` (500) when weights are missing or misshapen: a part with random weights would answer, wrongly.
    """
    disable_progress_bar()
    weights = stack_experts(read_weights(folder, prefix, device))
    if not weights:
        raise bad_model(f"{folder} has no weights named '{prefix}…'")
    model = _assigned(cls, config, weights, dtype) or _converted(cls, config, weights, dtype, folder, prefix)
    placed: M = model.to(device).eval().requires_grad_(False)
    return placed


def _assigned(cls: type[M], config: Any, weights: Mapping[str, torch.Tensor], dtype: torch.dtype) -> M | None:
    """Return the module with exactly these weights, without a copy of weights in the right dtype; ``None`` when the
    weights are stored in another form than the class's."""
    if cls._keep_in_fp32_modules or cls._keep_in_fp32_modules_strict:
        return None
    with no_init_weights():  # the module's own weights are never written and take no memory
        model: M = cls._from_config(config, dtype=dtype)
    own = model.state_dict()
    if any(name not in weights or weights[name].shape != tensor.shape for name, tensor in own.items()):
        return None
    model.load_state_dict({name: weights[name].to(tensor.dtype) for name, tensor in own.items()}, assign=True)
    return model


def _converted(
    cls: type[M], config: Any, weights: dict[str, torch.Tensor], dtype: torch.dtype, folder: str | Path, prefix: str
) -> M:
    """Return the module by transformers' own loading."""
    model: M
    model, report = cls.from_pretrained(
        None, config=config, state_dict=weights, dtype=dtype, ignore_mismatched_sizes=True, output_loading_info=True
    )
    if report["missing_keys"] or report["mismatched_keys"] or report.get("error_msgs"):
        lacking = [prefix + name for name in sorted(report["missing_keys"])]
        lacking += [prefix + str(name) for name, *_ in report["mismatched_keys"]]
        raise bad_model(f"{folder}: {len(lacking)} weights are missing or misshapen, such as {lacking[:3]}")
    if report["unexpected_keys"]:
        log.debug("%s: %d weights under '%s' are not used", folder, len(report["unexpected_keys"]), prefix)
    return model


def read_weights(folder: str | Path, prefix: str, device: str | torch.device = "cpu") -> dict[str, torch.Tensor]:
    """Return the checkpoint's tensors whose names begin with ``prefix``, by the rest of their names. In host memory the
    tensors are mapped from the files: an unused tensor costs no memory. Raises :class:`OmniError` (500) without a
    ``model.safetensors`` or its index."""
    found: dict[str, torch.Tensor] = {}
    for path, names in weight_files(Path(folder), prefix):
        try:
            with safe_open(path, framework="pt", device=str(device)) as file:
                every: list[str] = list(file.keys())
                wanted = [name for name in every if name.startswith(prefix)] if names is None else names
                for name in wanted:
                    found[name[len(prefix) :]] = file.get_tensor(name)
        except (OSError, ValueError, SafetensorError) as error:
            raise bad_model(f"{path} cannot be read: {error}") from error
    return found


def stack_experts(weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return the same weights with ``experts.gate_up_proj`` [experts, 2 * inner, outer] (gates first) and
    ``experts.down_proj`` [experts, outer, inner] in place of each layer's single experts. ``weights`` is emptied: a
    device need not hold more than one layer's experts twice."""
    kept: dict[str, torch.Tensor] = {}
    experts: dict[str, dict[tuple[int, str], torch.Tensor]] = {}
    for name in list(weights):
        weight = weights.pop(name)
        if match := _EXPERT.fullmatch(name):
            experts.setdefault(match[1], {})[int(match[2]), match[3]] = weight
        else:
            kept[name] = weight
        del weight
    for layer, parts in experts.items():
        numbers = range(1 + max(number for number, _ in parts))
        try:
            kept[f"{layer}.gate_up_proj"] = torch.stack(
                [torch.cat((parts.pop((number, "gate")), parts.pop((number, "up")))) for number in numbers]
            )
            kept[f"{layer}.down_proj"] = torch.stack([parts.pop((number, "down")) for number in numbers])
        except KeyError as error:
            raise bad_model(f"{layer} lacks the weight {error}") from None
    return kept


def weight_files(folder: Path, prefix: str) -> Iterator[tuple[Path, list[str] | None]]:
    """Yield the files with such weights, with the weights' names if there is an index."""
    index = folder / SAFE_WEIGHTS_INDEX_NAME
    if not index.exists():
        if not (folder / SAFE_WEIGHTS_NAME).exists():
            raise bad_model(f"{folder} has neither {SAFE_WEIGHTS_NAME} nor {SAFE_WEIGHTS_INDEX_NAME}")
        yield folder / SAFE_WEIGHTS_NAME, None
        return
    weight_map: Mapping[str, str] = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
    shards: dict[str, list[str]] = {}
    for name, shard in weight_map.items():
        if name.startswith(prefix):
            shards.setdefault(shard, []).append(name)
    for shard, names in shards.items():
        yield folder / shard, names


def bad_model(message: str) -> OmniError:
    return OmniError(ErrorInfo(message=message, code="bad_model", status=500))
