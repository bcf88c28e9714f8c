"""Platforms with one fault each, which the conformance kit must find; the first has none."""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import os
from collections.abc import Mapping
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar

from omni_actors.platforms.cpu import CpuPlatform
from omni_actors.platforms.cpu.runtime import CpuRuntime
from omni_actors.platforms.platform import Detection, Device, Finding, OmniPlatform
from omni_actors.protocol.options import Option

_SEEN = itertools.count(1)


class Sound(OmniPlatform):
    contract = 1
    name = "sound"
    runtime = "omni_actors.platforms.cpu.runtime:CpuRuntime"
    options: ClassVar[Mapping[str, Option]] = {
        "volume": Option(3, "How loud it is."),
        "tuning": Option(None, "Hz of the a.", type=float),
    }
    visibility = ("SOUND_VISIBLE",)
    quantization: ClassVar[Mapping[str, str]] = {"fp8": "", "int4": "its weights are packed for other hardware"}

    def detect(self) -> Detection:
        return Detection(True, True, "two sound cards")

    def devices(self) -> tuple[Device, ...]:
        return (Device("sound:0", 1 << 30, "card", "S-0"), Device("sound:1", None))

    def cores(self) -> int:
        return 2

    def worker_environment(self, device: str, threads: int, options: Mapping[str, Any]) -> dict[str, str]:
        return {"OMP_NUM_THREADS": str(threads), "SOUND_VISIBLE": device.partition(":")[2]}

    def worker_device(self, device: str) -> str:
        return "cpu"


class Unstated(OmniPlatform):
    name = "unstated"
    detect, devices, cores, worker_environment = Sound.detect, Sound.devices, Sound.cores, Sound.worker_environment


class Inheriting(CpuPlatform):
    name = "inheriting"


class Old(Sound):
    contract = 0


class Loud(Sound):
    name = "A name of its own!"


class Undotted(Sound):
    runtime = "sound_runtime"


class Undefaulted(Sound):
    default_dtype = "float16"


class Unknown(Sound):
    dtypes = ("float32", "int128")


class Engineless(Sound):
    engines: ClassVar[Mapping[str, str]] = {"autoregressive": OmniPlatform.engines["autoregressive"]}


class Undocumented(Sound):
    options: ClassVar[Mapping[str, Option]] = {**Sound.options, "secret": Option(1)}


class Untyped(Sound):
    options: ClassVar[Mapping[str, Option]] = {"tuning": Option(None, "Hz of the a.")}


class Listed(Sound):
    transports = ["ipc"]  # type: ignore[assignment]


class Unreasoned(Sound):
    quantization: ClassVar[Mapping[str, str]] = {"fp8": None}  # type: ignore[dict-item]


class Truthful(Sound):
    def detect(self) -> Detection:
        return True  # type: ignore[return-value]


class Wavering(Sound):
    def detect(self) -> Detection:
        return Detection(True, True, f"seen {next(_SEEN)} times")


class Silent(Sound):
    def detect(self) -> Detection:
        return Detection(True, True, "")


class Deviceless(Sound):
    def devices(self) -> tuple[Device, ...]:
        return ()


class Twins(Sound):
    def devices(self) -> tuple[Device, ...]:
        return (Device("sound:0", None), Device("sound:0", None))


class Coreless(Sound):
    def cores(self) -> int:
        return 0


class Blind(Sound):
    def worker_environment(self, device: str, threads: int, options: Mapping[str, Any]) -> dict[str, str]:
        return {"OMP_NUM_THREADS": str(threads)}


class Meddling(Sound):
    def worker_environment(self, device: str, threads: int, options: Mapping[str, Any]) -> dict[str, str]:
        os.environ["SOUND_VISIBLE"] = device
        return super().worker_environment(device, threads, options)


class Numeric(Sound):
    def worker_environment(self, device: str, threads: int, options: Mapping[str, Any]) -> dict[str, str]:
        return {**super().worker_environment(device, threads, options), "THREADS": threads}  # type: ignore[dict-item]


class Speechless(Sound):
    def diagnose(self) -> tuple[Finding, ...]:
        return ("it works",)  # type: ignore[return-value]


class Forgiving(Sound):
    def check_device(self, device: str) -> None:
        pass


class Importing(Sound):
    def detect(self) -> Detection:
        with contextlib.suppress(ImportError):
            import torch

            torch.zeros(1)
        return super().detect()


class Looking(Sound):
    """No fault: it asks whether there is a torch, and imports none."""

    def detect(self) -> Detection:
        assert find_spec("torch") is not None
        return super().detect()


class ImportingByName(Sound):
    def detect(self) -> Detection:
        with contextlib.suppress(ImportError):
            import_module("torch")
        return super().detect()


class Opening(Sound):
    def detect(self) -> Detection:
        with contextlib.suppress(OSError):
            Path("/dev/sound0").read_bytes()
        return super().detect()


class Loading(Sound):
    def detect(self) -> Detection:
        with contextlib.suppress(OSError):
            ctypes.CDLL("libsound.so.1")
        return super().detect()


class Ending(Sound):
    def detect(self) -> Detection:
        raise SystemExit(3)


class Lost(Sound):
    """Its worker's half dies with the process."""

    runtime = "tests.platforms.planted:LostRuntime"


class LostRuntime(CpuRuntime):
    def __init__(self, device: str, options: Mapping[str, Any]) -> None:
        os._exit(9)


SERVING: Mapping[type[OmniPlatform], str] = {
    Unstated: "contract",
    Inheriting: "contract",
    Old: "contract",
    Loud: "identity",
    Undotted: "identity",
    Undefaulted: "dtypes",
    Unknown: "dtypes",
    Engineless: "engine_names",
    Undocumented: "options",
    Untyped: "options",
    Listed: "requirements",
    Unreasoned: "quantization_reasons",
    Truthful: "detection",
    Wavering: "detection",
    Silent: "detection",
    Deviceless: "devices",
    Twins: "devices",
    Coreless: "cores",
    Blind: "environment",
    Meddling: "environment",
    Numeric: "environment",
    Speechless: "diagnosis",
    Forgiving: "refusals",
    Importing: "nothing_imported",
    ImportingByName: "nothing_imported",
    Opening: "nothing_opened",
    Loading: "nothing_opened",
    Ending: "detection",
}
"""Class → the check that must find its fault."""
