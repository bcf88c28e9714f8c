"""What doctor says of machines that are not here: each vendor's device, its library sound, silent or missing."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path

import pytest
from packaging.version import Version
from rich.console import Console
from tests.platforms import machines
from tests.platforms.fake_vendors import platforms as fakes
from tests.platforms.test_detection import NVML, SMI

from omni_actors.entrypoints.doctor import Report, examine
from omni_actors.platforms import accelerator
from omni_actors.platforms.platform import Finding, Verdict
from omni_actors.platforms.probe import BUILTINS


@dataclass(frozen=True)
class Machine:
    """How it is made, what its torch is built for, and the devices that are told of."""

    make: Callable[[Path], Path]
    devices: tuple[str, ...]
    built_for: dict[str, str] = field(default_factory=dict)
    modules: dict[str, str] = field(default_factory=dict)
    libraries: tuple[str, ...] = ()
    environment: dict[str, str] = field(default_factory=dict)
    packages: tuple[str, ...] = ()
    """Installed for the torch that is, as far as metadata say."""


MACHINES = {
    "cuda": Machine(
        lambda root: machines.nvidia(root, (0, 1), (0, 1)),
        ("cuda:0", "cuda:1"),
        {"cuda": "12.8"},
        {"pynvml": NVML},
        ("libcuda.so.1",),
    ),
    "rocm": Machine(lambda root: machines.amd(root, 2), ("rocm:0", "rocm:1"), {"hip": "6.4"}, {"amdsmi": SMI}),
    "ascend": Machine(
        machines.ascend,
        ("ascend:0",),
        {},
        {"torch_npu": ""},
        (),
        {"ASCEND_HOME_PATH": "/usr/local/Ascend/cann"},
        ("torch_npu",),
    ),
    "xpu": Machine(machines.intel, ("xpu:0",), {"xpu": "20250302"}),
    "musa": Machine(machines.moore, ("musa:0",), {}, {"torch_musa": ""}, ("libmusa.so",), {}, ("torch_musa",)),
}


@pytest.fixture(autouse=True)
def nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A machine without any device."""
    machines.use(monkeypatch, tmp_path / "machine")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    return tmp_path / "machine"


@pytest.fixture
def build(nothing: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[str], Machine]:
    def made(name: str) -> Machine:
        machine = MACHINES[name]
        machine.make(nothing)
        machines.torch(monkeypatch, tmp_path / "site", **machine.built_for)
        for module, text in machine.modules.items():
            machines.module(monkeypatch, tmp_path / "libraries", module, text)
        machines.driver(monkeypatch, tmp_path / "lib", *machine.libraries)
        release = Version(version("torch")).base_version
        for package in machine.packages:
            said = f"Metadata-Version: 2.4\nName: {package}\nVersion: {release}\n"
            machines.write(tmp_path / "libraries", f"{package}-{release}.dist-info/METADATA", said)
        for variable, value in machine.environment.items():
            monkeypatch.setenv(variable, value)
        return machine

    return made


def findings(report: Report, section: str) -> dict[str, Finding]:
    (found,) = [it for it in report.sections if it.name == section]
    return {finding.subject: finding for finding in found.findings}


def text(report: Report) -> str:
    console = Console(width=200, record=True, file=open(os.devnull, "w"))  # noqa: SIM115
    console.print(report.as_text())
    console.file.close()
    return console.export_text()


@pytest.mark.parametrize("name", MACHINES)
def test_a_vendors_machine_is_told_with_its_devices_and_engines(name: str, build: Callable[[str], Machine]) -> None:
    machine = build(name)
    report = examine()
    assert report.platform == name
    assert findings(report, "platforms")[name].verdict is Verdict.OK
    devices = findings(report, "devices")
    assert tuple(device for device in devices if device != "cpu") == machine.devices
    assert {devices[device].verdict for device in machine.devices} == {Verdict.OK}
    (facts,) = [it for it in report.as_builtins()["platforms"] if it["name"] == name]
    assert (facts["state"], facts["selected"], len(facts["devices"])) == ("usable", True, len(machine.devices))
    assert f"{name} autoregressive" in findings(report, "engines")
    build_of = findings(report, "packages")["torch build"].found
    assert build_of.endswith(next((f"({version})" for version in machine.built_for.values()), "processors alone"))
    assert (report.problems, report.exit_code) == ((), 0)
    assert f"Stages that name no platform will run on '{name}'." in text(report)


@pytest.mark.parametrize("name", MACHINES)
def test_a_torch_for_processors_is_a_warning_and_a_problem_when_the_platform_is_asked_for(
    name: str, build: Callable[[str], Machine], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    build(name)
    if name in ("ascend", "musa"):  # what is missing there is the vendor's package beside torch
        missing = next(iter(MACHINES[name].modules))
        (tmp_path / "libraries" / f"{missing}.py").unlink()
    else:
        (tmp_path / "site" / "torch" / "version.py").write_text("__version__ = '2.11.0+cpu'\ncuda = None\n")
    unasked = examine()
    told = findings(unasked, "platforms")[name]
    assert (unasked.platform, told.verdict) == ("cpu", Verdict.WARNING)
    assert unasked.exit_code == 0, unasked.problems
    assert "no accelerator can be used" in findings(unasked, "platforms")["default"].found
    asked = examine(name)
    assert (asked.platform, asked.exit_code) == ("", 1)
    assert findings(asked, "platforms")["default"].verdict is Verdict.PROBLEM


def test_a_management_library_that_hangs_is_waited_for_once_and_told(
    build: Callable[[str], Machine], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(accelerator, "MANAGEMENT_S", 0.5)
    build("cuda")
    (tmp_path / "libraries" / "pynvml.py").write_text("import signal\nsignal.pause()\n")
    report = examine()
    assert "does not answer" in findings(report, "platforms")["cuda"].found
    assert report.platform == "cpu"


def test_a_device_in_trouble_is_left_out_and_told(
    build: Callable[[str], Machine], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    build("cuda")
    lost = NVML + (
        "def nvmlDeviceGetUUID(handle):\n    if handle: raise NVMLError(15, 'GPU is lost')\n    return b'GPU-00'\n"
    )
    (tmp_path / "libraries" / "pynvml.py").write_text(lost)
    report = examine()
    devices = findings(report, "devices")
    assert (devices["cuda:0"].verdict, devices["cuda:1"].verdict) == (Verdict.OK, Verdict.WARNING)
    assert "GPU is lost" in devices["cuda:1"].found
    assert report.exit_code == 0


def test_variables_that_hide_devices_are_told(build: Callable[[str], Machine], monkeypatch: pytest.MonkeyPatch) -> None:
    build("cuda")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    report = examine()
    assert [device for device in findings(report, "devices") if device != "cpu"] == ["cuda:0"]
    (facts,) = [it for it in report.as_builtins()["platforms"] if it["name"] == "cuda"]
    assert facts["visibility"] == {"CUDA_VISIBLE_DEVICES": "1"}
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    hidden = examine()
    assert hidden.platform == "cpu"
    assert "CUDA_VISIBLE_DEVICES" in findings(hidden, "platforms")["cuda"].found


def test_a_machine_without_any_is_the_cpus(nothing: Path) -> None:
    report = examine()
    assert (report.platform, report.exit_code) == ("cpu", 0)
    assert {it["state"] for it in report.as_builtins()["platforms"]} == {"usable", "absent"}


@pytest.mark.deadline(200)
@pytest.mark.process
def test_deep_reports_the_facts_of_a_vendors_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(BUILTINS, "ascend", fakes.BUILTINS["ascend"])
    report = examine("ascend", deep_within_s=180)
    opened = findings(report, "opened")["ascend: ascend:0"]
    assert (opened.verdict, report.exit_code) == (Verdict.OK, 0)
    for words in ("Ascend910B3 (A2) bf16", "8.0 GiB, 6.0 GiB free", "paged_decode", "patched: ascend-binary-operators"):
        assert words in opened.found
