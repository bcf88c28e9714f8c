"""Parallel degrees inside one replica of a stage."""

from __future__ import annotations

from dataclasses import dataclass, fields


@dataclass(frozen=True, slots=True)
class Strategy:
    """How many devices one replica is spread over, and along which dimension. Every degree is at least 1.

    The replica count is no part of it: replicas share nothing, the devices of one replica share a model.
    """

    tensor: int = 1
    data: int = 1
    pipeline: int = 1
    expert: int = 1
    sequence: int = 1
    cfg: int = 1

    def degrees(self) -> dict[str, int]:
        return {f.name: getattr(self, f.name) for f in fields(self)}


STRATEGY_DOC = {
    "tensor": "Ways each layer's weights are split.",
    "data": "Copies of the weights inside one replica that split its batch.",
    "pipeline": "Groups of layers, one after the other.",
    "expert": "Ways the experts of a mixture are split.",
    "sequence": "Ways a long sequence is split.",
    "cfg": "Branches of classifier-free guidance that run side by side.",
}


def refusals(strategy: Strategy) -> list[tuple[str, str]]:
    """The degrees that no engine can do yet, each with a sentence that says what to do instead."""
    found = []
    for name, degree in strategy.degrees().items():
        if degree == 1:
            continue
        hint = "set replicas instead" if name == "data" else "only degree 1 runs"
        found.append((name, f"{name} parallel degree {degree} is not supported by this engine yet; {hint}"))
    return found
