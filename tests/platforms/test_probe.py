"""Plugins of every kind of brokenness: one warning each, an error only for who asked for it, and never in this
process."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import time
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
import trio
from tests.platforms import machines
from tests.platforms.distributions import changed, install

from omni_actors.entrypoints.offline import open_omni
from omni_actors.platforms import PlatformError, probe, select
from omni_actors.platforms.probe import DEADLINE_VARIABLE, PluginReport, deadline_s, probe_plugins
from omni_actors.plugins.subprocess_probe import SubprocessProbe, run_probes
from omni_actors.protocol.errors import OmniError

pytestmark = pytest.mark.process

DETECTS = '        return Detection(True, True, "one of odd")\n'
DEVICES = '        return (Device("odd:0", 1 << 30),)\n'
HEAD = "from omni_actors.platforms.platform import Detection, Device, OmniPlatform\n"


def first(line: str) -> str:
    """A sound platform whose module does that first."""
    return changed("odd", (HEAD, f"{line}\n{HEAD}"))


def more(line: str) -> str:
    """One that has that besides."""
    return f"{changed('odd')}\n    {line}\n"


def detects(line: str) -> str:
    return changed("odd", (DETECTS, f"        {line}\n"))


BROKEN = {
    "does not import": (first("import no_such_package"), "it cannot be imported: ModuleNotFoundError: No module named"),
    "is no Python": ("class", "it cannot be imported: SyntaxError"),
    "exits at import": (first("raise SystemExit('no licence')"), "it cannot be imported: SystemExit: no licence"),
    "ends its process": (first("import os; os._exit(3)"), "it ended its process with status 3"),
    "ends it and says why": (first("import os; os.write(2, b'no licence'); os._exit(3)"), "status 3 (no licence)"),
    "crashes": (first("import os; os.kill(os.getpid(), 11)"), "it died of SIGSEGV"),
    "hangs at import": (first("import time; time.sleep(3600)"), "it gave no answer in 1 s"),
    "ignores signals": (
        first("import signal, time; [signal.signal(s, signal.SIG_IGN) for s in (2, 15)]; time.sleep(3600)"),
        "it gave no answer in 1 s",
    ),
    "hangs in detect": (detects("import time; time.sleep(3600)"), "it gave no answer in 1 s"),
    "prints without end": (first("while True: print('hello ' * 1000)"), "it printed more than 1 MiB"),
    "closes every file": (
        first("import os, time; os.closerange(3, 100); time.sleep(3600)"),
        "it ",  # ended: nobody can hear it any more
    ),
    "is a function": (first("def Platform(): pass\n").partition("class")[0], "is no subclass of OmniPlatform"),
    "is of another kind": ("class Platform: name = 'odd'\n", "is no subclass of OmniPlatform"),
    "is not there": (HEAD, "it cannot be imported: AttributeError"),
    "says no contract": (changed("odd", ("    contract = 1\n", "")), "it does not say which platform contract"),
    "has a builtin's contract": (
        "from omni_actors.platforms.cuda import CudaPlatform\nclass Platform(CudaPlatform): name = 'odd'\n",
        "it does not say which platform contract",
    ),
    "is for another contract": (
        changed("odd", ("contract = 1", "contract = 2")),
        "it was written for version 2",
    ),
    "is abstract": (changed("odd", ("    def cores(self):\n        return 2\n", "")), "it cannot be made: TypeError"),
    "has another name": (changed("odd", ('name = "odd"', 'name = "other"')), "its entry point is called 'odd', and"),
    "raises in detect": (detects("raise OSError('libodd.so.1')"), "it cannot detect its device: OSError: libodd.so.1"),
    "raises what cannot be said": (
        detects("raise type('E', (Exception,), {'__str__': lambda s: 1 / 0})()"),
        "it cannot detect its device: E",
    ),
    "detects a truth": (detects("return True"), "its detect() returns bool, not a Detection"),
    "has no device": (
        changed("odd", (DEVICES, "        return ()\n")),
        "and has no device",
    ),
    "has words for devices": (changed("odd", (DEVICES, "        return ('odd:0',)\n")), "are no tuple of Device"),
    "has no cores": (changed("odd", ("return 2", "return 0")), "it counts 0 cores"),
    "cannot make an environment": (
        changed("odd", ("str(threads)", "threads")),
        "its worker_environment() is no dict of texts",
    ),
    "needs an option that it does not have": (
        changed("odd", ("str(threads)", 'options["link"]')),
        "it cannot make a worker's environment: KeyError: 'link'",
    ),
    "has a list of engines": (
        more("engines = ['generation']"),
        "what it states as engines is of another type",
    ),
    "has no visibility": (more("visibility = None"), "what it states as visibility is of another type"),
    "computes in nothing": (more("dtypes = ()"), "its default dtype 'float32' is none of its dtypes ()"),
    "has options of its own kind": (more("options = {'a': object()}"), "it has options that no worker can be told"),
    "has words for memory": (
        changed("odd", (DEVICES, '        return (Device("odd:0", "1 GiB"),)\n')),
        "the memory of its device 'odd:0' is no number of bytes: '1 GiB'",
    ),
    "has a device twice": (
        changed("odd", (DEVICES, '        return (Device("odd:0", 1), Device("odd:0", 1))\n')),
        "two of its devices have one name",
    ),
    "has no usual device": (
        more("def usual_devices(self, stage, threads, options): return ()"),
        "its usual_devices() are (), which are none of its devices",
    ),
    "has no usual dtype": (
        more("def usual_dtype(self, options): raise KeyError('a')"),
        "it cannot say its usual dtype: KeyError: 'a'",
    ),
    "has no word for its device in workers": (more("def worker_device(self, device): return None"), "is no text"),
    "imports torch": (first("import torch"), "it imports torch in the serving process, which only its workers may"),
    "imports torch late": (detects("import torch; return Detection(True, True, '')"), "it imports torch"),
    "opens a device": (first("device = open('/dev/ptmx')"), "it opens /dev/ptmx in the serving process"),
}


@pytest.fixture(autouse=True)
def site(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Where distributions are installed, on a machine without any device."""
    machines.use(monkeypatch, tmp_path / "machine")
    folder = tmp_path / "site"
    folder.mkdir()
    machines.write(folder, "torch.py", "")  # the real one takes its time
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setenv(DEADLINE_VARIABLE, "3")
    return folder


def ours() -> tuple[PluginReport, ...]:
    """Reports on the distributions of this test, whatever else is installed."""
    found = probe_plugins()
    return tuple(report for report in found if report.distribution.endswith("-hardware"))


@pytest.mark.parametrize(("text", "reason"), BROKEN.values(), ids=BROKEN)
def test_a_broken_plugin_is_one_warning_and_an_error_for_who_asked(
    text: str, reason: str, site: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    install(site, "odd", text)
    if "no answer in 1 s" in reason:
        monkeypatch.setenv(DEADLINE_VARIABLE, "1")
    (report,) = ours()
    assert (report.name, report.value, report.distribution) == ("odd", "odd_hardware:Platform", "odd-hardware")
    assert (report.version, report.state) == ("1.0", "broken")
    assert reason in report.reason
    assert report.reason.isprintable()
    assert "odd_hardware" not in sys.modules
    with caplog.at_level(logging.WARNING):
        assert select(reports=[report]).name == "cpu"
    about = [record.getMessage() for record in caplog.records if "'odd'" in record.getMessage()]
    named = f"platform plugin 'odd' of odd-hardware 1.0 (odd_hardware:Platform) is broken and ignored: {report.reason}"
    assert about == [named]
    with pytest.raises(PlatformError, match=r"platform plugin 'odd' of odd-hardware 1.0 .* is broken: "):
        select("odd", reports=[report])


def test_broken_ones_are_beside_sound_ones(site: Path, caplog: pytest.LogCaptureFixture) -> None:
    install(site, "odd", BROKEN["crashes"][0])
    install(site, "worse", BROKEN["exits at import"][0])
    install(site, "accel")
    install(site, "away", changed("away", ("Detection(True, True", "Detection(False, False")))
    with caplog.at_level(logging.INFO):
        platform = select()
    assert platform.name == "accel"
    assert [device.name for device in platform.devices()] == ["accel:0"]
    assert [record.levelname for record in caplog.records] == ["WARNING", "WARNING", "INFO"]
    assert {"accel_hardware", "away_hardware", "odd_hardware", "worse_hardware"} & sys.modules.keys() == {
        "accel_hardware"
    }
    del sys.modules["accel_hardware"]


def test_they_are_asked_all_at_once(site: Path) -> None:
    for name in ("a", "b", "c"):
        install(site, name, "import time\ntime.sleep(3600)\n")
    started = time.monotonic()
    assert [report.state for report in ours()] == ["broken"] * 3
    assert time.monotonic() - started < 6


def test_hardware_that_cannot_be_used_is_told_with_its_reason(site: Path, caplog: pytest.LogCaptureFixture) -> None:
    text = changed("accel", ('Detection(True, True, "one of accel")', 'Detection(False, True, "the driver is\\nold")'))
    install(site, "accel", text)
    (report,) = ours()
    assert (report.state, report.reason) == ("present", "the driver is old")
    assert select(reports=[report]).name == "cpu"
    assert "platform 'accel' cannot be used: the driver is old" in caplog.text
    assert "no accelerator can be used (accel cannot)" in caplog.text
    with pytest.raises(PlatformError, match="platform 'accel' cannot be used on this machine: the driver is old"):
        select("accel", reports=[report])
    del sys.modules["accel_hardware"]


def test_two_that_claim_the_machine_are_named(site: Path) -> None:
    install(site, "left")
    install(site, "right")
    with pytest.raises(PlatformError, match="'left' and 'right' both claim this machine; choose one with --platform"):
        select(reports=sorted(ours(), key=lambda report: report.name))
    assert not {"left_hardware", "right_hardware"} & sys.modules.keys()


@pytest.mark.parametrize("name", ["my.accel", "an accel", "accel:0", "*", ""])
def test_a_name_that_settings_cannot_have_is_none(name: str) -> None:
    (report,) = probe_plugins([EntryPoint(name, "accel_hardware:Platform", probe.GROUP)])
    assert report.state == "broken"
    assert "a platform's name is letters, digits, - and _" in report.reason


def test_one_that_exits_here_only_is_an_error(site: Path) -> None:
    install(site, "accel", f"import sys\nif 'pytest' in sys.modules: sys.exit()\n{changed('accel')}")
    (report,) = ours()
    assert report.state == "usable"
    with pytest.raises(PlatformError, match="can no longer be imported: SystemExit"):
        select(reports=[report])


def test_a_builtins_name_is_taken(site: Path, caplog: pytest.LogCaptureFixture) -> None:
    install(site, "cuda", distribution="cuda-hardware")
    (report,) = ours()
    assert (report.state, report.reason[:39]) == ("broken", "a built-in platform has that name; give")
    assert type(select("cuda")).__module__ == "omni_actors.platforms.cuda.platform"
    assert "cuda_hardware" not in sys.modules


def test_a_name_that_two_distributions_give_is_nobodys(site: Path) -> None:
    install(site, "accel", distribution="one-hardware")
    install(site, "accel", distribution="two-hardware")
    assert {(report.state, report.reason) for report in ours()} == {
        ("broken", "more than one plugin has that name (one-hardware, two-hardware); uninstall all but one")
    }
    with pytest.raises(PlatformError, match="more than one plugin has that name"):
        select("accel")


def test_what_it_prints_is_not_taken_for_its_answer(site: Path) -> None:
    install(site, "odd", first("""print('{"answer": {"usable": false}}', flush=True)"""))
    assert [report.state for report in ours()] == ["usable"]


def test_without_plugins_nobody_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("omni_actors.plugins.probe.run_probes", None)
    assert probe_plugins([]) == ()
    assert select("cpu").name == "cpu"
    assert select("cuda", plugins=[]).name == "cuda"


async def test_a_program_that_embeds_the_library_goes_on_while_a_plugin_hangs(
    site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(site, "odd", BROKEN["hangs at import"][0])
    monkeypatch.setenv(DEADLINE_VARIABLE, "1")
    turns = 0

    async def work() -> None:
        nonlocal turns
        while True:
            await trio.sleep(0.01)
            turns += 1

    async with trio.open_nursery() as nursery:
        nursery.start_soon(work)
        with pytest.raises(OmniError, match="it gave no answer in 1 s"):
            async with open_omni("stub", platform="odd"):
                pass
        nursery.cancel_scope.cancel()
    assert turns > 10


def test_by_name_only_that_one_is_asked(site: Path) -> None:
    install(site, "accel")
    install(site, "slow", "import time\ntime.sleep(3600)\n")
    started = time.monotonic()
    assert select("accel").name == "accel"
    assert time.monotonic() - started < 3
    del sys.modules["accel_hardware"]


@pytest.mark.parametrize("said", ["0", "-1", "soon", "nan", "inf"])
def test_a_deadline_that_is_none_is_refused(said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(DEADLINE_VARIABLE, said)
    with pytest.raises(PlatformError, match=f"{DEADLINE_VARIABLE} takes a number of seconds"):
        deadline_s()


def test_the_deadline_is_20_seconds_unless_it_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    assert deadline_s() == 3
    monkeypatch.delenv(DEADLINE_VARIABLE)
    assert deadline_s() == 20


def test_what_an_asked_process_started_is_gone_with_it(tmp_path: Path) -> None:
    script = machines.write(
        tmp_path,
        "script.py",
        "import subprocess\ndef answer(argument):\n    return subprocess.Popen(['sleep', '3600']).pid\n",
    )
    (answer,) = run_probes([SubprocessProbe(script)], 10)
    fd = None
    try:
        fd = os.pidfd_open(answer.value)
        os.waitid(os.P_PIDFD, fd, os.WEXITED)
    except (ProcessLookupError, ChildProcessError):  # gone already, or going: it is not our child
        pass
    finally:
        if fd is not None:
            os.close(fd)


def test_a_program_that_has_more_than_texts_in_its_path_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = machines.write(tmp_path, "script.py", "import sys\ndef answer(argument):\n    return sys.path\n")
    monkeypatch.setattr(sys, "path", ["first", tmp_path, *sys.path])  # imports pass over what is no text
    (answer,) = run_probes([SubprocessProbe(script)], 10)
    assert answer.value[:2] == ["first", sys.path[2]]


def test_a_process_that_a_driver_does_not_let_end_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = machines.write(tmp_path, "script.py", "import time\ndef answer(argument):\n    time.sleep(3600)\n")
    killed: list[int] = []
    kill = os.killpg
    monkeypatch.setattr(os, "killpg", lambda pid, number: killed.append(pid))  # as if it had no effect
    started = time.monotonic()
    (answer,) = run_probes([SubprocessProbe(script)], 0.5)
    assert (answer.trouble, answer.silent) == ("it gave no answer in 0.5 s", True)
    assert time.monotonic() - started < 10
    kill(killed[0], signal.SIGKILL)
    os.waitpid(killed[0], 0)


def test_an_asked_process_does_not_outlive_the_one_that_asks(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    script = machines.write(
        tmp_path,
        "script.py",
        "import os, pathlib, time\n"
        "def answer(argument):\n"
        f"    pathlib.Path({str(pid_file)!r}).write_text(str(os.getpid()))\n"
        "    print('ready', flush=True)\n"
        "    os.kill(os.getppid(), 9)\n"
        "    time.sleep(3600)\n",
    )
    ours = "from pathlib import Path; from omni_actors.plugins.subprocess_probe import SubprocessProbe, run_probes"
    code = f"{ours}; run_probes([SubprocessProbe(Path({str(script)!r}))], 60)"
    asking = subprocess.run([sys.executable, "-c", code], timeout=30)
    assert asking.returncode == -signal.SIGKILL
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline and Path(f"/proc/{pid_file.read_text()}").exists():
        time.sleep(0.01)
    assert not Path(f"/proc/{pid_file.read_text()}").exists()
