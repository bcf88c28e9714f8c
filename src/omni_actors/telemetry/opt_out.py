"""The switches by which dependencies tell nobody of their use, for every process that may import one of them."""

from __future__ import annotations

import os
from collections.abc import Mapping

OPT_OUT: Mapping[str, str] = {
    # onnxruntime (from 1.32 on also on Linux) looks up its vendor's host and keeps an id of the machine and a database
    # in ~/.cache/Microsoft. `disable_telemetry_events()` comes too late for that: it reads this when it is loaded.
    "ORT_DISABLE_TELEMETRY": "1",
    # huggingface_hub and hf_xet report downloads; transformers and diffusers add what they do to the user agent.
    "HF_HUB_DISABLE_TELEMETRY": "1",
    # vLLM reports the model's architecture and the machine.
    "VLLM_NO_USAGE_STATS": "1",
    # Ray, where vLLM uses it, reports the cluster.
    "RAY_USAGE_STATS_ENABLED": "0",
    # gradio, which some model packages import, reports its version and asks for a newer one.
    "GRADIO_ANALYTICS_ENABLED": "False",
    # What several of them, and packages that nobody has looked at yet, agree on: see donottrack.sh.
    "DISABLE_TELEMETRY": "1",
    "DO_NOT_TRACK": "1",
}
"""Variable → value. They are read when the package is imported (onnxruntime's when its library is loaded), so they are
set before a process begins."""


def quiet_environment(more: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the environment of a child process: this one's, with :data:`OPT_OUT`, and with ``more`` over both."""
    return {**os.environ, **OPT_OUT, **(more or {})}
