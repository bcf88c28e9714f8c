"""The architectures of causal language models that transformers' ``AutoModelForCausalLM`` loads. The serving process
imports no transformers, so the architectures are a table; a test compares the table with the installed transformers."""

from __future__ import annotations

OTHER_NAMES = frozenset(
    (
        "BertGenerationDecoder",
        "BertLMHeadModel",
        "CTRLLMHeadModel",
        "GPT2LMHeadModel",
        "Gemma3ForConditionalGeneration",
        "Gemma3nForConditionalGeneration",
        "Gemma4ForConditionalGeneration",
        "Gemma4UnifiedForConditionalGeneration",
        "GotOcr2ForConditionalGeneration",
        "MossTranscribeDiarizeForConditionalGeneration",
        "OpenAIGPTLMHeadModel",
        "ReformerModelWithLMHead",
        "XLMWithLMHeadModel",
        "XLNetLMHeadModel",
    )
)
"""Classes of ``MODEL_FOR_CAUSAL_LM_MAPPING`` that are not named ``*ForCausalLM``."""


def is_causal_lm(architecture: str) -> bool:
    """Return whether a class of this name is a causal language model. Some cannot be computed: loading says so."""
    return architecture.endswith("ForCausalLM") or architecture in OTHER_NAMES
