"""The two languages for the selection of Intel's devices.

``ZE_AFFINITY_MASK``: ``0``, ``0,2``, ``0.1`` (a tile): named devices are left, in the driver's order; unknown names are
passed over. ``ONEAPI_DEVICE_SELECTOR``: terms ``[!]backend:devices`` between semicolons, as ``level_zero:0,1`` or
``*:gpu;!opencl:*``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_ENTRY = re.compile(r"([0-9]{1,9})(?:\.[0-9]{1,9})*")
_TERM = re.compile(r"(!?)(\*|[a-z_]+):([^:!]+)")
_DEVICE = re.compile(r"\*|gpu|cpu|fpga|accelerator|[0-9]{1,9}|\*\.\*|[0-9]{1,9}\.(?:[0-9]{1,9}|\*)")

BACKENDS = ("*", "level_zero", "opencl", "cuda", "hip", "native_cpu", "esimd_emulator", "offload")


class SelectorError(ValueError):
    """An invalid selector, with which SYCL would end the process."""


@dataclass(frozen=True, slots=True)
class Mask:
    """A parsed mask. ``named`` maps a device's number to its entries, for the device or a tile; ``None`` shows all."""

    named: dict[int, list[str]] | None

    @classmethod
    def read(cls, setting: str) -> Mask:
        if setting.strip() in ("", "default"):
            return cls(None)
        named: dict[int, list[str]] = {}
        for entry in (part.strip() for part in setting.split(",")):
            if match := _ENTRY.fullmatch(entry):
                named.setdefault(int(match[1]), []).append(entry)
        return cls(named)

    def shows(self, index: int) -> bool:
        return self.named is None or index in self.named

    def entries(self, index: int) -> str:
        """Return the mask's own entries that show the device alone; empty without a mask."""
        return ",".join(dict.fromkeys(self.named[index])) if self.named is not None else ""


@dataclass(frozen=True, slots=True)
class Selector:
    """The terms about GPUs of Level Zero: accepted devices (``None``: all) and discarded devices."""

    accepted: tuple[str, ...] | None
    discarded: tuple[str, ...]

    @classmethod
    def read(cls, setting: str) -> Selector:
        """Parse a selector. Raises :class:`SelectorError` for an invalid one."""
        if not setting.strip():
            return cls(None, ())
        accepted: list[str] = []
        discarded: list[str] = []
        accepts = False
        for term in filter(None, (part.strip().lower() for part in setting.split(";"))):
            match = _TERM.fullmatch(term)
            if match is None or match[2] not in BACKENDS:
                raise SelectorError(f"'{term}' is no backend:devices")
            devices = [part.strip() for part in match[3].split(",")]
            if bad := next((device for device in devices if not _DEVICE.fullmatch(device)), None):
                raise SelectorError(f"'{bad}' is no device")
            accepts |= not match[1]
            if match[2] in ("*", "level_zero"):
                (discarded if match[1] else accepted).extend(devices)
        return cls(tuple(accepted) if accepts else None, tuple(discarded))

    def shows(self, place: int) -> bool:
        """Return whether the selector leaves the GPU at a place among Level Zero's."""
        if any(_fits(device, place) for device in self.discarded if "." not in device or device.endswith("*")):
            return False
        return self.accepted is None or any(_fits(device, place) for device in self.accepted)

    def entries(self, place: int, index: int) -> str:
        """Return a mask's entries for device ``index``, or for its tiles if only tiles were selected."""
        mine = [device for device in self.accepted or () if _fits(device, place)]
        tiles = [device.partition(".")[2] for device in mine]
        if not mine or not all(tile.isdecimal() for tile in tiles):
            return str(index)
        return ",".join(f"{index}.{tile}" for tile in dict.fromkeys(tiles))


def _fits(device: str, place: int) -> bool:
    root = device.partition(".")[0]
    return root in ("*", "gpu") or root == str(place)
