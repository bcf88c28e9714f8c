"""Engines, connectors and balancers by name: the built-in ones, and those that plug-ins announce by entry point.

A deploy file and a declaration use these names. The serving process imports a plug-in's balancer, because balancers
work in the serving process, after a subprocess probe has examined the balancer. Engines and connectors are imported by
workers only; the serving process handles their dotted names.
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

_IGNORED: set[tuple[str, str, str]] = set()
"""Plug-ins with the name of a built-in class, of which the log has told already: word, name and dotted name."""


@dataclass(frozen=True, slots=True)
class Extension:
    """A kind of class that plug-ins may bring, such as a connector.

    Args:
        word: The kind's name in messages.
        group: The group of entry points in which plug-ins announce such classes.
        builtins: The dotted names of the built-in classes, by name.
    """

    word: str
    group: str
    builtins: Mapping[str, str]

    def plugins(self) -> list[EntryPoint]:
        """Return the plug-ins of other distributions.

        A plug-in with the name of a built-in class is left out, and a warning is logged once in the process.
        """
        found = []
        for plugin in installed(self.group):
            if brought_by(plugin)[0] == OWN:
                continue
            if plugin.name in self.builtins:
                if (clash := (self.word, plugin.name, plugin.value)) not in _IGNORED:
                    _IGNORED.add(clash)
                    log.warning("%s plugin '%s' (%s) is ignored: a builtin %s has that name", *clash, self.word)
                continue
            found.append(plugin)
        return found

    def names(self, plugins: Iterable[EntryPoint] | None = None) -> list[str]:
        """Return every name that a deploy file may use.

        Args:
            plugins: The plug-ins to name; ``None`` for the installed ones.
        """
        found = self.plugins() if plugins is None else plugins
        return list(dict.fromkeys((*self.builtins, *(plugin.name for plugin in found))))

    def named(self, name: str, where: str, also: Iterable[str] = ()) -> tuple[str, EntryPoint | None]:
        """Find a class by name.

        Args:
            name: The name in a deploy file or a declaration.
            where: Where the name stands; messages begin with it.
            also: Further names that are valid there, for the message about an unknown name.

        Returns:
            The dotted name of the class, and the plug-in that brings the class (``None`` for a built-in class).

        Raises:
            PlanError: No class has that name, or more than one plug-in brings a class of that name.

        Example:
            >>> CONNECTORS.named("tcp", "deploy.yaml:3")
            ('omni_actors.connectors.connector:Tcp', None)
        """
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
"""Engine kinds. A platform's own class for a built-in kind (:attr:`OmniPlatform.engines`) comes first."""

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
    """Return a report on a plug-in's balancer. The call blocks while a subprocess probe examines the plug-in."""
    return probe(BALANCER, [plugin], forgive=True)[0]
