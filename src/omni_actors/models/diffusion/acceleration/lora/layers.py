"""The low-rank terms of a forward's rows, added behind the denoiser's layers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional
from torch.utils.hooks import RemovableHandle

from omni_actors.models.diffusion.acceleration.forward_rows import ForwardRows
from omni_actors.models.diffusion.acceleration.lora.weights import LoraAdapter, LowRank
from omni_actors.models.diffusion.rows import Row

STATE = "loras"
"""Key of a cursor's adapters in :attr:`Cursor.state`: a tuple of (:class:`LoraAdapter`, scale)."""


@dataclass(frozen=True, slots=True)
class _Users:
    """The rows of a forward that use one adapter, by their places in the tensors, and the scale of each."""

    adapter: LoraAdapter
    rows: tuple[int, ...]
    scales: tuple[float, ...]


class LoraLayers:
    """The layers of one loaded model that LoRA adapters change.

    A layer's own weight stays as it is. A hook adds to its output, for each adapter in the forward, the adapter's
    low-rank product of the inputs of those rows that use the adapter, each times the row's scale. So rows with other
    adapters, or none, share the forward.

    Args:
        rows: The rows of the forward under way.
    """

    def __init__(self, rows: ForwardRows) -> None:
        self._rows = rows
        self._hooks: dict[str, RemovableHandle] = {}
        self._users: tuple[_Users, ...] = ()
        self._users_of: tuple[Sequence[Row], tuple[int, ...]] | None = None

    def hook(self, layers: Mapping[str, nn.Module], names: set[str]) -> None:
        """Hook these layers, and no others."""
        for name in self._hooks.keys() - names:
            self._hooks.pop(name).remove()
        for name in names - self._hooks.keys():
            self._hooks[name] = layers[name].register_forward_hook(_Hook(self, name))

    def add(self, name: str, layer: nn.Module, inputs: torch.Tensor, output: torch.Tensor) -> torch.Tensor:
        """Return a layer's output with the terms of the rows' adapters."""
        for users in self._present_users():
            if (term := users.adapter.terms.get(name)) is not None:
                output = self._added(users, name, term, layer, inputs, output)
        return output

    def _added(
        self, users: _Users, name: str, term: LowRank, layer: nn.Module, inputs: torch.Tensor, output: torch.Tensor
    ) -> torch.Tensor:
        present = len(self._rows.present)
        if len(users.rows) == present and len(set(users.scales)) == 1:
            return output + _product(term, layer, inputs) * (users.scales[0] * term.factor)
        if inputs.shape[0] % present:
            raise RuntimeError(f"layer '{name}' got {inputs.shape[0]} rows for a forward of {present}")
        # Some models put several values of each row one behind the other along the first dimension.
        times = inputs.shape[0] // present
        places = tuple(it * present + row for it in range(times) for row in users.rows)
        index = torch.tensor(places, dtype=torch.long, device=inputs.device)
        scales = torch.tensor(users.scales * times, dtype=inputs.dtype, device=inputs.device) * term.factor
        product = _product(term, layer, inputs.index_select(0, index))
        return output.index_add(0, index, product * scales.view(-1, *[1] * (product.ndim - 1)))

    def _present_users(self) -> tuple[_Users, ...]:
        """Return the users among the present rows, found once until other rows are present."""
        rows, known = self._rows, self._users_of
        if known is None or known[0] is not rows.all or known[1] != rows.present:
            self._users_of = (rows.all, rows.present)
            self._users = self._find_users()
        return self._users

    def release(self) -> None:
        """Forget the rows of a forward that is over."""
        self._users, self._users_of = (), None

    def _find_users(self) -> tuple[_Users, ...]:
        found: dict[LoraAdapter, tuple[list[int], list[float]]] = {}
        for row, place in enumerate(self._rows.present):
            for adapter, scale in self._rows.all[place].cursor.state.get(STATE, ()):
                rows, scales = found.setdefault(adapter, ([], []))
                rows.append(row)
                scales.append(scale)
        return tuple(_Users(adapter, tuple(rows), tuple(scales)) for adapter, (rows, scales) in found.items())


class _Hook:
    """The hook behind one layer."""

    def __init__(self, layers: LoraLayers, name: str) -> None:
        self._layers = layers
        self._name = name

    def __call__(self, layer: nn.Module, args: tuple[torch.Tensor, ...], output: torch.Tensor) -> torch.Tensor:
        return self._layers.add(self._name, layer, args[0], output)


def _product(term: LowRank, layer: nn.Module, inputs: torch.Tensor) -> torch.Tensor:
    if isinstance(layer, nn.Conv2d):
        down = functional.conv2d(inputs, term.down, stride=layer.stride, padding=layer.padding, dilation=layer.dilation)
        return functional.conv2d(down, term.up)
    return functional.linear(functional.linear(inputs, term.down), term.up)
