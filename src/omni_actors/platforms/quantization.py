"""Which quantized checkpoints can be run, by their ``quant_method``.

The torch engines read weights in the dtypes that they compute in. A checkpoint whose weights are packed integers or
8-bit floats needs kernels that multiply by them: none of ours does, on any platform, so all of them are refused by
name. An engine that brings its own loader (vLLM's) decides for itself.
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
"""What transformers and vLLM call them."""

_LACKS = "the torch engines have no kernels for its weights: use the unquantized checkpoint, or engine vllm"

TORCH: Mapping[str, str] = dict.fromkeys(METHODS, _LACKS)
"""For :attr:`~omni_actors.platforms.platform.OmniPlatform.quantization` of a platform whose engines are ours."""
