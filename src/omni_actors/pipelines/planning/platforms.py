"""Which platforms a deployment runs on: its default one, and those that stages name.

The default is what the command line says, else the variable ``OMNI_ACTORS_PLATFORM``, else the deploy file, else what
is detected. A stage that names its own keeps it, whatever the default is.
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
    """The platforms of one deployment, each found once. ``origin`` is whose word the default is; ``overruled`` are
    those that nothing runs on because a stronger word than theirs was said."""

    default: OmniPlatform
    origin: Origin
    named: dict[str, OmniPlatform] = field(default_factory=dict)
    overruled: frozenset[str] = frozenset()

    def get(self, name: str, where: str) -> OmniPlatform:
        """The platform called ``name``. Raises :class:`PlanError` that begins with ``where``, the place that asks."""
        if name == self.default.name:
            return self.default
        if name not in self.named:
            self.named[name] = _found(name, where)
        return self.named[name]

    def all(self) -> tuple[OmniPlatform, ...]:
        return (self.default, *self.named.values())


def find_platforms(asked: str | None, placed: Setting | None, stages: Iterable[Setting]) -> Platforms:
    """``asked`` is the command line's word, ``placed`` the deploy file's, ``stages`` are what names stages' own, the
    last word on each last."""
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
