"""``make … TORCH_INDEX=URL`` installs torch from there, nothing but torch, and nothing of torch from elsewhere."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
import zipfile
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
VERSION = next(
    line.partition("==")[2]
    for line in (ROOT / "constraints.txt").read_text().splitlines()
    if line.startswith("torch==")
)


class Index:
    """A package index on loopback, which remembers the packages that it was asked for."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self.asked: set[str] = set()
        asked = self.asked

        class Handler(SimpleHTTPRequestHandler):
            def do_GET(self) -> None:
                asked.add(self.path.split("/")[1])
                super().do_GET()

            def log_message(self, format: str, *args: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=folder))
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}/"
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.01,))
        self.thread.start()

    def close(self) -> None:
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()


@pytest.fixture
def indexes(tmp_path: Path) -> Iterator[tuple[Index, Index]]:
    """The ordinary index, which has nothing, and the one with a build of torch, which requires another package."""
    ordinary, special = Index(tmp_path / "ordinary"), Index(tmp_path / "special")
    (tmp_path / "special" / "torch").mkdir()
    name = f"torch-{VERSION}+cpu"
    with zipfile.ZipFile(tmp_path / "special" / "torch" / f"{name}-py3-none-any.whl", "w") as wheel:
        wheel.writestr("torch/__init__.py", "")
        wheel.writestr(
            f"{name}.dist-info/METADATA",
            f"Metadata-Version: 2.1\nName: torch\nVersion: {VERSION}+cpu\nRequires-Dist: sympy\n",
        )
        wheel.writestr(f"{name}.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{name}.dist-info/RECORD", "")
    yield ordinary, special
    ordinary.close()
    special.close()


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    folder = tmp_path / "checkout"
    for name in ("Makefile", "pyproject.toml", "constraints.txt", "tests/vllm/install.py"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, folder / name)
    return folder


def make(checkout: Path, ordinary: Index, *arguments: str) -> str:
    """Run ``make setup``, which cannot come to its end; what it says."""
    ours = ("PIP_", "MAKE", "VENV", "TORCH")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    environment |= {"PIP_CONFIG_FILE": os.devnull, "PIP_INDEX_URL": ordinary.url, "PIP_RETRIES": "0"}
    command = ["make", "setup", f"PYTHON={sys.executable}", *arguments]
    done = subprocess.run(command, cwd=checkout, env=environment, capture_output=True, text=True)
    assert done.returncode != 0
    return done.stdout + done.stderr


def torch_in(checkout: Path) -> str:
    found = list((checkout / ".venv/lib").glob("python*/site-packages/torch-*.dist-info"))
    return found[0].name if found else ""


def test_torch_alone_comes_from_its_index(checkout: Path, indexes: tuple[Index, Index]) -> None:
    pytest.importorskip("ensurepip", reason="an environment with pip is needed")
    ordinary, special = indexes
    assert "No matching distribution found for torch" in make(checkout, ordinary)
    assert (ordinary.asked, special.asked) == ({"torch"}, set())

    ordinary.asked.clear()
    said = make(checkout, ordinary, f"TORCH_INDEX={special.url}")
    assert torch_in(checkout) == f"torch-{VERSION}+cpu.dist-info", said
    assert special.asked == {"torch"}
    assert ordinary.asked
    assert "torch" not in ordinary.asked


@pytest.mark.parametrize("target", ["setup", "weights", "demo", "test", "bench", "vllm-test"])
def test_an_environment_with_torch_from_elsewhere_is_not_up_to_date(checkout: Path, target: str) -> None:
    (checkout / ".venv").mkdir()
    (checkout / ".venv/.installed").touch()
    (checkout / ".venv/.torch-index").write_text("http://127.0.0.1:9/a/\n")

    def planned(*arguments: str) -> str:
        command = ["make", "--dry-run", target, f"PYTHON={sys.executable}", *arguments]
        return subprocess.run(command, cwd=checkout, capture_output=True, text=True, check=True).stdout

    install = "--no-deps --force-reinstall --index-url 'http://127.0.0.1:9/b/' 'torch=="
    assert install in planned("TORCH_INDEX=http://127.0.0.1:9/b/")
    for arguments in ((), ("TORCH_INDEX=http://127.0.0.1:9/a/",)):
        assert "pip install" not in planned(*arguments)
    if target.startswith("vllm"):
        assert "--torch-index 'http://127.0.0.1:9/b/'" in planned("TORCH_INDEX=http://127.0.0.1:9/b/")
