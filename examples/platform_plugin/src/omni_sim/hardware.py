"""The simulated hardware, described by environment variables that both halves read and neither half changes."""

from __future__ import annotations

import os
from dataclasses import dataclass

COUNT = "OMNI_SIM_DEVICES"
"""The number of devices in the machine (2 if not set)."""

VISIBLE = "OMNI_SIM_VISIBLE_DEVICES"
"""The numbers of the devices that a process sees, separated by commas (all if not set)."""

MEMORY = "OMNI_SIM_MEMORY"
"""Bytes of memory that each process has on a device (4 GiB if not set).

The memory is like a partition of a real device: no process can use the memory that another process leaves free."""

BANDWIDTH = "OMNI_SIM_LINK_BYTES_S"
"""Bytes per second of the link between devices; as fast as memory if not set or 0."""

FAULTS = "OMNI_SIM_FAULTS"
"""The faults of a worker's first incarnation, each happening once: ``oom@40,lost@90,drop@3``. See :class:`Planned`."""

KINDS = ("oom", "lost", "drop")


@dataclass(frozen=True, slots=True)
class Planned:
    """A planned fault.

    ``oom``: there is no memory for the first operation of step ``at``, counting steps that compute anything. ``lost``:
    in step ``at`` the device stops working, until another process opens the device. ``drop``: the transfer number
    ``at`` that the worker receives over the link fails. Steps and transfers count from 1.
    """

    kind: str
    at: int

    def __str__(self) -> str:
        return f"{self.kind}@{self.at}"


def visible() -> tuple[int, ...]:
    """Return the numbers of the devices that this process sees. Raises :class:`ValueError` for a malformed variable."""
    count = int(_number(COUNT, 2))
    listed = os.environ.get(VISIBLE)
    if listed is None:
        return tuple(range(count))
    try:
        numbers = tuple(int(part) for part in listed.split(",") if part.strip())
    except ValueError:
        raise ValueError(f"{VISIBLE}={listed!r} are no device numbers") from None
    # Like in the vendors' own libraries, the number of a device that does not exist ends the list.
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
