"""The autoregressive engine: models that write one token after another, text or codec frames.

What a model family brings:

- ``adapter.py``: prompts, vocabulary, defaults, outputs (:class:`~.adapter.AutoregressiveAdapter`).
- ``decoder.py``: the network, with the inputs and outputs of a step.

The way of a request:

- ``prompts.py``: requests while their prompts are read; every engine that reads prompts has it, vLLM's too.
- ``request.py``, ``choice.py``, ``sequence.py``: a request, its answers (``n``), and each one's tokens and cache
  blocks.
- ``scheduler.py``: the choice of the next step's tokens.
- ``step.py``, ``runner.py``: one pass of the network over them, and what happens when it fails.
- ``sampler.py``, ``sampling.py``, ``detokenize.py``, ``output.py``: the next token, its text, and the output of the
  engine.
- ``engine.py``: the engine, which puts these together.

Memory and devices:

- ``cache.py``, ``attention.py``: the paged KV cache: which block is whose, and attention that reads it.
- ``graphs.py``, ``capture.py``: decode steps captured once and replayed (CUDA graphs).
- ``ranks.py``, ``rank_messages.py``: one network shared out among several processes.
- ``disaggregation.py``: prefill in one worker and decode in another.

``options.py`` are the stage options, and ``checks.py`` checks what an adapter returns.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from omni_actors.worker.engines.autoregressive.engine import AutoregressiveEngine as AutoregressiveEngine

__all__ = ["AutoregressiveEngine"]


def __getattr__(name: str) -> Any:
    # Not imported above: the serving process reads options.py, and imports no torch.
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from omni_actors.worker.engines.autoregressive.engine import AutoregressiveEngine

    return AutoregressiveEngine
