"""The kernel's files, and the control groups around the process."""

from __future__ import annotations

from pathlib import Path


def lines(path: Path) -> list[str]:
    """Return a file's lines; no lines for an unreadable file."""
    try:
        return path.read_text().splitlines()
    except OSError:
        return []


def groups(root: Path) -> list[Path]:
    """Return the folders of the process's version-2 cgroup and of all cgroups above, as visible in the namespace."""
    mount = root / "sys/fs/cgroup"
    for line in lines(root / "proc/self/cgroup"):
        if line.startswith("0::/"):
            group = mount / line[len("0::/") :]
            return [folder for folder in (group, *group.parents) if folder.is_relative_to(mount)]
    return [mount]
