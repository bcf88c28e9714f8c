"""Offload: weights that wait in the host's memory and lie in the device's only while they compute."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import nn

from omni_actors.platforms.runtime import DeviceRuntime

NONE, MODEL, GROUP = "none", "model", "group"
"""Kinds of offload: none; whole components in turn; blocks and layers in turn."""


class WeightGroup:
    """Weights that come into the device's memory together, and leave it together.

    Args:
        weights: The weights, in the host's memory.
        runtime: The device.
    """

    def __init__(self, weights: Iterable[nn.Parameter], runtime: DeviceRuntime) -> None:
        self._weights = list(dict.fromkeys(weights))
        self._host = [weight.data for weight in self._weights]
        self._runtime = runtime
        self.present = False
        self.loads = 0

    @property
    def nbytes(self) -> int:
        """The bytes of all weights."""
        return sum(tensor.nbytes for tensor in self._host)

    def enter(self) -> None:
        """Copy the weights into the device's memory. Without enough memory none stays there."""
        if self.present:
            return
        try:
            # Weights are no inference tensors, and only such tensors can take their place.
            with self._runtime.host(), torch.inference_mode(False):
                for weight, tensor in zip(self._weights, self._host, strict=True):
                    weight.data = self._runtime.onload(tensor)
        except BaseException:
            self.leave()
            raise
        self.present = True
        self.loads += 1

    def leave(self) -> None:
        """Free the weights' memory on the device."""
        with self._runtime.host(), torch.inference_mode(False):
            for weight, tensor in zip(self._weights, self._host, strict=True):
                weight.data = tensor
        self.present = False


class Offload:
    """The offload of one loaded pipeline.

    Buffers, and weights that a module with children holds itself, stay on the device: they are small.

    Args:
        kind: :data:`MODEL` or :data:`GROUP`.
        components: The pipeline's modules by name, with their weights in the host's memory.
        runtime: The device.
    """

    def __init__(self, kind: str, components: Mapping[str, nn.Module], runtime: DeviceRuntime) -> None:
        self._groups: list[WeightGroup] = []
        self._moved_to: WeightGroup | None = None
        self._runtime = runtime
        with runtime.host():
            for component in components.values():
                self._place_rest(component)
                if kind == MODEL:
                    self._by_model(component)
                else:
                    self._by_group(component)

    @property
    def absent_bytes(self) -> int:
        """The most bytes of weights that will be on the device beside those that are there now."""
        most = max((group.nbytes for group in self._groups), default=0)
        return max(0, most - sum(group.nbytes for group in self._groups if group.present))

    def counters(self) -> dict[str, float]:
        """Return how often and how much was copied to the device."""
        return {
            "offload_loads_total": sum(group.loads for group in self._groups),
            "offload_bytes_total": sum(group.loads * group.nbytes for group in self._groups),
        }

    def _place_rest(self, component: nn.Module) -> None:
        """Put what is not offloaded on the device."""
        with self._runtime.host(), torch.inference_mode(False):
            for module in component.modules():
                for name, buffer in module.named_buffers(recurse=False):
                    module._buffers[name] = self._runtime.onload(buffer)
                if any(module.children()):
                    for weight in module.parameters(recurse=False):
                        weight.data = self._runtime.onload(weight.data)

    def _by_model(self, component: nn.Module) -> None:
        layers = list(_layers(component))
        group = self._group(layers)

        def enter(*_: Any) -> None:
            # The first layer of a component that computes brings all of them, and sends the component before away.
            if self._moved_to is not group:
                if self._moved_to is not None:
                    self._moved_to.leave()
                self._moved_to = group
            group.enter()

        for layer in layers:
            layer.register_forward_pre_hook(enter)

    def _by_group(self, component: nn.Module) -> None:
        blocks = [it for part in component.modules() if isinstance(part, nn.ModuleList) for it in part]
        outer = [block for block in blocks if not _inside(block, blocks)]
        grouped = {layer for block in outer for layer in _layers(block)}
        for block in outer:
            self._around(block, self._group(_layers(block)))
        for layer in _layers(component):
            if layer not in grouped:
                self._around(layer, self._group([layer]))

    def _group(self, layers: Iterable[nn.Module]) -> WeightGroup:
        group = WeightGroup((weight for layer in layers for weight in layer.parameters(recurse=False)), self._runtime)
        self._groups.append(group)
        return group

    @staticmethod
    def _around(module: nn.Module, group: WeightGroup) -> None:
        module.register_forward_pre_hook(lambda *_: group.enter())
        module.register_forward_hook(lambda *_: group.leave(), always_call=True)


def _layers(module: nn.Module) -> Iterator[nn.Module]:
    """Return the modules without children that have weights."""
    return (it for it in module.modules() if not any(it.children()) and any(True for _ in it.parameters()))


def _inside(module: nn.Module, others: Iterable[nn.Module]) -> bool:
    return any(module is not other and any(module is it for it in other.modules()) for other in others)
