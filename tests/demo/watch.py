"""What a server does that nobody asked it for: names that it looks up, addresses that it calls, files that it makes."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Watch:
    """A fresh home and folder for temporary files, and a record of what processes do (where a C compiler is)."""

    home: Path
    temporary: Path
    library: Path | None
    record: Path

    @classmethod
    def begin(cls, folder: Path) -> Watch:
        """Everything in a folder that is there already."""
        made = cls(folder / "home", folder / "tmp", None, folder / "record")
        made.home.mkdir()
        made.temporary.mkdir()
        made.record.touch()
        compiler = shutil.which("cc")
        if compiler is None:
            return made
        library = folder / "watch.so"
        source = Path(__file__).with_name("watch.c")
        subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", str(library), str(source), "-ldl"], check=True)
        return cls(made.home, made.temporary, library, made.record)

    @property
    def environment(self) -> dict[str, str]:
        """What a server gets to be watched."""
        made = {"HOME": str(self.home), "TMPDIR": str(self.temporary), "PYTHONDONTWRITEBYTECODE": "1"}
        if self.library is not None:
            made |= {"LD_PRELOAD": str(self.library), "OMNI_WATCH": str(self.record)}
        return made

    def recorded(self, *kinds: str) -> list[str]:
        """The arguments of such lines, each once: ``looked-up``, ``called``, ``made``."""
        lines = (line.partition(" ") for line in self.record.read_text().splitlines())
        return list(dict.fromkeys(argument for kind, _, argument in lines if kind in kinds))

    def left(self) -> list[Path]:
        """What lies in the home and the folder for temporary files."""
        return sorted([*self.home.rglob("*"), *self.temporary.rglob("*")])
