"""Moved to ``autoregressive.graphs``."""

from omni_actors.moved import moved_names

__getattr__ = moved_names(
    __name__,
    {
        "GATHERED_TOKENS": "omni_actors.worker.engines.autoregressive.graphs:GATHERED_TOKENS",
        "RecordedSteps": "omni_actors.worker.engines.autoregressive.graphs:CapturedSteps",
        "TableAttention": "omni_actors.worker.engines.autoregressive.graphs:TableAttention",
        "RecordedRows": "omni_actors.worker.engines.autoregressive.graphs:CapturedRows",
    },
)
