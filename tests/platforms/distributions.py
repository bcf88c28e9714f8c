"""Distributions that bring a platform: a folder as pip leaves it, with metadata, an entry point and a module."""

from __future__ import annotations

from pathlib import Path

from omni_actors.platforms.probe import GROUP

PLATFORM = """
from omni_actors.platforms.platform import Detection, Device, OmniPlatform


class Platform(OmniPlatform):
    contract = 1
    name = "{name}"

    def detect(self):
        return Detection(True, True, "one of {name}")

    def devices(self):
        return (Device("{name}:0", 1 << 30),)

    def cores(self):
        return 2

    def worker_environment(self, device, threads, options):
        return {{"OMP_NUM_THREADS": str(threads)}}
"""
"""A sound one, to be formatted with its name."""


def install(
    site: Path,
    name: str,
    text: str | None = None,
    distribution: str = "",
    group: str = GROUP,
    attribute: str = "Platform",
) -> None:
    """A distribution ``<name>-hardware`` of version 1.0, whose module has that text (default: a sound platform) and
    whose entry point ``name`` is the module's ``attribute``."""
    distribution = distribution or f"{name}-hardware"
    package = distribution.replace("-", "_")
    site.mkdir(parents=True, exist_ok=True)
    (site / f"{package}.py").write_text(PLATFORM.format(name=name) if text is None else text)
    metadata = site / f"{package}-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(f"[{group}]\n{name} = {package}:{attribute}\n")


def changed(name: str, *changes: tuple[str, str]) -> str:
    """The text of a sound platform with some of it replaced."""
    text = PLATFORM.format(name=name)
    for old, new in changes:
        assert old in text, old
        text = text.replace(old, new)
    return text
