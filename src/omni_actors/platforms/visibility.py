"""What a variable such as ``CUDA_VISIBLE_DEVICES`` leaves of a machine's devices.

Entries are the vendor's own strings: an ordinal, a UUID or the beginning of one, a part of a device. They are compared
and handed on, never rewritten.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from omni_actors.platforms.accelerator import Unit

ORDINAL = re.compile(r"[0-9]{1,9}")

Chosen = list[tuple[str, Unit]]
"""Each visible device with the entry that stands for it."""


def choose(
    units: Sequence[Unit], variable: str, setting: str, named: Callable[[str], Unit | None]
) -> tuple[Chosen, str]:
    """By the rules of CUDA, which others have taken over: entries are ordinals or names of devices; the first one that
    is no device ends the list; a list with one twice shows nothing. And why nothing is shown, where that is so.

    ``named`` finds the device of an entry that is no ordinal, ``None`` if there is none of that name.
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
    # By the device, which goes by many names; one that nothing is known of goes by its own.
    if len({unit.id or entry.lstrip("0") for entry, unit in found}) < len(found):
        return [], f"{variable}={setting!r} names a device twice, so no device is visible"
    return found, ""


def by_id(units: Sequence[Unit], complete: bool) -> Callable[[str], Unit | None]:
    """Devices by UUID, or by the beginning of one that no other device shares. Where not every UUID is known
    (``complete`` is false), one that fits none may still be right: it is taken as it is."""

    def named(entry: str) -> Unit | None:
        fitting = [unit for unit in units if unit.id is not None and unit.id.casefold().startswith(entry.casefold())]
        if len(fitting) == 1:
            return fitting[0]
        if fitting or complete or all(unit.id is not None for unit in units):
            return None
        return Unit(units[0].model, id=entry)

    return named


def hidden(units: Sequence[Unit], variable: str, setting: str, entry: str) -> str:
    """The sentence about a variable that shows nothing."""
    count = "the device" if len(units) == 1 else f"all {len(units)} devices"
    about = "" if entry in ("", "-1") else f": '{entry}' is none of them"
    return f"{variable}={setting!r} hides {count}{about}"
