"""The settings of a deployment, and the origin of each value that a plan is made of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from omni_actors.pipelines.deploy.overlay import Setting
from omni_actors.pipelines.plan import Origin

DEFAULT = Origin("default")
DECLARED = Origin("declaration")


@dataclass(slots=True)
class Settings:
    """The settings by path, and the provenance of every value that is read.

    Args:
        given: The settings of the deploy file and the command line.
        provenance: The origin of every value that was read, by path; :meth:`get` fills it in.
        described: The origin of defaults that came from the model's folder, by path.
    """

    given: dict[str, Setting]
    provenance: dict[str, Origin]
    described: dict[str, Origin]

    def get(self, path: str, default: Any, origin: Origin = DEFAULT) -> Any:
        """Return the setting at a path, or a default, and note the value's origin.

        Args:
            path: The dotted path.
            default: The value without a setting.
            origin: The origin of the default.
        """
        found = self.given.get(path)
        self.provenance[path] = found.origin if found else self.described.get(path, origin)
        return found.value if found else default

    def where(self, path: str) -> str:
        """Return the origin of the value at a path, for messages."""
        return str(self.provenance[path])
