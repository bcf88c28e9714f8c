"""The simulated hardware, as the environment describes it. Both halves read it; neither changes it."""

from __future__ import annotations

import os
from dataclasses import dataclass

COUNT = "OMNI_SIM_DEVICES"
"""How many devices the machine has (2)."""

VISIBLE = "OMNI_SIM_VISIBLE_DEVICES"
"""Which of them a process sees: their numbers, separated by commas. Not set: all."""

MEMORY = "OMNI_SIM_MEMORY"
"""Bytes of memory that each process has on a device (4 GiB). Like a partition of a real device: what one process
leaves unused is not another's."""

BANDWIDTH = "OMNI_SIM_LINK_BYTES_S"
"""Bytes per second of the link between devices. Not set or 0: as fast as memory."""

FAULTS = "OMNI_SIM_FAULTS"
"""What goes wrong, once, in a worker's first life: ``oom@40,lost@90,drop@3``. See :class:`Planned`."""

KINDS = ("oom", "lost", "drop")


@dataclass(frozen=True, slots=True)
class Planned:
    """``oom``: there is no memory for the first operation of step ``at`` (of those that compute anything). ``lost``: in
    that step the device stops working, until another process opens it. ``drop``: the transfer number ``at`` that the
    worker receives over the link fails. Both count from 1."""

    kind: str
    at: int

    def __str__(self) -> str:
        return f"{self.kind}@{self.at}"


def visible() -> tuple[int, ...]:
    """Numbers of the devices that this process sees. Raises :class:`ValueError` for what makes no sense."""
    count = int(_number(COUNT, 2))
    listed = os.environ.get(VISIBLE)
    if listed is None:
        return tuple(range(count))
    try:
        numbers = tuple(int(part) for part in listed.split(",") if part.strip())
    except ValueError:
        raise ValueError(f"{VISIBLE}={listed!r} are no device numbers") from None
    # As the vendors' own libraries have it: a number that is none ends the list.
    for place, number in enumerate(numbers):
        if not 0 <= number < count:
            return numbers[:place]
    return numbers


def memory() -> int:
    return int(_number(MEMORY, 4 << 30))


def bandwidth() -> float:
    return _number(BANDWIDTH, 0)


def planned_faults() -> tuple[Planned, ...]:
    found = []
    for part in filter(None, (it.strip() for it in os.environ.get(FAULTS, "").split(","))):
        kind, _, at = part.partition("@")
        if kind not in KINDS or not at.isdecimal() or int(at) < 1:
            raise ValueError(f"{FAULTS}: {part!r} is none of {', '.join(f'{it}@1' for it in KINDS)}")
        found.append(Planned(kind, int(at)))
    return tuple(found)


def _number(name: str, default: float) -> float:
    value = os.environ.get(name, "").strip()
    if not value:
        return default
    try:
        number = float(value)
    except ValueError:
        raise ValueError(f"{name}={value!r} is no number") from None
    if not number >= 0:
        raise ValueError(f"{name}={value!r} is below zero")
    return number
