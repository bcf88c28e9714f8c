"""The platforms of a deployment: the default platform, and the platforms that stages name.

The default is named by the command line, else by the variable ``OMNI_ACTORS_PLATFORM``, else by the deploy file, and
else detected. A stage with a platform of its own keeps that platform.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, field

from omni_actors.pipelines.deploy.overlay import Setting
from omni_actors.pipelines.plan import Origin, PlanError
from omni_actors.platforms.platform import OmniPlatform, PlatformError
from omni_actors.platforms.select import select

VARIABLE = "OMNI_ACTORS_PLATFORM"

STAGE_PLATFORMS = ("stages.*.platform", "stages.*.prefill.platform")
"""Settings that name the platform of a stage, as :func:`peek_overlay` takes them."""


@dataclass(slots=True)
class Platforms:
    """The platforms of one deployment, each found once. ``origin`` is the origin of the default; ``overruled`` are
    platforms of the deploy file on which nothing runs, because a setting of higher rank names another."""

    default: OmniPlatform
    origin: Origin
    named: dict[str, OmniPlatform] = field(default_factory=dict)
    overruled: frozenset[str] = frozenset()

    def get(self, name: str, where: str) -> OmniPlatform:
        """Return the platform of a name. Raises :class:`PlanError`, whose message begins with ``where``."""
        if name == self.default.name:
            return self.default
        if name not in self.named:
            self.named[name] = _found(name, where)
        return self.named[name]

    def all(self) -> tuple[OmniPlatform, ...]:
        return (self.default, *self.named.values())


def find_platforms(asked: str | None, placed: Setting | None, stages: Iterable[Setting]) -> Platforms:
    """Find the platforms of a deployment.

    Args:
        asked: The platform on the command line; ``None`` without one.
        placed: The deploy file's setting ``platform``; ``None`` without one.
        stages: Settings of single stages' platforms; the last setting of a path holds.

    Raises:
        PlanError: A platform does not exist or cannot be used.
    """
    stages = list(stages)
    if asked:
        origin = Origin("command line", f"--platform {asked}")
        found = Platforms(_found(asked, str(origin)), origin)
    elif from_environment := os.environ.get(VARIABLE, "").strip():
        origin = Origin("environment", f"{VARIABLE}={from_environment}")
        found = Platforms(_found(from_environment, str(origin)), origin)
    elif placed and placed.value:
        found = Platforms(_found(placed.value, str(placed.origin)), placed.origin)
    else:
        found = Platforms(select(), Origin("platform", "detected"))
    for setting in {setting.path: setting for setting in stages}.values():
        stage = setting.path.split(".")[1]
        found.get(setting.value, f"{setting.origin}: stage '{stage}'")
    said = {setting.value for setting in (*stages, *([placed] if placed else ()))}
    found.overruled = frozenset(said - {platform.name for platform in found.all()})
    return found


def _found(name: str, where: str) -> OmniPlatform:
    try:
        return select(name)
    except PlatformError as error:
        raise PlanError(f"{where}: {error}") from error
