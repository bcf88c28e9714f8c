"""A platform and a pipeline as plug-ins declared them before :class:`Option`: defaults, with dicts beside them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from omni_actors.author import Pipeline, Stage, Task
from omni_actors.platforms.platform import Detection, Device, OmniPlatform


class OldPlatform(OmniPlatform):
    contract = 1
    name = "old"
    runtime = "omni_actors.platforms.cpu.runtime:CpuRuntime"
    options: Mapping[str, Any] = {"peer_access": True, "reserved_bytes": 0, "link": None}  # type: ignore[misc]
    options_doc = {
        "peer_access": "Whether a device opens the memory of another.",
        "reserved_bytes": "Memory that stays unused.",
        "link": "The kind of the link.",
    }
    options_type = {"link": str}

    def detect(self) -> Detection:
        return Detection(True, True, "one device")

    def devices(self) -> tuple[Device, ...]:
        return (Device("old:0", None),)

    def cores(self) -> int:
        return 2

    def worker_environment(self, device: str, threads: int, options: Mapping[str, Any]) -> dict[str, str]:
        return {"OLD_PEERS": str(options["peer_access"]), "OLD_RESERVED": str(options["reserved_bytes"])}


_FIELDS: dict[str, Any] = {"defaults": {"max_keys": 256}, "options_doc": {"max_keys": "Most keys of one request."}}

PIPELINE = Pipeline(
    name="old-tones",
    stages=(Stage("dialler", "generation", "old.dialler:Dialler", sections=("speech",), emits="audio", **_FIELDS),),
    tasks=(Task("speech", entries={"text": "dialler"}, outputs={"audio": "dialler"}),),
    sample_rate=8000,
)
