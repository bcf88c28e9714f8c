"""Engines: what computes the requests of a stage, inside its worker.

Every engine implements :class:`omni_actors.worker.engine.Engine`, and a stage names its engine by kind or by dotted
name. One package (or, if it is small, one file) holds one engine:

- ``autoregressive/``: tokens one after the other (text, or codec frames) with this project's own scheduler and cache.
- ``vllm/``: the same stages computed by vLLM. It shares prompts, choices and sampling with ``autoregressive/``.
- ``oneshot/``: models that turn one input into one output: recognisers, acoustic models, vocoders, encoders. Its kind
  is called ``generation``.
- ``diffusion/``: pictures made step by step; requests share denoising steps.
- ``chained.py``: several engines in one worker, one after the other.
- ``stub.py``: the smallest whole example, without a model.

A new kind of engine is a new package beside these, with ``engine.py``, ``adapter.py`` (what a model family brings),
``request.py`` and ``options.py`` (which the serving process reads, so it does not import torch). Each package's
``__init__`` exports its engine, lazily for the same reason.
"""

from pathlib import Path

# Old addresses: a module that has moved into a package is still found by its old name, in this folder.
__path__ = [*__path__, str(Path(__file__).with_name("_moved"))]
