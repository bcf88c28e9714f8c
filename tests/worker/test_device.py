"""A worker's device: opened once and first, patched before other imports, and an error with the remedy on failure."""

from __future__ import annotations

import subprocess
import sys
import threading
from typing import Any, ClassVar

import msgspec
import pytest

from omni_actors.pipelines.factory import resolve
from omni_actors.platforms.cpu import CpuPlatform
from omni_actors.platforms.cpu.runtime import CpuRuntime
from omni_actors.platforms.platform import PlatformError
from omni_actors.platforms.runtime import DeviceRuntime, Patch
from omni_actors.protocol.frames import Hello
from omni_actors.protocol.options import Option
from omni_actors.worker.device import kernels_of, runtime_of

OPENED: list[str] = []
"""What the runtimes of this file have done, for one test at a time."""


@pytest.fixture(autouse=True)
def nothing_opened() -> None:
    OPENED.clear()


class ToyPlatform(CpuPlatform):
    contract = 1
    name = "toy"
    runtime = f"{__name__}:ToyRuntime"
    options: ClassVar[dict[str, Option]] = {"speed": Option(1), "test": Option("")}


class ToyRuntime(CpuRuntime):
    patches: ClassVar[tuple[Patch, ...]] = (Patch("toy", "it is needed", lambda: OPENED.append("patch")),)

    def open(self) -> None:
        OPENED.append(f"open {self.device} {self.options['speed']}")
        super().open()


class LocklessPlatform(ToyPlatform):
    contract = 1
    name = "lockless"
    runtime = f"{__name__}:LocklessRuntime"


class LocklessRuntime(ToyRuntime):
    def open(self) -> None:
        super().open()
        raise {"vendor": RuntimeError("driver says 43"), "known": PlatformError("load the driver")}[
            self.options["test"]
        ]


def hello(platform: type[CpuPlatform] = ToyPlatform, device: str = "cpu", **options: Any) -> Hello:
    told = resolve("stub", platform="cpu").hello("a", 0, 1)
    name = f"{platform.__module__}:{platform.__qualname__}"
    return msgspec.structs.replace(told, platform=name, device=device, platform_options=options)


def test_a_device_is_opened_once_per_process() -> None:
    first = runtime_of(hello(test="once"))
    again = runtime_of(msgspec.structs.replace(hello(test="once"), stage="another", replica=3))
    assert again is first
    assert OPENED == ["open cpu 1", "patch"]
    assert kernels_of(hello(test="once")) is first.kernels


def test_another_device_and_other_options_are_another_runtime() -> None:
    first = runtime_of(hello(test="other"))
    assert runtime_of(hello(test="other", speed=2)) is not first
    assert runtime_of(hello(device="cpu:1", test="other")) is not first
    assert OPENED[::2] == ["open cpu 1", "open cpu 2", "open cpu:1 1"]


def test_platforms_live_side_by_side_in_one_process() -> None:
    toy, cpu = runtime_of(hello(test="beside")), runtime_of(hello(CpuPlatform))
    assert type(toy) is ToyRuntime
    assert type(cpu) is CpuRuntime


def test_replicas_that_start_at_once_open_it_once() -> None:
    found: list[DeviceRuntime] = []
    threads = [threading.Thread(target=lambda: found.append(runtime_of(hello(test="at once")))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert len(found) == 8
    assert len(set(map(id, found))) == 1
    assert OPENED == ["open cpu 1", "patch"]


def test_every_option_has_a_value() -> None:
    assert runtime_of(hello(test="values")).options == {"speed": 1, "test": "values"}


@pytest.mark.parametrize(
    ("test", "said"),
    [
        ("known", "load the driver"),
        ("vendor", "RuntimeError: driver says 43 (`python -m omni_actors doctor --platform lockless --deep`"),
    ],
)
def test_a_device_that_cannot_be_opened_is_named_with_its_platform_and_the_remedy(test: str, said: str) -> None:
    for _ in range(2):  # it is tried again
        with pytest.raises(PlatformError) as caught:
            runtime_of(hello(LocklessPlatform, test=test))
        assert f"platform 'lockless' cannot open 'cpu': {said}" in caught.value.info.message
        assert caught.value.info.code == "bad_platform"
    assert OPENED == ["open cpu 1", "patch"] * 2


def test_opening_the_processor_loads_no_torch() -> None:
    """Workers that compute without torch, and the media process, start in a tenth of the time."""
    code = (
        "import sys\n"
        "import omni_actors.worker.main\n"
        "from omni_actors.protocol.frames import PROTOCOL_VERSION, Hello\n"
        "from omni_actors.worker.device import runtime_of\n"
        "runtime_of(Hello(version=PROTOCOL_VERSION, stage='a', replica=0, incarnation=1, engine='', adapter=''))\n"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0
