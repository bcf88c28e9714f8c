"""Moved to ``autoregressive.sampling``."""

from omni_actors.moved import moved_names

__getattr__ = moved_names(
    __name__,
    {
        "GREEDY_BELOW": "omni_actors.worker.engines.autoregressive.sampling:GREEDY_BELOW",
        "MAX_LOGPROBS": "omni_actors.worker.engines.autoregressive.sampling:MAX_LOGPROBS",
        "MAX_CHOICES": "omni_actors.worker.engines.autoregressive.sampling:MAX_CHOICES",
        "MAX_STOP_CHARS": "omni_actors.worker.engines.autoregressive.sampling:MAX_STOP_CHARS",
        "Choosing": "omni_actors.worker.engines.autoregressive.sampling:SamplingParams",
        "resolve": "omni_actors.worker.engines.autoregressive.sampling:resolve",
        "validate": "omni_actors.worker.engines.autoregressive.sampling:validate",
        "Row": "omni_actors.worker.engines.autoregressive.sampling:SamplingState",
        "Sampled": "omni_actors.worker.engines.autoregressive.sampling:SampledBatch",
        "sample": "omni_actors.worker.engines.autoregressive.sampling:sample",
        "token_logprobs": "omni_actors.worker.engines.autoregressive.sampling:token_logprobs",
    },
)
