"""The one-shot engine: models that turn one input into one output, in batches. Its kind is called ``generation``.

- ``adapter.py``: the part of a model family (:class:`~.adapter.GenerationAdapter`).
- ``outputs.py``: the return values of an adapter: results, with pieces of text, sound and payloads.
- ``engine.py``, ``request.py``: the engine, and a request in it.
- ``codec.py``: the adapter of codecs that decode frames window by window; ``ramp.py`` chooses the windows' sizes.
- ``options.py``: the options of codec stages.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from omni_actors.worker.engines.oneshot.engine import GenerationEngine as GenerationEngine

__all__ = ["GenerationEngine"]


def __getattr__(name: str) -> Any:
    # Not imported above: the serving process reads options.py, and imports no torch.
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from omni_actors.worker.engines.oneshot.engine import GenerationEngine

    return GenerationEngine
