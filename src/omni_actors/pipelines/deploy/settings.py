"""What was set, and where: the values that a plan is made of, each with its origin."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from omni_actors.pipelines.deploy.overlay import Setting
from omni_actors.pipelines.plan import Origin

DEFAULT = Origin("default")
DECLARED = Origin("declaration")


@dataclass(slots=True)
class Settings:
    """What was set, by path, and the provenance of everything that is read here. ``described`` are the paths whose
    default the model's folder gave, with that origin."""

    given: dict[str, Setting]
    provenance: dict[str, Origin]
    described: dict[str, Origin]

    def get(self, path: str, default: Any, origin: Origin = DEFAULT) -> Any:
        """The setting at ``path``, else the default; either way its origin is kept."""
        found = self.given.get(path)
        self.provenance[path] = found.origin if found else self.described.get(path, origin)
        return found.value if found else default

    def where(self, path: str) -> str:
        """For messages: where the value at ``path`` was set."""
        return str(self.provenance[path])
