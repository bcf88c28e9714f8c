"""The weights of a deployment: fetched where they are missing, and looked at before its stages start."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path

from omni_actors.models.weights import demo_folder, ensure_demo
from omni_actors.models.weights.hub.companions import companions_of
from omni_actors.models.weights.hub.download import Reporter as HubReporter
from omni_actors.models.weights.hub.progress import Lines
from omni_actors.models.weights.hub.pull import bring_companions, bring_public, companions_lacking
from omni_actors.models.weights.hub.records import is_whole, unfetched
from omni_actors.models.weights.pull import Reporter as DemoReporter
from omni_actors.models.weights.pull import silent
from omni_actors.pipelines.deploy.overlay import Override, peek_overlay
from omni_actors.pipelines.factory import damaged_weights, missing_devices, missing_weights, resolve
from omni_actors.pipelines.plan import Plan, PlanError
from omni_actors.pipelines.planning.choose import public_name
from omni_actors.pipelines.planning.versions import check_versions
from omni_actors.pipelines.registry import Registry
from omni_actors.pipelines.weights.hub import is_offline, snapshot_folder
from omni_actors.pipelines.weights.intact import PULL_COMMAND, described

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Asked:
    """The deployment that is asked for, as :func:`~omni_actors.pipelines.factory.resolve` takes it. ``offline`` says
    that nothing may be fetched."""

    model: str | None = None
    overlay: Path | None = None
    overrides: Sequence[str | Override] = ()
    platform: str | None = None
    served_name: str | None = None
    pipeline: str | None = None
    revision: str | None = None
    offline: bool = False
    chat_template: Path | None = None

    def plan(self) -> Plan:
        """Resolve it. Raises :class:`OmniError`."""
        return resolve(
            self.model,
            overlay=self.overlay,
            overrides=self.overrides,
            platform=self.platform,
            served_name=self.served_name,
            pipeline=self.pipeline,
            chat_template=self.chat_template,
            revision=self.revision,
        )


@dataclass(frozen=True, slots=True)
class Told:
    """How the operator learns what is fetched. ``wanted`` is called now and then while something is, and raises to end
    it."""

    say: Callable[[str], None]
    demo: Callable[[], AbstractContextManager[DemoReporter]]
    hub: Callable[[], AbstractContextManager[HubReporter]]
    wanted: Callable[[], None] = lambda: None


def by_log(wanted: Callable[[], None]) -> Told:
    """Everything goes to the log."""

    @contextmanager
    def demo() -> Iterator[DemoReporter]:
        yield silent

    @contextmanager
    def hub() -> Iterator[HubReporter]:
        yield Lines(log.info)

    return Told(log.info, demo, hub, wanted)


def ready_to_start(asked: Asked, told: Told) -> Plan:
    """The plan of what is asked for, with its packages and devices here and its weights on disk, fetched if need be.

    Blocks, possibly for hours. Raises :class:`OmniError` for what stands in the way. What can be known before anything
    is fetched is looked at before.
    """
    if not asked.offline and not is_offline():
        _bring_checkpoint(asked, told)
    plan = _check_machine(asked.plan())
    _bring_demo(plan, asked.offline, told)
    if not asked.offline and not is_offline():
        lacking = [folder for folder in _folders(plan) if companions_lacking(folder)]
        for folder in lacking:
            with told.hub() as reporter:
                bring_companions(folder, reporter, told.wanted)
    check_weights(plan)
    return plan


def check_weights(plan: Plan) -> None:
    """Raise :class:`PlanError` if weights of the plan are missing or damaged, as far as a quick look tells."""
    absent = missing_weights(plan)
    for folder in _folders(plan):
        absent += [str(path) for path in unfetched(folder) or () if str(path) not in absent]
    if absent:
        raise PlanError(_absence(plan, absent))
    if damaged := damaged_weights(plan):
        raise PlanError("\n".join(described(damage, folder) for folder, damage in damaged.items()))
    for folder in _folders(plan):
        for name in companions_of(folder):
            if not snapshot_folder(name).is_dir():
                raise PlanError(
                    f"{folder} names '{name}', which is needed beside it and is neither a folder nor in the Hugging "
                    f"Face cache of this machine. Run: {PULL_COMMAND} {name}"
                )


def _bring_checkpoint(asked: Asked, told: Told) -> None:
    registry = Registry.installed()
    early = {one.path: one.value for one in peek_overlay(asked.overlay, "model", "pipeline")} if asked.overlay else {}
    name = public_name(asked.model, early, registry)
    if name is None or is_whole(snapshot_folder(name, revision=asked.revision)):
        return
    pipeline = asked.pipeline or early.get("pipeline")
    if pipeline or registry.for_checkpoint(name) is not None:
        _check_machine(asked.plan())  # what cannot be served is not fetched
    with told.hub() as reporter:
        bring_public(name, reporter, revision=asked.revision, pipeline=pipeline, wanted=told.wanted)


def check_plan(plan: Plan) -> None:
    """Raise :class:`OmniError` for what keeps a plan from being started on this machine."""
    check_weights(_check_machine(plan))


def _check_machine(plan: Plan) -> Plan:
    check_versions(plan)
    if missing := missing_devices(plan):
        raise PlanError("\n".join(missing))
    return plan


def _bring_demo(plan: Plan, offline: bool, told: Told) -> None:
    # Also when every stage's folder is there: one may need another's (the recogniser the voice activity net).
    if plan.pipeline.weights is not None and any(folder.is_relative_to(demo_folder()) for folder in _folders(plan)):
        with told.demo() as report:
            ensure_demo(told.say, report, offline=offline)


def _folders(plan: Plan) -> list[Path]:
    return [Path(path) for path in dict.fromkeys(stage.model for stage in plan.stages) if path]


def _absence(plan: Plan, absent: list[str]) -> str:
    listed = "\n".join(f"  {path}" for path in absent)
    if plan.checkpoint is None:
        return f"weights are missing:\n{listed}"
    return (
        f"'{plan.checkpoint}' is not in the Hugging Face cache of this machine, or not whole:\n{listed}\n"
        f"Get it with '{PULL_COMMAND} {plan.checkpoint}', or give the folder where it lies in place of the name. "
        "Nothing is fetched offline (--offline, HF_HUB_OFFLINE)."
    )
