"""The built wheel is whole: it installs into another environment and works outside the repository."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def run(*command: object, cwd: Path) -> str:
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    done = subprocess.run(list(map(str, command)), cwd=cwd, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", folder, ROOT, cwd=folder)
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The ``bin`` folder of an environment that has the wheel, and everything else from this one's site-packages."""
    home = tmp_path_factory.mktemp("environment")
    venv.create(home, with_pip=False)
    site = Path(sysconfig.get_path("purelib", vars={"base": str(home), "platbase": str(home)}))
    # A path in a .pth file is searched, but its own .pth files are not read: the editable install stays out of sight.
    (site / "others.pth").write_text(sysconfig.get_path("purelib") + "\n")
    pip = [sys.executable, "-m", "pip", "--python", home / "bin" / "python", "--disable-pip-version-check"]
    run(*pip, "install", "--quiet", "--no-deps", "--no-index", wheel, cwd=home)
    return home / "bin"


def test_wheel_holds_the_package_and_its_licence_and_nothing_else(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.split("/")[0] for name in names} == {"omni_actors", "omni_actors-0.1.0.dist-info"}
    assert "omni_actors/py.typed" in names
    assert "omni_actors-0.1.0.dist-info/licenses/LICENSE" in names
    assert not [name for name in names if name.endswith((".pyc", ".safetensors", ".onnx", ".gguf"))]


DOCUMENT = re.compile(r"\b(?:README|CONTRIBUTING|CHANGELOG|docs/)[\w./{}-]*")


def named_documents() -> dict[str, str]:
    """The documents that texts of the program name, each with a place where it is named; docstrings say nothing to
    whoever has only the wheel, but those of commands are their help."""
    found: dict[str, str] = {}
    for path in sorted((ROOT / "src").rglob("*.py")):
        if path.name == "documents.py":  # finds them
            continue
        tree = ast.parse(path.read_text())
        strings = {id(it): it for it in ast.walk(tree) if isinstance(it, ast.Constant) and isinstance(it.value, str)}
        for node in ast.walk(tree):
            body = getattr(node, "body", None)
            is_command = any("command" in ast.unparse(it) for it in getattr(node, "decorator_list", ()))
            for statement in body if isinstance(body, list) else ():
                if isinstance(statement, ast.Expr) and not is_command:
                    strings.pop(id(statement.value), None)  # a docstring, of an attribute too
        for it in strings.values():
            for name in DOCUMENT.findall(str(it.value)):
                found.setdefault(name, f"{path.relative_to(ROOT)}:{it.lineno}")
    return found


def test_documents_that_messages_name_are_in_the_wheel(wheel: Path, installed: Path, tmp_path: Path) -> None:
    """So are the pages of the platforms, which messages name by the path where they lie."""
    held = {name.removeprefix("omni_actors/") for name in zipfile.ZipFile(wheel).namelist()}
    assert {name: where for name, where in named_documents().items() if name not in held} == {}
    pages = {f"docs/platforms/{path.name}" for path in (ROOT / "docs" / "platforms").glob("*.md")}
    assert pages <= held
    program = "from omni_actors.documents import document; print(document('README.md')); print(document('docs/no.md'))"
    readme, absent = run(installed / "python", "-c", program, cwd=tmp_path).splitlines()
    assert Path(readme).is_relative_to(installed.parent)
    assert absent == ""


@pytest.mark.deadline(120)
def test_installed_package_works_outside_the_repository(installed: Path, tmp_path: Path) -> None:
    where = run(installed / "python", "-c", "import omni_actors; print(omni_actors.__file__)", cwd=tmp_path)
    assert Path(where.strip()).is_relative_to(installed.parent)
    by_module = run(installed / "python", "-m", "omni_actors", "--help", cwd=tmp_path)
    by_script = run(installed / "omni-actors", "--help", cwd=tmp_path)
    for command in ("serve", "run", "explain", "models", "bench"):
        assert command in by_module
        assert command in by_script


@pytest.mark.deadline(120)
def test_installed_package_explains_a_pipeline(installed: Path, tmp_path: Path) -> None:
    out = run(installed / "python", "-m", "omni_actors", "explain", "stub", cwd=tmp_path)
    assert "stub" in out
