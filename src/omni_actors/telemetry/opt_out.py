"""Environment variables that turn off the usage reports of dependencies, for every process that may import one."""

from __future__ import annotations

import os
from collections.abc import Mapping

OPT_OUT: Mapping[str, str] = {
    # onnxruntime (from 1.32 on also on Linux) looks up its vendor's host and keeps an id of the machine and a database
    # in ~/.cache/Microsoft. `disable_telemetry_events()` comes too late: the library reads this variable when it loads.
    "ORT_DISABLE_TELEMETRY": "1",
    # huggingface_hub and hf_xet report downloads; transformers and diffusers add their actions to the user agent.
    "HF_HUB_DISABLE_TELEMETRY": "1",
    # vLLM reports the model's architecture and the machine.
    "VLLM_NO_USAGE_STATS": "1",
    # Ray, where vLLM uses it, reports the cluster.
    "RAY_USAGE_STATS_ENABLED": "0",
    # gradio, which some model packages import, reports its version and asks for a newer one.
    "GRADIO_ANALYTICS_ENABLED": "False",
    # A convention of several of these and of other packages: see donottrack.sh.
    "DISABLE_TELEMETRY": "1",
    "DO_NOT_TRACK": "1",
}
"""Variable → value. Packages read the variables when they are imported (onnxruntime when its library is loaded), so the
variables are set before a process begins."""


def quiet_environment(more: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the environment of a child process: this process's, with :data:`OPT_OUT`, and with ``more`` over both."""
    return {**os.environ, **OPT_OUT, **(more or {})}
