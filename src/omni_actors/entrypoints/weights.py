"""The weights of a deployment: missing ones are fetched, and all are checked before the stages start."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path

from omni_actors.models.weights.cache import demo_folder, folder_of, is_there
from omni_actors.models.weights.catalogue import ALL, DEMO, Weights, named
from omni_actors.models.weights.hub.companions import companions_of
from omni_actors.models.weights.hub.download import Reporter as HubReporter
from omni_actors.models.weights.hub.progress import Lines
from omni_actors.models.weights.hub.pull import bring_companions, bring_public, companions_lacking
from omni_actors.models.weights.hub.records import is_whole, unfetched
from omni_actors.models.weights.pull import Reporter as DemoReporter
from omni_actors.models.weights.pull import ensure, silent
from omni_actors.pipelines.deploy.overlay import Override, peek_overlay
from omni_actors.pipelines.factory import resolve
from omni_actors.pipelines.plan import Plan, PlanError
from omni_actors.pipelines.planning.choose import public_name
from omni_actors.pipelines.planning.missing import damaged_weights, missing_devices, missing_weights
from omni_actors.pipelines.planning.versions import check_versions
from omni_actors.pipelines.registry import Registry
from omni_actors.pipelines.weights.hub import is_offline, snapshot_folder
from omni_actors.pipelines.weights.intact import PULL_COMMAND, described

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class DeploymentSpec:
    """A deployment to start, with the arguments of :func:`~omni_actors.pipelines.factory.resolve`. With ``offline``,
    nothing is fetched."""

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
        """Resolve the deployment. Raises :class:`OmniError`."""
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
class FetchProgress:
    """The operator's view of fetches. ``wanted`` is called now and then during a fetch, and raises to end it."""

    say: Callable[[str], None]
    demo: Callable[[], AbstractContextManager[DemoReporter]]
    hub: Callable[[], AbstractContextManager[HubReporter]]
    wanted: Callable[[], None] = lambda: None


def by_log(wanted: Callable[[], None]) -> FetchProgress:
    """Return progress reports that go to the log."""

    @contextmanager
    def demo() -> Iterator[DemoReporter]:
        yield silent

    @contextmanager
    def hub() -> Iterator[HubReporter]:
        yield Lines(log.info)

    return FetchProgress(log.info, demo, hub, wanted)


def ready_to_start(spec: DeploymentSpec, progress: FetchProgress) -> Plan:
    """Return the plan of a deployment whose packages, devices and weights are present; missing weights are fetched.

    Blocks, possibly for hours. Raises :class:`OmniError` for anything that prevents the start; obstacles that can be
    found before fetching are found before.
    """
    if not spec.offline and not is_offline():
        _bring_checkpoint(spec, progress)
    plan = _check_machine(spec.plan())
    for note in plan.notes:
        log.info(note)
    _bring_demo(plan, spec.offline, progress)
    if not spec.offline and not is_offline():
        lacking = [folder for folder in _folders(plan) if companions_lacking(folder)]
        for folder in lacking:
            with progress.hub() as reporter:
                bring_companions(folder, reporter, progress.wanted)
    check_weights(plan)
    return plan


def check_weights(plan: Plan) -> None:
    """Raise :class:`PlanError` if weights of the plan are missing or damaged, as far as a quick check tells."""
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


def _bring_checkpoint(spec: DeploymentSpec, progress: FetchProgress) -> None:
    registry = Registry.installed()
    early = {one.path: one.value for one in peek_overlay(spec.overlay, "model", "pipeline")} if spec.overlay else {}
    name = public_name(spec.model, early, registry)
    if name is None or is_whole(snapshot_folder(name, revision=spec.revision)):
        return
    pipeline = spec.pipeline or early.get("pipeline")
    if pipeline or registry.for_checkpoint(name) is not None:
        _check_machine(spec.plan())  # nothing is fetched for a plan that cannot start
    with progress.hub() as reporter:
        bring_public(name, reporter, revision=spec.revision, pipeline=pipeline, wanted=progress.wanted)


def check_plan(plan: Plan) -> None:
    """Raise :class:`OmniError` for anything that prevents a plan from starting on this machine."""
    check_weights(_check_machine(plan))


def _check_machine(plan: Plan) -> Plan:
    check_versions(plan)
    if missing := missing_devices(plan):
        raise PlanError("\n".join(missing))
    return plan


def _bring_demo(plan: Plan, offline: bool, progress: FetchProgress) -> None:
    """Fetch the weights of this package's cache that the plan's pipeline needs."""
    if plan.pipeline.weights is None or not any(folder.is_relative_to(demo_folder()) for folder in _folders(plan)):
        return
    with progress.demo() as report:
        ensure(_needed(plan), progress.say, report, offline=offline)


def _needed(plan: Plan) -> list[Weights]:
    """Return the weights that are fetched for a plan. Raises :class:`PlanError` for weights that have to be trained
    first: training takes minutes, and is done when it is asked for."""
    folders = _folders(plan)
    used = [weights for weights in ALL if folder_of(weights) in folders]
    for weights in used:
        if weights.trained and not is_there(weights, demo_folder()):
            raise PlanError(
                f"the weights '{weights.name}' have not been trained on this machine, which takes minutes of one core. "
                f"Run: {PULL_COMMAND} {' '.join((*weights.after, weights.name))}"
            )
    # All of the demo if a part of it is used: a stage may need another one's (the voice activity net, say).
    whole = list(DEMO) if any(weights in DEMO for weights in used) else []
    beside = [weights for weights in used if weights not in DEMO and not weights.trained]
    return [*(whole or [named(name) for weights in used for name in weights.after]), *beside]


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
