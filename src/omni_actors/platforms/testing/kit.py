"""The order of a platform's examination, and what comes of it."""

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
"""What each process of a kit may take: an import of torch and a device's first kernels are the most of it."""

EQUAL_BELOW = {"float32": 1e-4, "bfloat16": 0.1, "float16": 0.02}
"""Two tokens are as good as each other where the reference's logarithms of their probabilities are this close."""

LOGPROB_WITHIN = {"float32": 1e-3, "bfloat16": 0.2, "float16": 0.05}
"""How far the logarithm of a token's probability may be from the reference's."""

State = Literal["passed", "failed", "skipped"]


@dataclass(frozen=True, slots=True)
class Result:
    """What became of one check: ``why`` it failed or was skipped."""

    name: str
    state: State
    why: str = ""

    def __str__(self) -> str:
        return f"{self.name}: {self.state}" + (f" ({self.why})" if self.why else "")


def check_platform(
    kind: type[OmniPlatform], *, device: str | None = None, deadline_s: float = DEADLINE_S
) -> tuple[Result, ...]:
    """Hold a platform against the contract: its class, what it says in the serving process, and, where it can be used
    here, its worker's half on ``device`` (default: its first) and a tiny language model there.

    ``kind`` must be importable by its module's name: it is examined in other processes, which have this one's
    ``sys.path`` and environment. Blocks for at most twice ``deadline_s``. Never raises because of the platform.
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
    """Its results alone, and what it says for the other half; nothing where it does not even answer."""
    (said,) = run_probes([SubprocessProbe(HERE / "parent_half.py", {"platform": _dotted(kind)})], deadline_s)
    if said.trouble:
        return (Result("first_half", "failed", said.trouble),), {}
    facts: dict[str, Any] = said.value
    return _results(facts["results"]), facts


def _dotted(kind: type[OmniPlatform]) -> str:
    return f"{kind.__module__}:{kind.__qualname__}"


def failures(results: Iterable[Result]) -> list[str]:
    """Those that failed, a line each."""
    return [str(result) for result in results if result.state == "failed"]


def _results(said: dict[str, list[Any]]) -> tuple[Result, ...]:
    return tuple(Result(name, state, why) for name, (state, why) in said.items())


def _reference(dtype: str) -> dict[str, Any]:
    """The processor, told to say the same."""
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
                break  # as good as each other; what follows is another text
            off = abs(own["top"][0][1] - best)
            if not off <= LOGPROB_WITHIN[dtype]:
                return Result("tokens", "failed", f"{at}: its log-probability is off by {off:.2g}")
            compared += 1
    if not compared:
        return Result("tokens", "failed", "no token was the same")
    return Result("tokens", "passed", f"{compared} of {len(PROMPTS) * TOKENS} in {dtype}")
