"""The order of a platform's examination, and its results."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from omni_actors.platforms.cpu import CpuPlatform
from omni_actors.platforms.platform import OmniPlatform
from omni_actors.platforms.testing.workload import PROMPTS, TOKENS
from omni_actors.plugins.subprocess_probe import ProbeAnswer, SubprocessProbe, run_probes

HERE = Path(__file__).parent

DEADLINE_S = 300.0
"""Seconds for each process of the kit. The import of torch and a device's first kernels take most of the time."""

EQUAL_BELOW = {"float32": 1e-4, "bfloat16": 0.1, "float16": 0.02}
"""Two tokens count as equally good if the reference's log-probabilities differ by no more than this."""

LOGPROB_WITHIN = {"float32": 1e-3, "bfloat16": 0.2, "float16": 0.05}
"""Largest difference between a token's log-probability and the reference's."""

State = Literal["passed", "failed", "skipped"]


@dataclass(frozen=True, slots=True)
class Result:
    """The result of one check, and why the check failed or was skipped."""

    name: str
    state: State
    why: str = ""

    def __str__(self) -> str:
        return f"{self.name}: {self.state}" + (f" ({self.why})" if self.why else "")


def check_platform(
    kind: type[OmniPlatform], *, device: str | None = None, deadline_s: float = DEADLINE_S
) -> tuple[Result, ...]:
    """Check a platform against the whole contract: its class, its half in the serving process, and, if the platform is
    usable here, its runtime on a device with a tiny language model.

    The call blocks for at most twice ``deadline_s``. A platform's fault raises nothing.

    Args:
        kind: The platform's class. Other processes import the class by its module's name, with this process's
            ``sys.path`` and environment.
        device: The device to check; ``None`` for the platform's first device.
        deadline_s: Seconds for each process of the kit.
    """
    results, facts = serving_half(kind, deadline_s=deadline_s)
    if not facts.get("usable"):
        why = facts.get("reason", "its first half says nothing")
        return (*results, *(Result(name, "skipped", why) for name in ("opens", "tokens")))
    chosen = next((it for it in facts["devices"] if device in (None, it["name"])), None)
    if chosen is None:
        return (*results, Result("opens", "failed", f"it has no device '{device}'"))
    dtype = "float32" if "float32" in facts["dtypes"] else facts["default_dtype"]
    told = {
        "platform": _dotted(kind),
        "engine": facts["engine"],
        "device": chosen["worker"],
        "environment": chosen["environment"],
        "options": facts["options"],
        "dtype": dtype,
        "dtypes": facts["dtypes"],
        "transports": facts["transports"],
    }
    wanted, second = run_probes(
        [
            SubprocessProbe(HERE / "workload.py", _reference(dtype), CpuPlatform().worker_environment("cpu", 1, {})),
            SubprocessProbe(HERE / "worker_half.py", told, chosen["environment"]),
        ],
        deadline_s,
    )
    if second.trouble:
        return (*results, Result("second_half", "failed", second.trouble))
    found = ProbeAnswer(second.value["said"], second.value["trouble"])
    return (*results, *_results(second.value["results"]), _compared(wanted, found, dtype))


def serving_half(
    kind: type[OmniPlatform], *, deadline_s: float = DEADLINE_S
) -> tuple[tuple[Result, ...], dict[str, Any]]:
    """Return the results of the serving half, and the facts for the worker half; empty facts for a platform that does
    not answer."""
    (said,) = run_probes([SubprocessProbe(HERE / "parent_half.py", {"platform": _dotted(kind)})], deadline_s)
    if said.trouble:
        return (Result("first_half", "failed", said.trouble),), {}
    facts: dict[str, Any] = said.value
    return _results(facts["results"]), facts


def _dotted(kind: type[OmniPlatform]) -> str:
    return f"{kind.__module__}:{kind.__qualname__}"


def failures(results: Iterable[Result]) -> list[str]:
    """Return the failed checks, a line each."""
    return [str(result) for result in results if result.state == "failed"]


def _results(said: dict[str, list[Any]]) -> tuple[Result, ...]:
    return tuple(Result(name, state, why) for name, (state, why) in said.items())


def _reference(dtype: str) -> dict[str, Any]:
    """Return the argument by which the processor computes the reference."""
    cpu = CpuPlatform()
    return {
        "platform": f"{CpuPlatform.__module__}:{CpuPlatform.__qualname__}",
        "engine": cpu.engines["autoregressive"],
        "device": "cpu",
        "options": {},
        "dtype": dtype if dtype in cpu.dtypes else "float32",
    }


def _compared(wanted: ProbeAnswer, found: ProbeAnswer, dtype: str) -> Result:
    for side, who in ((wanted, "the processor"), (found, "the device")):
        if side.trouble:
            return Result("tokens", "failed", f"{who}: {side.trouble}")
    compared = 0
    for number, (reference, said) in enumerate(zip(wanted.value, found.value, strict=True)):
        if len(reference) != len(said):
            return Result("tokens", "failed", f"prompt {number}: {len(said)} tokens, not {len(reference)}")
        for place, (right, own) in enumerate(zip(reference, said, strict=True)):
            at = f"prompt {number}, token {place} in {dtype}"
            (_, best), (_, second) = right["top"][:2]
            if own["token"] != right["token"]:
                if best - second > EQUAL_BELOW[dtype]:
                    return Result("tokens", "failed", f"{at}: {own['token']}, not {right['token']}")
                break  # equally good tokens; the texts differ from here on
            off = abs(own["top"][0][1] - best)
            if not off <= LOGPROB_WITHIN[dtype]:
                return Result("tokens", "failed", f"{at}: its log-probability is off by {off:.2g}")
            compared += 1
    if not compared:
        return Result("tokens", "failed", "no token was the same")
    return Result("tokens", "passed", f"{compared} of {len(PROMPTS) * TOKENS} in {dtype}")
