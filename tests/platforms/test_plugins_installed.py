"""Installed distributions that bring platforms, seen by the command line as an operator uses it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.platforms import machines
from tests.platforms.distributions import install
from tests.platforms.test_probe import BROKEN

from omni_actors.platforms.probe import DEADLINE_VARIABLE

pytestmark = pytest.mark.deadline(60)

MAIN = """
import sys
from pathlib import Path
from omni_actors.platforms.accelerator import Accelerator
from omni_actors.entrypoints.cli import main

Accelerator.root = Path("/nonexistent")
main(sys.argv[1:])
"""
"""The command line on a machine without any device."""

WORST = ("does not import", "exits at import", "crashes", "hangs at import", "prints without end", "is of another kind")


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-c", MAIN, "explain", "stub", "--json", *arguments]


def environment_with(site: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name not in machines.NO_DEVICES}
    return kept | {"PYTHONPATH": str(site), DEADLINE_VARIABLE: "5"}


def explain(site: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command(*arguments), env=environment_with(site) | environment, capture_output=True, text=True)


def platform_of(done: subprocess.CompletedProcess[str]) -> tuple[str, str]:
    assert done.returncode == 0, done.stderr
    platform = json.loads(done.stdout)["values"]["platform"]
    return platform["value"], platform["origin"]


def install_broken(site: Path) -> list[str]:
    names = []
    for index, kind in enumerate(WORST):
        names.append(f"odd{index}")
        install(site, names[-1], BROKEN[kind][0].replace('"odd"', f'"{names[-1]}"'))
    return names


def spoil(site: Path, distribution: str, entry_points: bytes) -> None:
    """What an interrupted installation or a careless build leaves."""
    metadata = site / f"{distribution}-1.0.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_bytes(entry_points)


@pytest.mark.parametrize("content", [b"\njust-a-word\n", "\nodd = café:P\n".encode("latin-1")])
def test_one_that_does_not_say_what_it_offers_hides_no_other(tmp_path: Path, content: bytes) -> None:
    spoil(tmp_path, "careless", b"[omni_actors.platforms]" + content)
    spoil(tmp_path, "strangers", b"[console_scripts]" + content)
    install(tmp_path, "sound")
    done = explain(tmp_path)
    assert platform_of(done) == ("sound", "platform")
    (line,) = (line for line in done.stderr.splitlines() if "broken" in line)
    assert "careless is broken and ignored: its entry_points.txt cannot be read" in line


def test_broken_ones_are_one_line_each_and_the_rest_works(tmp_path: Path) -> None:
    names = install_broken(tmp_path)
    done = explain(tmp_path)
    assert platform_of(done) == ("cpu", "platform")
    lines = done.stderr.splitlines()
    for name, kind in zip(names, WORST, strict=True):
        (line,) = (line for line in lines if f"'{name}'" in line)
        expected = BROKEN[kind][1].replace(" in 1 s", " in 5 s")
        assert f"platform plugin '{name}' of {name}-hardware 1.0 ({name}_hardware:Platform) is broken and ign" in line
        assert expected in line
    assert len(lines) == len(names) + 1
    assert "no accelerator found: every stage that names no platform runs on the cpu" in lines[-1]


def test_a_sound_one_is_chosen_beside_them(tmp_path: Path) -> None:
    install(tmp_path, "odd", BROKEN["exits at import"][0])
    install(tmp_path, "accel")
    done = explain(tmp_path)
    assert platform_of(done) == ("accel", "platform")
    assert json.loads(done.stdout)["values"]["stages.a.devices"]["value"] == ["accel:0"]
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("arguments", "environment"),
    [
        (("--platform", "odd"), {}),
        ((), {"OMNI_ACTORS_PLATFORM": "odd"}),
        (("--set", "stages.b.platform=odd"), {"OMNI_ACTORS_PLATFORM": "cpu"}),
    ],
)
def test_who_asks_for_a_broken_one_gets_an_error(
    arguments: tuple[str, ...], environment: dict[str, str], tmp_path: Path
) -> None:
    install(tmp_path, "odd", BROKEN["crashes"][0])
    done = explain(tmp_path, *arguments, **environment)
    assert (done.returncode, done.stdout) == (1, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith("Error: ")
    assert line.endswith(
        "platform plugin 'odd' of odd-hardware 1.0 (odd_hardware:Platform) is broken: it died of SIGSEGV"
    )


def test_who_asks_for_the_cpu_does_not_wait_for_one_that_hangs(tmp_path: Path) -> None:
    install(tmp_path, "odd", BROKEN["hangs at import"][0])
    done = explain(tmp_path, "--platform", "cpu")
    assert platform_of(done) == ("cpu", "command line")
    assert done.stderr == ""


def test_two_that_claim_the_machine_are_an_error_that_names_both(tmp_path: Path) -> None:
    install(tmp_path, "left")
    install(tmp_path, "right")
    done = explain(tmp_path)
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert "'left'" in line
    assert "'right'" in line
    assert line.endswith("both claim this machine; choose one with --platform")
    assert platform_of(explain(tmp_path, "--platform", "right")) == ("right", "command line")


def test_it_is_found_by_a_command_whose_standard_streams_are_closed(tmp_path: Path) -> None:
    install(tmp_path, "sound")
    log = tmp_path / "log"
    closed = ["sh", "-c", 'exec "$@" <&- >&- 2>"$0"', str(log), *command("--platform", "sound")]
    done = subprocess.run(closed, env=environment_with(tmp_path))
    assert (done.returncode, log.read_text()) == (0, "")
