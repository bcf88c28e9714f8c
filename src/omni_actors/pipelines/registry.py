"""Which pipelines there are: this package's own, and those of plugins by entry point.

A plugin's distribution declares entry points ``name = "package.module:PIPELINE"`` in the group :data:`GROUP`. Nothing
is imported before it is asked for, but for :meth:`Registry.for_architecture` and :meth:`Registry.for_checkpoint`, which
must look into all of them.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib.metadata import EntryPoint
from pkgutil import resolve_name

from omni_actors.pipelines.declaration import Pipeline
from omni_actors.pipelines.plan import PlanError
from omni_actors.pipelines.validate import nearest
from omni_actors.plugins import installed

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
    "stub": "omni_actors.models.stub.pipeline:PIPELINE",
    "stub-voice": "omni_actors.models.stub.voice:PIPELINE",
}
"""Known without entry points, so that a checkout works before it is installed."""


@dataclass(frozen=True, slots=True)
class Registry:
    """Pipelines by name, as dotted names that are imported when asked for."""

    targets: dict[str, str]

    @classmethod
    def installed(cls, plugins: Iterable[EntryPoint] | None = None) -> Registry:
        """The builtins and every installed plugin. A plugin that takes a name already given is one warning."""
        targets = dict(BUILTINS)
        for plugin in installed(GROUP) if plugins is None else plugins:
            taken = targets.setdefault(plugin.name, plugin.value)
            if taken != plugin.value:
                log.warning(
                    "pipeline plugin '%s' (%s) is ignored: %s has that name already", plugin.name, plugin.value, taken
                )
        return cls(targets)

    def load(self, name: str) -> Pipeline:
        """The pipeline of that name. Raises :class:`PlanError` if there is none or if its module is broken."""
        if name not in self.targets:
            raise PlanError(f"there is no pipeline '{name}'; {nearest(name, self.targets)}")
        try:
            return _import(self.targets[name])
        except (Exception, SystemExit) as error:
            raise PlanError(f"pipeline '{name}' ({self.targets[name]}) is broken: {error!r}") from error

    def for_architecture(self, architecture: str) -> Pipeline | None:
        """The pipeline that serves models of this architecture, ``None`` if there is none.

        A broken pipeline is one warning; two that claim the same architecture are a :class:`PlanError`.
        """
        return _only(architecture, [it for it in self._working() if architecture in it.architectures])

    def for_checkpoint(self, name: str) -> Pipeline | None:
        """The pipeline that names this public checkpoint, under the rules of :meth:`for_architecture`."""
        return _only(name, [it for it in self._working() if name in it.checkpoints])

    def checkpoints(self) -> list[str]:
        """Every public checkpoint that a pipeline names."""
        return [name for pipeline in self._working() for name in pipeline.checkpoints]

    def _working(self) -> Iterator[Pipeline]:
        for name, target in self.targets.items():
            try:
                found = _import(target)
            except (Exception, SystemExit) as error:
                log.warning("pipeline '%s' (%s) is broken and ignored: %r", name, target, error)
            else:
                yield found


def _only(claim: str, found: list[Pipeline]) -> Pipeline | None:
    if len(found) > 1:
        names = ", ".join(f"'{pipeline.name}'" for pipeline in found)
        raise PlanError(f"pipelines {names} all serve {claim}; choose one with --pipeline")
    return found[0] if found else None


def _import(target: str) -> Pipeline:
    found = resolve_name(target)
    if not isinstance(found, Pipeline):
        raise TypeError(f"{target} is no Pipeline")
    return found
