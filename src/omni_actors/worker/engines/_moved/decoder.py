"""Moved to ``autoregressive.decoder`` and ``autoregressive.adapter``."""

from omni_actors.moved import moved_names

__getattr__ = moved_names(
    __name__,
    {
        "KVShape": "omni_actors.worker.engines.autoregressive.decoder:KVShape",
        "Attention": "omni_actors.worker.engines.autoregressive.decoder:Attention",
        "StepInputs": "omni_actors.worker.engines.autoregressive.decoder:StepInputs",
        "Span": "omni_actors.worker.engines.autoregressive.decoder:Span",
        "StepOutput": "omni_actors.worker.engines.autoregressive.decoder:StepOutput",
        "Decoder": "omni_actors.worker.engines.autoregressive.decoder:Decoder",
        "RecordableDecoder": "omni_actors.worker.engines.autoregressive.decoder:CapturableDecoder",
        "LeadingDecoder": "omni_actors.worker.engines.autoregressive.decoder:LeadingDecoder",
        "PromptInput": "omni_actors.worker.engines.autoregressive.adapter:PromptInput",
        "State": "omni_actors.worker.engines.autoregressive.adapter:State",
        "Drawn": "omni_actors.worker.engines.autoregressive.adapter:SampledToken",
        "Release": "omni_actors.worker.engines.autoregressive.adapter:Release",
        "PromptAdapter": "omni_actors.worker.engines.autoregressive.adapter:PromptAdapter",
        "AutoregressiveAdapter": "omni_actors.worker.engines.autoregressive.adapter:AutoregressiveAdapter",
    },
)
