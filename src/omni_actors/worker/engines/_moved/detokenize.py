"""Moved to ``autoregressive.detokenize``."""

from omni_actors.moved import moved_names

__getattr__ = moved_names(
    __name__,
    {
        "Vocabulary": "omni_actors.worker.engines.autoregressive.detokenize:Vocabulary",
        "StopStrings": "omni_actors.worker.engines.autoregressive.detokenize:StopStrings",
        "NO_STOPS": "omni_actors.worker.engines.autoregressive.detokenize:NO_STOPS",
        "TextStream": "omni_actors.worker.engines.autoregressive.detokenize:TextStream",
    },
)
