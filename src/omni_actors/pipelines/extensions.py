"""Engines, connectors and balancers by name: this package's own, and those that plug-ins announce by entry point.

A deploy file and a declaration call them by name. The serving process imports a balancer alone, which works there,
after a look at it in a process of its own; engines and connectors are imported by workers, and are dotted names here.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

from omni_actors.pipelines import class_check
from omni_actors.pipelines.nearest import nearest
from omni_actors.pipelines.plan import PlanError
from omni_actors.platforms.platform import VLLM_ENGINE, OmniPlatform
from omni_actors.plugins import OWN, installed
from omni_actors.plugins.contract import CONTRACT
from omni_actors.plugins.probe import Judged, Kind, PluginReport, brought_by, probe

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Extension:
    """A kind of class that plug-ins may bring. ``builtins`` are this package's own, by name."""

    word: str
    group: str
    builtins: Mapping[str, str]

    def plugins(self) -> list[EntryPoint]:
        """Return the plug-ins of other distributions. One that takes a builtin's name is left out, with a warning."""
        found = []
        for plugin in installed(self.group):
            if brought_by(plugin)[0] == OWN:
                continue
            if plugin.name in self.builtins:
                log.warning(
                    "%s plugin '%s' (%s) is ignored: a builtin %s has that name",
                    self.word, plugin.name, plugin.value, self.word,
                )  # fmt: skip
                continue
            found.append(plugin)
        return found

    def names(self, plugins: Iterable[EntryPoint] | None = None) -> list[str]:
        """Every name that may be asked for."""
        found = self.plugins() if plugins is None else plugins
        return list(dict.fromkeys((*self.builtins, *(plugin.name for plugin in found))))

    def named(self, name: str, where: str, also: Iterable[str] = ()) -> tuple[str, EntryPoint | None]:
        """The dotted name of the class called ``name``, and the plug-in that brings it, if it is a plug-in's. ``where``
        begins the message of the :class:`PlanError` for a name that nobody has, or that two have; ``also`` are names
        that may be asked for there beside these."""
        if name in self.builtins:
            return self.builtins[name], None
        plugins = self.plugins()
        found = [plugin for plugin in plugins if plugin.name == name]
        if not found:
            known = {*self.names(plugins), *also}
            raise PlanError(f"{where}: there is no {self.word} '{name}'; {nearest(name, known)}")
        if len(found) > 1:
            rivals = ", ".join(sorted(brought_by(it)[0] or it.value for it in found))
            why = f"more than one plugin brings a {self.word} '{name}' ({rivals}); uninstall all but one"
            raise PlanError(f"{where}: {why}")
        return found[0].value, found[0]


ENGINES = Extension(
    "engine",
    "omni_actors.engines",
    {**OmniPlatform.engines, "vllm": VLLM_ENGINE},
)
"""Engine kinds. A platform may have its own class for a builtin kind (:attr:`OmniPlatform.engines`), which comes
first."""

CONNECTORS = Extension(
    "connector",
    "omni_actors.connectors",
    {
        "shared_memory": "omni_actors.connectors.connector:SharedMemory",
        "device": "omni_actors.connectors.connector:DeviceMemoryConnector",
        "tcp": "omni_actors.connectors.connector:Tcp",
    },
)

BALANCERS = Extension(
    "balancer",
    "omni_actors.balancers",
    {
        "least_queue": "omni_actors.stages.balancers:LeastQueue",
        "round_robin": "omni_actors.stages.balancers:RoundRobin",
        "prefix_cache": "omni_actors.stages.balancers:PrefixCache",
    },
)

EXTENSIONS = (ENGINES, CONNECTORS, BALANCERS)


def _nothing(answer: Any) -> Judged:
    return "usable", "", {}


BALANCER = Kind(
    BALANCERS.word,
    BALANCERS.group,
    Path(class_check.__file__),
    _nothing,
    taken=tuple(BALANCERS.builtins),
    argument={"base": "omni_actors.stages.balancers:Balancer", "word": BALANCERS.word, "contract": CONTRACT},
)


def look_at_balancer(plugin: EntryPoint) -> PluginReport:
    """Report on a plug-in's balancer. Blocks while the plug-in is looked at."""
    return probe(BALANCER, [plugin], forgive=True)[0]
