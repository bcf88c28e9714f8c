"""Which architectures are causal language models: those that transformers' ``AutoModelForCausalLM`` loads. A table, for
the serving process imports no transformers; a test holds it to the installed one."""

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
    """Whether a class of this name is a causal language model. Not each of them can be computed: loading it says so."""
    return architecture.endswith("ForCausalLM") or architecture in OTHER_NAMES
