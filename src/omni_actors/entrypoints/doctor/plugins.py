"""Installed plug-ins other than platforms, with the findings about each."""

from __future__ import annotations

from collections.abc import Iterator

from omni_actors.pipelines.extensions import BALANCER, BALANCERS, EXTENSIONS
from omni_actors.pipelines.registry import BUILTINS, PIPELINES, UNOFFERED
from omni_actors.platforms.platform import Finding, Verdict
from omni_actors.plugins import OWN, installed
from omni_actors.plugins.probe import PluginReport, brought_by, probe


def pipeline_findings() -> Iterator[Finding]:
    """Yield the pipelines of this package in one line, and each plug-in, examined anew. A broken plug-in is a warning,
    because it only prevents its own use. Blocks like :func:`~omni_actors.plugins.probe.probe`."""
    own = len(BUILTINS.keys() - UNOFFERED)
    plugins = [plugin for plugin in installed(PIPELINES.group) if brought_by(plugin)[0] != OWN]
    others = "no plug-in is installed" if not plugins else f"{len(plugins)} by plug-ins"
    yield Finding("builtin", Verdict.OK, f"{own} pipelines of this package; {others}")
    for report in probe(PIPELINES, plugins, anew=True):
        yield _finding(report)


def extension_findings() -> Iterator[Finding]:
    """Yield the engines, connectors and balancers that plug-ins register. Engines and connectors are only named,
    because only workers import them; balancers are examined."""
    nothing = True
    for extension in EXTENSIONS:
        for plugin in extension.plugins():
            nothing = False
            subject = f"{extension.word} {plugin.name}"
            if extension is BALANCERS:
                report = probe(BALANCER, [plugin], anew=True)[0]
                if report.state == "broken":
                    found = f"{_brought(report)}: broken: {report.reason}"
                    yield Finding(subject, Verdict.WARNING, found, f"uninstall or mend {report.distribution}")
                    continue
            brought = " ".join(filter(None, brought_by(plugin))) or "no distribution"
            yield Finding(subject, Verdict.OK, f"{brought}: {plugin.value}")
    if nothing:
        yield Finding("plugins", Verdict.OK, "no engine, connector or balancer of a plug-in is installed")


def _brought(report: PluginReport) -> str:
    return " ".join(filter(None, (report.distribution, report.version))) or "no distribution"


def _finding(report: PluginReport) -> Finding:
    brought = _brought(report)
    if report.state == "broken":
        remedy = f"uninstall or mend {report.distribution or report.value}"
        return Finding(report.name, Verdict.WARNING, f"{brought}: broken: {report.reason}", remedy)
    served = [*report.facts["architectures"], *report.facts["checkpoints"]]
    claims = f"serves {', '.join(served)}" if served else "serve it by its name"
    return Finding(report.name, Verdict.OK, f"{brought}: usable: {claims}")
