"""The check that the packages of a deployment's workers work together, before a worker starts."""

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
"""Engine kind → required package → the extra that installs it. The packages of a one-shot stage depend on its model."""


def needed_packages(plan: Plan) -> dict[str, str]:
    """Return the required packages: package → the extra that installs it, or another remedy."""
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
    """Check the versions of the workers' packages. A warning is logged for versions that were never tested.

    Raises:
        PlanError: Some versions cannot work; the message has one line for each, with its remedy.
    """
    findings = version_findings(needed_packages(plan), path)
    said = {finding: f"{finding.subject} {finding.found}: {finding.remedy}" for finding in findings}
    for finding, line in said.items():
        if finding.verdict is Verdict.WARNING:
            log.warning("%s", line)
    if problems := [line for finding, line in said.items() if finding.verdict is Verdict.PROBLEM]:
        raise PlanError("\n".join(problems))
