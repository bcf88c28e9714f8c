"""Pipeline plug-ins of every kind of brokenness: one warning each, an error only for who asked for it, and never in
this process."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
import time
import tomllib
from collections.abc import Sequence
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
from tests.platforms import machines
from tests.platforms.distributions import install as install_distribution

from omni_actors.cache import CACHE_VARIABLE
from omni_actors.entrypoints.doctor.plugins import pipeline_findings
from omni_actors.pipelines.factory import resolve
from omni_actors.pipelines.plan import PlanError
from omni_actors.pipelines.registry import BUILTINS, GROUP, UNOFFERED, Registry
from omni_actors.platforms.platform import Verdict
from omni_actors.plugins import OWN, installed
from omni_actors.plugins.probe import DEADLINE_VARIABLE
from omni_actors.plugins.records import BROKEN_FOR_S
from omni_actors.plugins.subprocess_probe import ProbeAnswer, SubprocessProbe, run_probes

pytestmark = pytest.mark.process

PIPELINE = """
from omni_actors.pipelines.declaration import Pipeline, Stage, Task

PIPELINE = Pipeline(
    name="{name}",
    stages=(Stage("writer", "autoregressive", "{name}_model:Writer", sections=("prompt", "sampling"), emits="text"),),
    tasks=(Task("chat", {{"text": "writer"}}, {{"text": "writer"}}),),
    architectures=("{name}Model",),
    checkpoints=("someone/{name}-1b",),
)
"""
STAGE = """(Stage("writer", "autoregressive", "odd_model:Writer", sections=("prompt", "sampling"), emits="text"),)"""


def changed(old: str, new: str) -> str:
    text = PIPELINE.format(name="odd")
    assert old in text
    return text.replace(old, new)


def first(line: str) -> str:
    return f"{line}\n{PIPELINE.format(name='odd')}"


BROKEN = {
    "sleeps": (first("import time; time.sleep(3600)"), "it gave no answer in 2 s"),
    "exits": (first("raise SystemExit('no licence')"), "it cannot be imported: SystemExit: no licence"),
    "ends its process": (first("import os; os._exit(3)"), "it ended its process with status 3"),
    "crashes": (first("import os; os.kill(os.getpid(), 11)"), "it died of SIGSEGV"),
    "raises": (first("raise OSError('libodd.so.1')"), "it cannot be imported: OSError: libodd.so.1"),
    "imports torch": (first("import torch"), "it imports torch in the serving process, which only its workers may"),
    "is of another type": ("PIPELINE = {'name': 'odd'}", "odd_hardware:PIPELINE is dict, not a Pipeline"),
    "is not there": ("", "it cannot be imported: AttributeError"),
    "has another name": (
        changed('name="odd"', 'name="other"'),
        "its entry point is called 'odd', and",
    ),
    "has two stages of one name": (changed(STAGE, f"{STAGE} * 2"), "two stages are called 'writer'"),
    "has a list of stages": (changed(STAGE, f"[{STAGE[1:-2]}]"), "its stages are list, not a tuple of Stage"),
    "has words for stages": (changed(STAGE, "('writer',)"), "its stages hold str, and should hold Stage alone"),
    "serves a number": (changed('("oddModel",)', "(5,)"), "its architectures hold int, and should hold str alone"),
    "has no task": (changed('tasks=(Task("chat", {"text": "writer"}, {"text": "writer"}),)', "tasks=()"), "no task"),
}


@pytest.fixture(autouse=True)
def site(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Where distributions are installed, with a cache directory of its own."""
    folder = tmp_path / "site"
    folder.mkdir()
    machines.write(folder, "torch.py", "")  # the real one takes its time
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))
    monkeypatch.setenv(DEADLINE_VARIABLE, "20")
    return folder


def install(site: Path, name: str, text: str | None = None) -> EntryPoint:
    install_distribution(site, name, text or PIPELINE.format(name=name), group=GROUP, attribute="PIPELINE")
    (found,) = [it for it in installed(GROUP) if it.name == name]
    return found


def folder_of(tmp_path: Path, architecture: str) -> Path:
    folder = tmp_path / architecture
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps({"architectures": [architecture]}))
    return folder


@pytest.mark.parametrize("how", BROKEN)
def test_a_broken_pipeline_plugin_is_one_warning_and_an_error_only_for_who_asks(
    how: str, site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    text, words = BROKEN[how]
    if how == "sleeps":
        monkeypatch.setenv(DEADLINE_VARIABLE, "2")
    plugins = [install(site, "odd", text or "pass\n")]
    registry = Registry.installed(plugins)
    plan = resolve(str(folder_of(tmp_path, "LlamaForCausalLM")), platform="cpu", registry=registry)
    assert plan.name == "causal-lm"
    (warning,) = [it.getMessage() for it in caplog.records if it.levelno >= logging.WARNING]
    assert warning.startswith(
        "pipeline plugin 'odd' of odd-hardware 1.0 (odd_hardware:PIPELINE) is broken and ignored: "
    )
    assert words in warning
    with pytest.raises(PlanError) as refused:
        resolve("odd", platform="cpu", registry=registry)
    assert words in refused.value.info.message
    assert "pipeline plugin 'odd' of odd-hardware 1.0" in refused.value.info.message
    assert "odd_hardware" not in sys.modules


def test_a_sound_plugin_is_imported_when_it_is_chosen_and_others_are_not(site: Path, tmp_path: Path) -> None:
    registry = Registry.installed([install(site, "even"), install(site, "uneven")])
    assert resolve(str(folder_of(tmp_path, "evenModel")), platform="cpu", registry=registry).name == "even"
    assert "even_hardware" in sys.modules
    assert "uneven_hardware" not in sys.modules
    found = registry.for_checkpoint("someone/uneven-1b")
    assert found is not None
    assert found.name == "uneven"
    for module in ("even_hardware", "uneven_hardware"):
        del sys.modules[module]


def test_what_was_found_is_kept_until_the_code_changes(
    site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    plugins = [install(site, "even"), install(site, "odd", first("raise OSError('libodd.so.1')"))]
    asked: list[int] = []
    real = run_probes

    def counted(probes: Sequence[SubprocessProbe], within_s: float) -> list[ProbeAnswer]:
        asked.append(len(probes))
        return real(probes, within_s)

    monkeypatch.setattr("omni_actors.plugins.probe.run_probes", counted)
    for _ in range(3):
        assert [it.state for it in Registry.installed(plugins).reports()] == ["usable", "broken"]
    assert asked == [2]
    assert len(caplog.records) == 3, "each registry warns once"
    module = site / "odd_hardware.py"
    module.write_text(PIPELINE.format(name="odd") + "# mended\n")
    assert [it.state for it in Registry.installed(plugins).reports()] == ["usable", "usable"]
    assert asked == [2, 1]
    module.write_text(first("raise OSError('libodd.so.2')"))
    assert Registry.installed(plugins).reports()[1].state == "broken"
    assert asked == [2, 1, 1]
    # What it needs may be there after a while, or when somebody asks for it.
    clock = time.time() + BROKEN_FOR_S + 1
    monkeypatch.setattr("omni_actors.plugins.records.time.time", lambda: clock)
    assert Registry.installed(plugins).reports()[1].state == "broken"
    assert asked == [2, 1, 1, 1]
    with pytest.raises(PlanError, match="libodd"):
        Registry.installed(plugins).load("odd")
    assert asked == [2, 1, 1, 1, 1]


@pytest.mark.parametrize("content", [b"", b"[]", b"\xff", b'{"at": 1e300, "code": "x"}', b'{"trouble": 5}'])
def test_records_that_are_damaged_are_made_again(site: Path, tmp_path: Path, content: bytes) -> None:
    plugins = [install(site, "even")]
    assert Registry.installed(plugins).reports()[0].state == "usable"
    (record,) = (tmp_path / "cache" / "plugins").iterdir()
    record.write_bytes(content)
    assert Registry.installed(plugins).reports()[0].state == "usable"
    assert json.loads(record.read_bytes())["answer"]["architectures"] == ["evenModel"]


def test_records_that_cannot_be_written_are_done_without(site: Path, tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file in the place of the directory")
    assert Registry.installed([install(site, "even")]).reports()[0].state == "usable"


def test_two_plugins_of_one_name_are_both_refused(site: Path) -> None:
    install_distribution(site, "even", PIPELINE.format(name="even"), "one", GROUP, "PIPELINE")
    install_distribution(site, "even", PIPELINE.format(name="even"), "two", GROUP, "PIPELINE")
    plugins = [it for it in installed(GROUP) if it.name == "even"]
    reports = Registry.installed(plugins).reports()
    assert [it.reason for it in reports] == ["more than one plugin has that name (one, two); uninstall all but one"] * 2
    with pytest.raises(PlanError, match="more than one plugin has that name"):
        Registry.installed(plugins).load("even")


def test_doctor_lists_what_was_found_of_each_plugin(site: Path) -> None:
    install(site, "even")
    install(site, "odd", first("raise OSError('libodd.so.1')"))
    found = {it.subject: it for it in pipeline_findings()}
    assert found["builtin"].verdict is Verdict.OK
    assert (found["even"].verdict, found["even"].found) == (
        Verdict.OK,
        "even-hardware 1.0: usable: serves evenModel, someone/even-1b",
    )
    assert found["odd"].verdict is Verdict.WARNING
    assert found["odd"].found == "odd-hardware 1.0: broken: it cannot be imported: OSError: libodd.so.1"


def test_an_arbitrary_folder_is_resolved_without_torch(site: Path, tmp_path: Path) -> None:
    """Also with a plug-in that would bring it: the process that resolves loads no model code."""
    install(site, "odd", first("import torch"))
    folder = folder_of(tmp_path, "NobodyServesThis")
    script = f"""
import sys
from omni_actors.pipelines.factory import resolve
from omni_actors.pipelines.plan import PlanError
sys.path.insert(0, {str(site)!r})
try:
    resolve({str(folder)!r}, platform="cpu")
except PlanError as error:
    assert "no pipeline serves the architecture" in str(error), error
heavy = {{"torch", "transformers", "onnxruntime", "diffusers", "vllm", "odd_hardware"}} & set(sys.modules)
sys.exit(f"loaded {{sorted(heavy)}}" if heavy else 0)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "pipeline plugin 'odd'" in done.stderr


def test_stub_pipelines_are_served_by_name_and_not_offered() -> None:
    registry = Registry.installed([])
    assert registry.names() == list(BUILTINS)
    for name in UNOFFERED:
        assert registry.load(name).name == name
    for asked in ("stubb", "no-such-thing", "stub-voices"):
        with pytest.raises(PlanError) as refused:
            resolve(asked, registry=registry)
        assert "stub" not in refused.value.info.message.replace(asked, "")


def test_the_builtins_are_announced_as_plugins_are() -> None:
    """``pyproject.toml`` lists what a checkout knows without being installed, and nothing else."""
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    assert project["entry-points"][GROUP] == BUILTINS
    assert project["name"] == OWN
