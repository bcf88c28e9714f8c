"""The kernel's files, and the control groups around this process."""

from __future__ import annotations

from pathlib import Path


def lines(path: Path) -> list[str]:
    """A file's lines; none if it cannot be read."""
    try:
        return path.read_text().splitlines()
    except OSError:
        return []


def groups(root: Path) -> list[Path]:
    """The folders of this process's version-2 cgroup and of all above it, as far as this namespace shows them."""
    mount = root / "sys/fs/cgroup"
    for line in lines(root / "proc/self/cgroup"):
        if line.startswith("0::/"):
            group = mount / line[len("0::/") :]
            return [folder for folder in (group, *group.parents) if folder.is_relative_to(mount)]
    return [mount]
