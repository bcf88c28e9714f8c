"""The vLLM engine: stages that read prompts and write text, computed by vLLM.

- ``engine.py``: the engine, with the prompts, choices and texts of the ``autoregressive`` package.
- ``core.py``: vLLM itself, its configuration and its step.
- ``params.py``: sampling parameters and log probabilities, to and from vLLM's.
- ``told.py``: the logits processor that applies penalties to the tokens of earlier attempts.
- ``events.py``: the prefixes in vLLM's cache.
- ``options.py``: the stage options, read by the serving process without vLLM.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from omni_actors.worker.engines.vllm.engine import VllmEngine as VllmEngine

__all__ = ["VllmEngine"]


def __getattr__(name: str) -> Any:
    # Not imported above: the serving process reads options.py, and imports no torch.
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from omni_actors.worker.engines.vllm.engine import VllmEngine

    return VllmEngine
