"""The components of a diffusers folder, loaded as far as a stage needs them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import diffusers
import torch
from transformers.utils.logging import disable_progress_bar

from omni_actors.pipelines.weights.diffusers_folder import components_of


def load_pipeline(
    folder: str | Path,
    name: str,
    dtype: torch.dtype,
    device: torch.device,
    needed: Callable[[str], bool],
    given: Mapping[str, Any] | None = None,
) -> Any:
    """Return diffusers' pipeline object of a folder, with the needed components on the device.

    A component of diffusers that is not needed is there without its weights (on torch's device ``meta``), since other
    components' sizes are computed from its configuration. Any other component that is not needed is ``None``.

    Args:
        folder: The folder with ``model_index.json``.
        name: The name of the pipeline's class in diffusers.
        dtype: The dtype of all weights.
        device: The device of all weights.
        needed: Whether the stage needs a component, by name.
        given: Components that are not loaded from the folder.
    """
    diffusers.utils.logging.disable_progress_bar()
    disable_progress_bar()
    diffusers.utils.logging.set_verbosity_error()
    absent = {
        part: _outline(Path(folder), part, source)
        for part, source in components_of(Path(folder)).items()
        if not needed(part)
    }
    loader = getattr(diffusers, name)
    expected = inspect.signature(loader.__init__).parameters
    passed = {part: made for part, made in {**absent, **(given or {})}.items() if part in expected}
    pipe = loader.from_pretrained(str(folder), dtype=dtype, local_files_only=True, **passed)
    for part in modules_of(pipe).values():
        part.to(device).eval().requires_grad_(False)
    pipe.set_progress_bar_config(disable=True)
    return pipe


def modules_of(pipe: Any) -> dict[str, torch.nn.Module]:
    """Return the components of a pipeline that have weights here, by name."""
    return {
        name: part
        for name, part in pipe.components.items()
        if isinstance(part, torch.nn.Module) and not any(weight.is_meta for weight in part.parameters())
    }


def _outline(folder: Path, name: str, source: tuple[str, str]) -> Any:
    """Return a component without weights, or ``None`` if it is none of diffusers' models."""
    library, kind = source
    found = getattr(diffusers, kind, None) if library == "diffusers" else None
    if found is None or not issubclass(found, diffusers.ModelMixin):
        return None
    with torch.device("meta"):
        return found.from_config(found.load_config(str(folder), subfolder=name, local_files_only=True))
