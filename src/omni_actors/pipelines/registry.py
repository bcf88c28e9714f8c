"""The registry of pipelines: the built-in pipelines, and pipelines that plug-ins announce by entry point.

A plug-in's distribution declares entry points ``name = "package.module:PIPELINE"`` in the group :data:`GROUP`. A
subprocess probe examines each plug-in (:mod:`omni_actors.plugins.probe`); the serving process imports only the pipeline
that is served, and only if the probe found no fault.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Mapping
from importlib.metadata import EntryPoint
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import msgspec

from omni_actors.pipelines import plugin_check
from omni_actors.pipelines.declaration import Pipeline
from omni_actors.pipelines.nearest import nearest
from omni_actors.pipelines.plan import PlanError
from omni_actors.plugins import OWN, installed
from omni_actors.plugins.probe import Judged, Kind, PluginReport, brought_by, probe

log = logging.getLogger(__name__)

GROUP = "omni_actors.pipelines"

BUILTINS = {
    "omni-demo": "omni_actors.models.omni_demo.pipeline:PIPELINE",
    "causal-lm": "omni_actors.models.causal_lm.pipeline:PIPELINE",
    "vision-lm": "omni_actors.models.vision_lm.pipeline:PIPELINE",
    "csm": "omni_actors.models.csm.pipeline:PIPELINE",
    "pocket-tts": "omni_actors.models.pocket_tts.pipeline:PIPELINE",
    "dia": "omni_actors.models.dia.pipeline:PIPELINE",
    "higgs-audio": "omni_actors.models.higgs_audio.pipeline:PIPELINE",
    "vibevoice": "omni_actors.models.vibevoice.pipeline:PIPELINE",
    "qwen3-omni": "omni_actors.models.qwen3_omni.pipeline:PIPELINE",
    "qwen2.5-omni": "omni_actors.models.qwen2_5_omni.pipeline:PIPELINE",
    "qwen3-tts": "omni_actors.models.qwen3_tts.pipeline:PIPELINE",
    "qwen3-tts-fused": "omni_actors.models.qwen3_tts.pipeline:FUSED",
    "qwen3-asr": "omni_actors.models.qwen3_asr.pipeline:PIPELINE",
    "voxtral": "omni_actors.models.voxtral.pipeline:PIPELINE",
    "kyutai-stt": "omni_actors.models.kyutai_stt.pipeline:PIPELINE",
    "stable-diffusion-3": "omni_actors.models.sd3.pipeline:PIPELINE",
    "stable-diffusion-3-apart": "omni_actors.models.sd3.pipeline:APART",
    "qwen-image": "omni_actors.models.qwen_image.pipeline:PIPELINE",
    "qwen-image-apart": "omni_actors.models.qwen_image.pipeline:APART",
    "qwen-image-edit": "omni_actors.models.qwen_image.pipeline:EDIT",
    "qwen-image-edit-apart": "omni_actors.models.qwen_image.pipeline:EDIT_APART",
    "qwen-image-edit-plus": "omni_actors.models.qwen_image.pipeline:EDIT_PLUS",
    "qwen-image-edit-plus-apart": "omni_actors.models.qwen_image.pipeline:EDIT_PLUS_APART",
    "qwen-image-layered": "omni_actors.models.qwen_image.pipeline:LAYERED",
    "qwen-image-layered-apart": "omni_actors.models.qwen_image.pipeline:LAYERED_APART",
    "z-image": "omni_actors.models.z_image.pipeline:PIPELINE",
    "z-image-apart": "omni_actors.models.z_image.pipeline:APART",
    "diffusers": "omni_actors.models.diffusers_generic.pipeline:PIPELINE",
    "digits": "omni_actors.models.digits.pipeline:PIPELINE",
    "style": "omni_actors.models.style.pipeline:PIPELINE",
    "flux": "omni_actors.models.flux.pipeline:PIPELINE",
    "flux-apart": "omni_actors.models.flux.pipeline:APART",
    "flux-kontext": "omni_actors.models.flux.pipeline:KONTEXT",
    "flux2-klein": "omni_actors.models.flux2.pipeline:PIPELINE",
    "flux2-klein-apart": "omni_actors.models.flux2.pipeline:APART",
    "stable-diffusion": "omni_actors.models.stable_diffusion.pipeline:PIPELINE",
    "stable-diffusion-apart": "omni_actors.models.stable_diffusion.pipeline:APART",
    "stable-diffusion-xl": "omni_actors.models.stable_diffusion.pipeline:XL",
    "stable-diffusion-xl-apart": "omni_actors.models.stable_diffusion.pipeline:XL_APART",
    "pixart-sigma": "omni_actors.models.pixart.pipeline:PIPELINE",
    "pixart-sigma-apart": "omni_actors.models.pixart.pipeline:APART",
    "ovis-image": "omni_actors.models.ovis_image.pipeline:PIPELINE",
    "stub": "omni_actors.models.stub.pipeline:PIPELINE",
    "stub-voice": "omni_actors.models.stub.voice:PIPELINE",
    "stub-image": "omni_actors.models.stub.image:PIPELINE",
}
"""Built-in pipelines, known without entry points, so that a checkout works before it is installed. ``pyproject.toml``
has the same list."""

UNOFFERED = frozenset({"stub", "stub-voice", "stub-image"})
"""Pipelines without a model, for benchmarks and tests: served by name, and not proposed in messages."""


class Registry:
    """The pipelines by name. Of two pipelines with one name the first counts, and a warning is logged about the other.

    Args:
        targets: Name → dotted name of a pipeline that is imported as it is: a built-in pipeline, or a program's own.
        plugins: Entry points of plug-ins, which are probed before they are imported.

    Example:
        >>> registry = Registry({"stub": "omni_actors.models.stub.pipeline:PIPELINE"})
        >>> registry.names(), registry.load("stub").tasks[0].name
        (['stub'], 'echo')
    """

    def __init__(self, targets: Mapping[str, str], plugins: Iterable[EntryPoint] = ()) -> None:
        self.targets = dict(targets)
        self._plugins: list[EntryPoint] = []
        self._reports: tuple[PluginReport, ...] | None = None
        for plugin in plugins:
            taken = self.targets.get(plugin.name)
            if taken is None:
                self._plugins.append(plugin)
            elif taken != plugin.value:
                log.warning(
                    "pipeline plugin '%s' (%s) is ignored: %s has that name already", plugin.name, plugin.value, taken
                )

    @classmethod
    def installed(cls, plugins: Iterable[EntryPoint] | None = None) -> Registry:
        """Return a registry of the built-in pipelines and the plug-ins: every installed one, or ``plugins``."""
        found = installed(GROUP) if plugins is None else plugins
        return cls(BUILTINS, [plugin for plugin in found if brought_by(plugin)[0] != OWN])

    def names(self) -> list[str]:
        """Return the names of all pipelines, working or not."""
        return list(dict.fromkeys((*self.targets, *(plugin.name for plugin in self._plugins))))

    def offered(self) -> list[str]:
        """Return the names that messages and help may propose."""
        return [name for name in self.names() if name not in UNOFFERED]

    def load(self, name: str) -> Pipeline:
        """Return the pipeline of a name. The call blocks while a plug-in is probed.

        Raises:
            PlanError: No pipeline has the name, or the pipeline is broken.
        """
        if name in self.targets:
            target = self.targets[name]
            try:
                return _import(target)
            except (Exception, SystemExit) as error:
                raise PlanError(f"pipeline '{name}' ({target}) is broken: {error!r}") from error
        if all(plugin.name != name for plugin in self._plugins):
            raise PlanError(f"there is no pipeline '{name}'; {nearest(name, self.offered())}")
        report = self._look_at(name)
        if report.state == "broken":
            raise PlanError(f"{report} is broken: {report.reason}")
        try:
            pipeline = _import(report.value)
        except (Exception, SystemExit) as error:
            raise PlanError(f"{report} cannot be imported, though it could before: {error!r}") from error
        if pipeline.name != name:
            raise PlanError(f"{report} has a pipeline of the name '{pipeline.name}'")
        return pipeline

    def for_architecture(self, architecture: str) -> Pipeline | None:
        """Return the pipeline for an architecture; ``None`` if there is none.

        The first call blocks while the plug-ins are probed. A warning is logged for each broken pipeline.

        Raises:
            PlanError: Two pipelines serve the architecture.
        """
        return self._claimed("architectures", architecture)

    def for_checkpoint(self, name: str) -> Pipeline | None:
        """Return the pipeline of a public checkpoint, under the rules of :meth:`for_architecture`."""
        return self._claimed("checkpoints", name)

    def checkpoints(self) -> list[str]:
        """Return the public checkpoints of all pipelines."""
        return [name for _, claims in self._claims("checkpoints") for name in claims]

    def reports(self) -> tuple[PluginReport, ...]:
        """Return a report on each plug-in. The first call probes all plug-ins, and logs a warning for each broken
        one."""
        if self._reports is None:
            self._reports = probe(PIPELINES, self._plugins)
            for report in self._reports:
                if report.state == "broken":
                    log.warning("%s is broken and ignored: %s", report, report.reason)
        return self._reports

    def _look_at(self, name: str) -> PluginReport:
        """Return a report on one plug-in. A plug-in that was broken before is probed again: missing packages may be
        installed by now."""
        return probe(PIPELINES, self._plugins, only=name, forgive=True)[0]

    def _claimed(self, field: str, claim: str) -> Pipeline | None:
        names = [name for name, claims in self._claims(field) if claim in claims]
        if len(names) > 1:
            named = ", ".join(f"'{name}'" for name in names)
            raise PlanError(f"pipelines {named} all serve {claim}; choose one with --pipeline")
        return self.load(names[0]) if names else None

    def _claims(self, field: str) -> list[tuple[str, tuple[str, ...]]]:
        """Return the entries of each working pipeline in one field of its declaration, by the pipeline's name."""
        found: list[tuple[str, tuple[str, ...]]] = []
        for name, target in self.targets.items():
            try:
                found.append((name, getattr(_import(target), field)))
            except (Exception, SystemExit) as error:
                log.warning("pipeline '%s' (%s) is broken and ignored: %r", name, target, error)
        for report in self.reports():
            if report.state == "usable":
                found.append((report.name, tuple(report.facts[field])))
        return found


class _Found(msgspec.Struct):
    """The answer of :func:`plugin_check.answer`."""

    architectures: list[str]
    checkpoints: list[str]
    doc: str = ""


def _judge(answer: Any) -> Judged:
    try:
        found = msgspec.convert(answer, _Found)
    except msgspec.ValidationError as error:
        raise ValueError(str(error)) from None
    return "usable", "", msgspec.structs.asdict(found)


PIPELINES = Kind(
    "pipeline",
    GROUP,
    Path(plugin_check.__file__),
    _judge,
    pattern=re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*"),
    spelling="letters, digits, '.', - and _: commands and deploy files use this name",
)


def _import(target: str) -> Pipeline:
    found = resolve_name(target)
    if not isinstance(found, Pipeline):
        raise TypeError(f"{target} is no Pipeline")
    return found
