"""Loading of a decoder of the Llama kind in parts: each rank reads its own part, and no rank ever holds the whole.

As in Megatron (https://arxiv.org/abs/1909.08053): a rank has some heads of each layer with all their weights (query,
key and value by their outputs, the output projection by its inputs) and a part of the feed-forward width (gate and up
by their outputs, down by its inputs), so that one sum after attention and one after the feed-forward part are the only
communication within a layer. Embeddings and head are divided by the vocabulary: they are the largest part of a small
model and as large as several layers of a big one. Every rank has all norms and routers.

With more ranks than key heads, neighbours have copies of one key head. Experts are divided by their width, or as wholes
(``expert`` parallel): then a rank has all of some experts.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors import SafetensorError, safe_open
from transformers import PreTrainedModel
from transformers.initialization import no_init_weights
from transformers.utils.logging import disable_progress_bar

from omni_actors.models.common.load import bad_model, stack_experts, weight_files
from omni_actors.worker.collectives import Group

M = TypeVar("M", bound=PreTrainedModel)

_EXPERT = re.compile(r"(?P<layer>.+\.experts)\.(?P<number>\d+)\.(?P<rest>.+)")


def load_split(
    make: Callable[[], M], folder: str | Path, prefix: str, split: Split, dtype: torch.dtype, device: str | torch.device
) -> M:
    """Return the module built by ``make``, with this rank's part of each weight stored as ``prefix…``, in evaluation
    mode. Its modules still state the sizes of the whole: only the weights' own shapes are the part's.

    Each file is mapped, and only the part of each weight is read, straight onto the device. Raises :class:`OmniError`
    (500) when weights are missing.
    """
    disable_progress_bar()
    weights = stack_experts(read_split(folder, prefix, split, dtype, device))
    with no_init_weights():  # the whole's weights are never written and take no memory
        model = make()
    names = {name for name, _ in model.named_parameters()}
    tied = {tied: source for tied, source in (model.all_tied_weights_keys or {}).items() if tied not in weights}
    for name in [*names, *tied]:
        source = tied.get(name, name)
        if source not in weights and not name.endswith(".bias"):
            raise bad_model(f"{folder} has no weight '{prefix}{source}'")
        module = model.get_submodule(name.rpartition(".")[0])
        part = weights.get(source)
        parameter = None if part is None else torch.nn.Parameter(part, requires_grad=False)
        module.register_parameter(name.rpartition(".")[2], parameter)
    placed: M = model.to(device).eval()
    return placed


def read_split(
    folder: str | Path, prefix: str, split: Split, dtype: torch.dtype, device: str | torch.device
) -> dict[str, torch.Tensor]:
    """Return this rank's parts of the weights whose names begin with ``prefix``, by the rest of their names."""
    found: dict[str, torch.Tensor] = {}
    for path, names in weight_files(Path(folder), prefix):
        try:
            with safe_open(path, framework="pt", device=str(device)) as file:
                every: list[str] = list(file.keys())
                for name in every if names is None else names:
                    part = split.read(name, file.get_slice(name)) if name.startswith(prefix) else None
                    if part is not None:
                        found[part[0][len(prefix) :]] = part[1].to(dtype)
        except (OSError, ValueError, SafetensorError) as error:
            raise bad_model(f"{path} cannot be read: {error}") from error
    return found


class Split:
    """The parts of weights that this rank reads. ``config`` is the decoder's own."""

    def __init__(self, config: Any, group: Group, *, by_expert: bool = False) -> None:
        self._rank, self._size = group.rank, group.size
        self._by_expert = by_expert
        self._kv_heads = int(getattr(config, "num_key_value_heads", None) or config.num_attention_heads)
        self._experts = int(getattr(config, "num_experts", 0)) // self._size

    def read(self, name: str, stored: Any) -> tuple[str, torch.Tensor] | None:
        """Return this rank's part of a stored weight (safetensors' slice of a file) and the weight's name here;
        ``None`` if the rank has no part."""
        expert = _EXPERT.fullmatch(name)
        if expert is not None and self._by_expert:
            return self._own_expert(expert, stored)
        return self._part(name, stored)

    def _part(self, name: str, stored: Any) -> tuple[str, torch.Tensor] | None:
        shape = stored.get_shape()
        path, _, kind = name.rpartition(".")
        module = path.rpartition(".")[2]
        if kind in ("gate_up_proj", "down_proj"):  # all experts of a layer in one tensor
            return name, self._stacked(kind, stored, shape)
        match module:
            case "q_proj" | "gate_proj" | "up_proj":
                return name, stored[self._of(shape[0])]
            case "k_proj" | "v_proj":
                return name, stored[self._of_heads(shape[0])]
            case "o_proj" | "down_proj":
                if kind == "bias":  # the sum has it once
                    return (name, stored[:]) if self._rank == 0 else None
                return name, stored[:, self._of(shape[1])]
            case "embed_tokens" | "lm_head":
                return name, self._of_vocabulary(stored, shape[0])
        return name, stored[:]

    def _own_expert(self, expert: re.Match[str], stored: Any) -> tuple[str, torch.Tensor] | None:
        number, first = int(expert["number"]), self._rank * self._experts
        if not first <= number < first + self._experts:
            return None
        return f"{expert['layer']}.{number - first}.{expert['rest']}", stored[:]

    def _stacked(self, kind: str, stored: Any, shape: list[int]) -> torch.Tensor:
        if self._by_expert:
            return stored[self._of(shape[0])]
        if kind == "down_proj":
            return stored[:, :, self._of(shape[2])]
        half = shape[1] // 2
        own = self._of(half)
        return torch.cat((stored[:, own], stored[:, half + own.start : half + own.stop]), 1)

    def _of(self, count: int) -> slice:
        each = count // self._size
        return slice(self._rank * each, (self._rank + 1) * each)

    def _of_heads(self, rows: int) -> slice:
        head_dim = rows // self._kv_heads
        if self._kv_heads >= self._size:
            return self._of(rows)
        head = self._rank * self._kv_heads // self._size
        return slice(head * head_dim, (head + 1) * head_dim)

    def _of_vocabulary(self, stored: Any, rows: int) -> torch.Tensor:
        """Return the same number of rows for every rank: rows beyond the vocabulary's end are zero."""
        each = -(-rows // self._size)
        part: torch.Tensor = stored[self._rank * each : (self._rank + 1) * each]
        if len(part) < each:
            part = torch.cat((part, part.new_zeros(each - len(part), *part.shape[1:])))
        return part
