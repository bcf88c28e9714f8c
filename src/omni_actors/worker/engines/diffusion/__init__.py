"""The diffusion engine: pictures made step by step, each by a cursor that owns its whole state.

- ``adapter.py``: the part of a model family (:class:`~.adapter.DiffusionAdapter`).
- ``cursor.py``: one picture under way.
- ``engine.py``: the engine.
- ``options.py``: the options of every diffusion stage, read by the serving process without torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from omni_actors.worker.engines.diffusion.engine import DiffusionEngine as DiffusionEngine

__all__ = ["DiffusionEngine"]


def __getattr__(name: str) -> Any:
    # Not imported above: the serving process reads options.py.
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from omni_actors.worker.engines.diffusion.engine import DiffusionEngine

    return DiffusionEngine
