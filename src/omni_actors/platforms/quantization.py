"""Quantized checkpoints that a platform can run, by their ``quant_method``.

The torch engines read weights in the dtypes that they compute in. Checkpoints of packed integers or 8-bit floats need
kernels that multiply by such weights. No platform's torch engine has these kernels, so all such checkpoints are refused
by name. An engine with its own loader (vLLM) decides for itself.
"""

from __future__ import annotations

from collections.abc import Mapping

METHODS = (
    "aqlm",
    "auto-round",
    "awq",
    "bitnet",
    "bitsandbytes",
    "compressed-tensors",
    "eetq",
    "fbgemm_fp8",
    "fp8",
    "fp_quant",
    "gptq",
    "higgs",
    "hqq",
    "modelopt",
    "mxfp4",
    "quanto",
    "quark",
    "spqr",
    "torchao",
    "vptq",
)
"""Names of quantization methods in transformers and vLLM."""

_LACKS = "the torch engines have no kernels for its weights: use the unquantized checkpoint, or engine vllm"

TORCH: Mapping[str, str] = dict.fromkeys(METHODS, _LACKS)
"""The value of :attr:`~omni_actors.platforms.platform.OmniPlatform.quantization` for platforms with the torch
engines."""
