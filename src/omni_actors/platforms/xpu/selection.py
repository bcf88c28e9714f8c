"""The two languages in which Intel's devices are hidden.

``ZE_AFFINITY_MASK``: ``0``, ``0,2``, ``0.1`` (a tile): what is named is left, in the driver's order; what is no device
is passed over. ``ONEAPI_DEVICE_SELECTOR``: terms ``[!]backend:devices`` between semicolons, as ``level_zero:0,1`` or
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
    """It is none: SYCL would end the process."""


@dataclass(frozen=True, slots=True)
class Mask:
    """``named`` maps a device's number to the entries that name it or a part of it; ``None`` shows all."""

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
        """What shows that device alone, in the mask's own words; empty when nothing was said."""
        return ",".join(dict.fromkeys(self.named[index])) if self.named is not None else ""


@dataclass(frozen=True, slots=True)
class Selector:
    """Terms that are about GPUs of Level Zero: devices that are accepted (``None``: all) and discarded."""

    accepted: tuple[str, ...] | None
    discarded: tuple[str, ...]

    @classmethod
    def read(cls, setting: str) -> Selector:
        """Raises :class:`SelectorError`."""
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
        """Whether the GPU at that place among Level Zero's is left."""
        if any(_fits(device, place) for device in self.discarded if "." not in device or device.endswith("*")):
            return False
        return self.accepted is None or any(_fits(device, place) for device in self.accepted)

    def entries(self, place: int, index: int) -> str:
        """What a mask says for that: device ``index``, or its tiles where only those were selected."""
        mine = [device for device in self.accepted or () if _fits(device, place)]
        tiles = [device.partition(".")[2] for device in mine]
        if not mine or not all(tile.isdecimal() for tile in tiles):
            return str(index)
        return ",".join(f"{index}.{tile}" for tile in dict.fromkeys(tiles))


def _fits(device: str, place: int) -> bool:
    root = device.partition(".")[0]
    return root in ("*", "gpu") or root == str(place)
