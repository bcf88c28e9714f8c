"""Installed plug-ins of other kinds than platforms, and what was found of each."""

from __future__ import annotations

from collections.abc import Iterator

from omni_actors.pipelines.registry import BUILTINS, PIPELINES, UNOFFERED
from omni_actors.platforms.platform import Finding, Verdict
from omni_actors.plugins import OWN, installed
from omni_actors.plugins.probe import PluginReport, brought_by, probe


def pipeline_findings() -> Iterator[Finding]:
    """The pipelines of this package in one line, and each plug-in, looked at now whatever is known of it. A broken one
    is a warning: it stands against nothing but its own use. Blocks as :func:`~omni_actors.plugins.probe.probe` does."""
    own = len(BUILTINS.keys() - UNOFFERED)
    plugins = [plugin for plugin in installed(PIPELINES.group) if brought_by(plugin)[0] != OWN]
    others = "no plug-in is installed" if not plugins else f"{len(plugins)} by plug-ins"
    yield Finding("builtin", Verdict.OK, f"{own} pipelines of this package; {others}")
    for report in probe(PIPELINES, plugins, anew=True):
        yield _finding(report)


def _finding(report: PluginReport) -> Finding:
    brought = " ".join(filter(None, (report.distribution, report.version))) or "no distribution"
    if report.state == "broken":
        remedy = f"uninstall or mend {report.distribution or report.value}"
        return Finding(report.name, Verdict.WARNING, f"{brought}: broken: {report.reason}", remedy)
    served = [*report.facts["architectures"], *report.facts["checkpoints"]]
    claims = f"serves {', '.join(served)}" if served else "served by its name"
    return Finding(report.name, Verdict.OK, f"{brought}: usable: {claims}")
