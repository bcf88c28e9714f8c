"""Whether the packages that a deployment's workers import go together, before a worker is started."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pkgutil import resolve_name

from omni_actors.pipelines.plan import Plan, PlanError
from omni_actors.platforms.platform import Verdict
from omni_actors.platforms.versions import version_findings

log = logging.getLogger(__name__)

PACKAGES: Mapping[str, Mapping[str, str]] = {
    "autoregressive": {"torch": "torch", "transformers": "torch"},
    "vllm": {"vllm": "vllm"},
}
"""Engine kind → the packages that it cannot do without → the extra that brings them. What a one-shot stage needs is its
model's business."""


def needed_packages(plan: Plan) -> dict[str, str]:
    """Package → the extra that brings it, or what else is to be said about getting it."""
    needed: dict[str, str] = {}
    for stage in plan.stages:
        platform = resolve_name(stage.platform_class)
        kinds = [kind for kind, engine in platform.engines.items() if engine == stage.engine]
        if kinds:
            needed |= platform.distributions
        for kind in kinds:
            needed |= PACKAGES.get(kind, {})
    return needed


def check_versions(plan: Plan, path: Sequence[str] | None = None) -> None:
    """Raises :class:`PlanError` for what cannot work, one line each with its remedy; warns of what was never tried.
    ``path`` stands for ``sys.path``."""
    findings = version_findings(needed_packages(plan), path)
    said = {finding: f"{finding.subject} {finding.found}: {finding.remedy}" for finding in findings}
    for finding, line in said.items():
        if finding.verdict is Verdict.WARNING:
            log.warning("%s", line)
    if problems := [line for finding, line in said.items() if finding.verdict is Verdict.PROBLEM]:
        raise PlanError("\n".join(problems))
