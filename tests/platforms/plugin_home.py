"""An environment of its own, with a sample plugin installed from its wheel."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

ROOT = Path(__file__).parents[2]
PLUGIN = ROOT / "examples" / "platform_plugin"
NAME = "omni-actors-sim"


def run(*command: object, cwd: Path) -> str:
    kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    done = subprocess.run(list(map(str, command)), cwd=cwd, env=kept, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def make_home(folder: Path) -> Path:
    """The interpreter of an environment that finds this repository and everything else that is installed here."""
    home = folder / "environment"
    venv.create(home, with_pip=False)
    site = Path(sysconfig.get_path("purelib", vars={"base": str(home), "platbase": str(home)}))
    # A path in a .pth file is searched, but its own .pth files are not read: the editable install's place is named.
    places = [entry for entry in sys.path if Path(entry).name == "site-packages"]
    (site / "others.pth").write_text("\n".join(map(str, (ROOT / "src", sysconfig.get_path("purelib"), *places))) + "\n")
    return home / "bin" / "python"


def build_plugin(folder: Path, plugin: Path = PLUGIN) -> Path:
    run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", folder, plugin, cwd=folder)
    (wheel,) = folder.glob("*.whl")
    return wheel


def install(python: Path, wheel: Path) -> None:
    run(*_pip(python), "install", "--quiet", "--no-deps", "--no-index", wheel, cwd=python.parent)


def uninstall(python: Path) -> None:
    run(*_pip(python), "uninstall", "--quiet", "--yes", NAME, cwd=python.parent)


def _pip(python: Path) -> tuple[object, ...]:
    return sys.executable, "-m", "pip", "--python", python, "--disable-pip-version-check"
