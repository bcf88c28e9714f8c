"""The processes whose dependencies are told to send no usage reports."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import omni_actors
from omni_actors.pipelines.factory import resolve
from omni_actors.plugins.subprocess_probe import SubprocessProbe, run_probes
from omni_actors.telemetry.opt_out import OPT_OUT, quiet_environment
from omni_actors.worker.compiled import FOLDERS, keep_what_is_compiled

SOURCES = Path(omni_actors.__file__).parent


def test_the_switches_override_inherited_values_and_yield_to_explicit_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DO_NOT_TRACK", "0")
    assert quiet_environment()["DO_NOT_TRACK"] == "1"
    assert quiet_environment({"DO_NOT_TRACK": "2"})["DO_NOT_TRACK"] == "2"
    assert OPT_OUT["ORT_DISABLE_TELEMETRY"] == "1"


def test_every_stage_has_the_switches_and_a_deploy_file_overrides_them() -> None:
    plan = resolve("stub-voice", overrides=["stages.writer.environment={DO_NOT_TRACK: '0'}"])
    for stage in plan.stages:
        for replica in range(stage.replicas):
            wanted = dict(OPT_OUT) | ({"DO_NOT_TRACK": "0"} if stage.name == "writer" else {})
            assert wanted.items() <= stage.environment_of(replica).items()


@pytest.mark.process
def test_a_probe_has_the_switches(tmp_path: Path) -> None:
    """Probes of platforms and plug-ins import vendors' packages."""
    script = tmp_path / "look.py"
    script.write_text("import os\n\ndef answer(argument):\n    return dict(os.environ)\n")
    (answer,) = run_probes([SubprocessProbe(script, None)], within_s=20)
    assert OPT_OUT.items() <= answer.value.items()


def test_every_process_is_started_with_an_explicit_environment() -> None:
    """Exceptions are the actor library (used alone, its processes inherit) and a vendor's own program."""
    exempt = {"actors/process.py", "actors/warden_handle.py", "platforms/ascend/smi.py"}
    without = set()
    for path in SOURCES.rglob("*.py"):
        source = path.read_text()
        for call in ast.walk(ast.parse(source)) if "subprocess." in source else ():
            if not isinstance(call, ast.Call) or ast.unparse(call.func) not in ("subprocess.run", "subprocess.Popen"):
                continue
            if not any(keyword.arg == "env" for keyword in call.keywords):
                without.add(str(path.relative_to(SOURCES)))
    assert without - exempt == set()


def test_the_process_of_the_command_line_has_the_switches() -> None:
    script = "import os, sys\nfrom omni_actors.entrypoints.cli import main\nsys.argv = ['x', '--version']\n"
    script += "try: main()\nexcept SystemExit: pass\nprint(os.environ['ORT_DISABLE_TELEMETRY'])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "1"


def test_compiled_code_is_kept_in_a_writable_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMNI_ACTORS_CACHE", "/proc/nowhere")
    found: dict[str, str] = {}
    keep_what_is_compiled(found)
    assert found == {}
    monkeypatch.setenv("OMNI_ACTORS_CACHE", str(tmp_path))
    found = {"TRITON_CACHE_DIR": "/mine"}
    keep_what_is_compiled(found)
    assert found == {"TRITON_CACHE_DIR": "/mine", "TORCHINDUCTOR_CACHE_DIR": f"{tmp_path}/compiled/torchinductor"}
    assert set(FOLDERS) == set(found)
