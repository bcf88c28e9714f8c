"""Accelerations of diffusion models: step caches, LoRA adapters, offload and compiled blocks.

- ``acceleration.py``: those of one loaded model, as the adapter uses them.
- ``forward_rows.py``: the rows of the forward under way.
- ``step_cache/``: steps that reuse most of an earlier step's forward.
- ``lora/``: adapters loaded at run time, each row with its own.
"""
