"""The LoRA adapters of one loaded model, by name."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any
from weakref import WeakSet

import torch
from torch import nn

from omni_actors.models.diffusion.acceleration.forward_rows import ForwardRows
from omni_actors.models.diffusion.acceleration.lora.files import bad_file, find_file, read_lora
from omni_actors.models.diffusion.acceleration.lora.layers import LoraLayers
from omni_actors.models.diffusion.acceleration.lora.weights import LoraAdapter, LowRank
from omni_actors.protocol.errors import invalid_request
from omni_actors.protocol.params import LoraScale

Chosen = tuple[tuple[LoraAdapter, float], ...]
"""The adapters of a request, with the scale of each."""


class Loras:
    """The LoRA adapters of a denoiser, loaded and unloaded while it runs.

    Args:
        rows: The rows of the forward under way.
        budget: Most bytes of all adapters; ``None`` for no bound of their own.
    """

    def __init__(self, rows: ForwardRows, budget: int | None) -> None:
        self.layers = LoraLayers(rows)
        self._budget = budget
        self._named: dict[str, LoraAdapter] = {}
        self._alive: WeakSet[LoraAdapter] = WeakSet()
        self._modules: dict[str, nn.Module] = {}
        self._component = ""
        self._pipeline: type = object
        self._dtype = torch.float32

    def install(self, model: nn.Module, component: str, pipeline: type, dtype: torch.dtype) -> None:
        """Take a denoiser's layers as the targets of adapters.

        Args:
            model: The denoiser, with the names of its modules as diffusers made them.
            component: Its name in the pipeline.
            pipeline: diffusers' pipeline class.
            dtype: The number type of the denoiser's inputs.
        """
        self._modules = {name: it for name, it in model.named_modules() if isinstance(it, nn.Linear | nn.Conv2d)}
        self._component, self._pipeline, self._dtype = component, pipeline, dtype

    # ---- requests

    def chosen(self, loras: Sequence[LoraScale]) -> Chosen:
        """Return a request's adapters. Raises 400 with ``param`` ``lora`` for what is not loaded."""
        found: dict[LoraAdapter, float] = {}
        for it in loras:
            if it.name not in self._named:
                there = ", ".join(sorted(self._named)) or "none"
                raise invalid_request(f"LoRA adapter '{it.name}' is not loaded; loaded are: {there}.", "lora")
            if not math.isfinite(it.scale):
                raise invalid_request(f"The scale of LoRA adapter '{it.name}' must be a number.", "lora")
            adapter = self._named[it.name]
            if adapter in found:
                raise invalid_request(f"LoRA adapter '{it.name}' is named twice.", "lora")
            found[adapter] = it.scale
        return tuple((adapter, scale) for adapter, scale in found.items() if scale)

    # ---- operators

    def load(self, name: str, path: str) -> dict[str, Any]:
        """Load an adapter from a file or a folder, and return its description.

        Raises:
            OmniError: The name is taken, the file is no adapter of this model, or there is no room; status 400.
        """
        if not name:
            raise invalid_request("A LoRA adapter needs a name.", "name")
        if name in self._named:
            raise invalid_request(f"A LoRA adapter '{name}' is loaded already; unload it first.", "name")
        if not self._modules:
            raise invalid_request("This model takes no LoRA adapters.", "name")
        file = find_file(path)
        terms = read_lora(file, self._component, self._pipeline, self._modules)
        adapter = LoraAdapter(name, str(file), {module: self._placed(file, module, it) for module, it in terms.items()})
        if self._budget is not None and self.nbytes + adapter.nbytes > self._budget:
            raise invalid_request(
                f"LoRA adapter '{name}' needs {adapter.nbytes >> 10} KiB, and of the stage's 'lora_bytes' "
                f"({self._budget >> 10} KiB) {max(0, self._budget - self.nbytes) >> 10} are left.",
                "path",
            )
        self._named[name] = adapter
        self._alive.add(adapter)
        self._hook()
        return self._description(adapter)

    def unload(self, name: str) -> dict[str, Any]:
        """Unload an adapter: no new request can choose it. The requests that use it go on with it, and then its memory
        is free. Raises 400 for an unknown name."""
        adapter = self._named.pop(name, None)
        if adapter is None:
            raise invalid_request(f"LoRA adapter '{name}' is not loaded.", "name")
        description = self._description(adapter)
        del adapter
        self._hook()
        return description

    def listed(self) -> list[dict[str, Any]]:
        """Return the description of each loaded adapter, in order of loading."""
        return [self._description(adapter) for adapter in self._named.values()]

    @property
    def nbytes(self) -> int:
        """The bytes of all adapters, those included that are unloaded and still in use."""
        return sum(adapter.nbytes for adapter in self._alive)

    def counters(self) -> dict[str, float]:
        """Return the bytes of the adapters, which stay between requests."""
        return {"lora_bytes": self.nbytes}

    def _description(self, adapter: LoraAdapter) -> dict[str, Any]:
        return {"name": adapter.name, "path": adapter.path, "bytes": adapter.nbytes, "layers": len(adapter.terms)}

    def _hook(self) -> None:
        self.layers.hook(self._modules, {name for adapter in self._alive for name in adapter.terms})

    def _placed(self, file: Any, name: str, term: LowRank) -> LowRank:
        """Return a term on the layer's device, in the number type of its inputs. Raises 400 for other shapes."""
        layer = self._modules[name]
        outputs, inputs, kernel = _shape(layer)
        rank = term.down.shape[0]
        flat = term.down.ndim == 2 and not kernel
        right = flat or tuple(term.down.shape[2:]) == kernel
        if not right or term.down.shape[1] != inputs or term.up.shape[:2] != (outputs, rank):
            raise bad_file(
                f"'{file}' does not fit this model: '{name}' has {inputs} inputs and {outputs} outputs, and the "
                f"adapter's matrices are {list(term.down.shape)} and {list(term.up.shape)}."
            )
        device = next(layer.parameters()).device
        down, up = (it.to(device, self._dtype) for it in (term.down, term.up))
        return LowRank(down, up, term.factor)


def _shape(layer: nn.Module) -> tuple[int, int, tuple[int, ...]]:
    """Return outputs, inputs and the kernel's size of a layer; a linear one has no kernel."""
    if isinstance(layer, nn.Conv2d):
        return layer.out_channels, layer.in_channels // layer.groups, tuple(layer.kernel_size)
    assert isinstance(layer, nn.Linear)
    return layer.out_features, layer.in_features, ()


def parsed(text: str) -> Mapping[str, str]:
    """Return the adapters of a stage's option ``loras``: ``name=path`` separated by commas.

    Example:
        >>> parsed("a=/loras/a.safetensors, b=/loras/b")
        {'a': '/loras/a.safetensors', 'b': '/loras/b'}
    """
    found: dict[str, str] = {}
    for part in filter(None, (it.strip() for it in text.split(","))):
        name, equals, path = part.partition("=")
        if not (name and equals and path):
            raise invalid_request(f"The option 'loras' has {part!r}, which is no name=path.", "loras")
        found[name.strip()] = path.strip()
    return found
