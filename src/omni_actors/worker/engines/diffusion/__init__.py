"""The diffusion engine: pictures made step by step, each by a cursor that owns its whole state.

- ``adapter.py``: the part of a model family (:class:`~.adapter.DiffusionAdapter`).
- ``cursor.py``: one picture under way; ``request.py``: a request with its pictures; ``table.py``: all of them.
- ``engine.py``: the engine.
- ``turns.py``: the choice of the next unit of work, by ``fairness.py`` (the order) and ``memory.py`` (admission by
  bytes); ``cohort.py``: the choice when joining is switched off.
- ``denoise.py``, ``slices.py``: the work itself: one forward, or one slice of an encoding or decoding.
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
