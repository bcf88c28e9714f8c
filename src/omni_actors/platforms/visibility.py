"""The devices that a variable such as ``CUDA_VISIBLE_DEVICES`` leaves visible.

Entries are the vendor's own texts: an ordinal, a UUID or its beginning, a part of a device. Entries are compared and
handed on, never rewritten.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from omni_actors.platforms.accelerator import Unit

ORDINAL = re.compile(r"[0-9]{1,9}")

Chosen = list[tuple[str, Unit]]
"""The visible devices, each with the entry that stands for it."""


def choose(
    units: Sequence[Unit], variable: str, setting: str, named: Callable[[str], Unit | None]
) -> tuple[Chosen, str]:
    """Choose devices by the rules of CUDA, which other vendors follow too.

    Entries are ordinals or names of devices. The first entry that is no device ends the list; a list with one device
    twice shows nothing.

    Args:
        units: The machine's devices, in the order of their ordinals.
        variable: The variable's name, for the reason.
        setting: The variable's value.
        named: A function that finds the device of an entry that is no ordinal; ``None`` for an unknown name.

    Returns:
        The visible devices, and if there is none, the reason.

    Example:
        >>> units = [Unit("A"), Unit("B")]
        >>> [unit.model for _, unit in choose(units, "VISIBLE", "1,0", lambda name: None)[0]]
        ['B', 'A']
    """
    found: Chosen = []
    for entry in (part.strip() for part in setting.split(",")):
        if ORDINAL.fullmatch(entry):
            unit = units[int(entry)] if int(entry) < len(units) else None
        else:
            unit = named(entry) if entry else None
        if unit is None:
            if not found:
                return [], hidden(units, variable, setting, entry)
            break
        found.append((entry, unit))
    # Devices are compared as such, since a device has many names; an unknown device is compared by name.
    if len({unit.id or entry.lstrip("0") for entry, unit in found}) < len(found):
        return [], f"{variable}={setting!r} names a device twice, so no device is visible"
    return found, ""


def by_id(units: Sequence[Unit], complete: bool) -> Callable[[str], Unit | None]:
    """Return a function that finds devices by UUID, or by the beginning of a UUID that no other device shares. If
    ``complete`` is false, some UUIDs are unknown, and an entry that fits no known UUID is taken as it is."""

    def named(entry: str) -> Unit | None:
        fitting = [unit for unit in units if unit.id is not None and unit.id.casefold().startswith(entry.casefold())]
        if len(fitting) == 1:
            return fitting[0]
        if fitting or complete or all(unit.id is not None for unit in units):
            return None
        return Unit(units[0].model, id=entry)

    return named


def hidden(units: Sequence[Unit], variable: str, setting: str, entry: str) -> str:
    """Return the sentence about a variable that hides every device."""
    count = "the device" if len(units) == 1 else f"all {len(units)} devices"
    about = "" if entry in ("", "-1") else f": '{entry}' is none of them"
    return f"{variable}={setting!r} hides {count}{about}"
