"""The part that ``serve``, ``run`` and ``explain`` share: options that describe a deployment, and checks before its
start."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from omni_actors.entrypoints.weights import DeploymentSpec, FetchProgress, ready_to_start
from omni_actors.pipelines.deploy.overlay import Override
from omni_actors.pipelines.plan import Plan, PlanError

LOG_LEVELS = ("debug", "info", "warning", "error")


@dataclass(frozen=True, slots=True)
class Deployment:
    """A deployment as an operator describes it."""

    model: str | None
    deploy: Path | None
    settings: tuple[str, ...]
    platform: str | None
    pipeline: str | None
    served_model_name: str | None
    deadline: float | None = None
    api_key_limit: int | None = None
    engines: tuple[str, ...] = ()
    """Engines of stages, each as ``STAGE=KIND``."""
    chat_template: Path | None = None
    revision: str | None = None
    offline: bool = False
    """Whether fetching is forbidden."""

    def plan(self) -> Plan:
        """Resolve the plan. Raises :class:`~omni_actors.protocol.errors.OmniError`."""
        return self.spec().plan()

    def spec(self) -> DeploymentSpec:
        """Return the deployment in the library's form, with options of the command line among the settings."""
        overrides = [*map(Override.of, self.settings), *self._engines()]
        if self.deadline is not None:
            overrides.append(Override(f"limits.deadline_s={self.deadline}", f"--deadline {self.deadline:g}"))
        if self.api_key_limit is not None:
            overrides.append(
                Override(f"limits.max_per_key={self.api_key_limit}", f"--api-key-limit {self.api_key_limit}")
            )
        return DeploymentSpec(
            self.model,
            self.deploy,
            overrides,
            self.platform,
            self.served_model_name,
            self.pipeline,
            self.revision,
            self.offline,
            self.chat_template,
        )

    def _engines(self) -> Iterator[Override]:
        for one in self.engines:
            stage, _, kind = one.partition("=")
            if not stage or not kind:
                raise click.UsageError(f"--engine {one}: takes STAGE=KIND, such as llm=torch")
            yield Override(f"stages.{stage}.engine={kind}", f"--engine {one}")


offline_option = click.option(
    "--offline", is_flag=True, help="Fetch no weights.  [env: HF_HUB_OFFLINE for those of the hub]"
)


def deployment_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that make a :class:`Deployment`, which is passed on as the first argument. The command adds
    ``model``."""

    @click.option("--deploy", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="Deploy file (YAML).")
    @click.option(
        "--set",
        "settings",
        multiple=True,
        metavar="PATH=VALUE",
        help="One setting, such as stages.llm.replicas=2; it overrules the deploy file. 'explain --keys' lists all "
        "settings. Repeatable.",
    )
    @click.option(
        "--platform",
        help="Platform of every stage whose settings name no platform.  [env: OMNI_ACTORS_PLATFORM]  "
        "[default: the platform that is found]",
    )
    @click.option(
        "--engine",
        "engines",
        multiple=True,
        metavar="STAGE=KIND",
        help="Engine of a stage: auto, torch, vllm, an engine kind, or module:Class. Repeatable.",
    )
    @click.option("--pipeline", help="Pipeline that serves the model.  [default: by the model's architecture]")
    @click.option(
        "--chat-template",
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        metavar="FILE",
        help="Chat template (Jinja) to use instead of the model's own.",
    )
    @click.option("--served-model-name", metavar="NAME", help="Name of the model for clients.")
    @click.option("--revision", help="Branch, tag or commit of a public checkpoint.  [default: main]")
    @functools.wraps(command)
    def wrapped(
        model: str | None,
        deploy: Path | None,
        settings: tuple[str, ...],
        platform: str | None,
        pipeline: str | None,
        served_model_name: str | None,
        engines: tuple[str, ...],
        chat_template: Path | None,
        revision: str | None,
        deadline: float | None = None,
        api_key_limit: int | None = None,
        offline: bool = False,
        **others: Any,
    ) -> Any:
        deployment = Deployment(
            model,
            deploy,
            settings,
            platform,
            pipeline,
            served_model_name,
            deadline,
            api_key_limit,
            engines,
            chat_template,
            revision,
            offline,
        )
        return command(deployment, **others)

    return wrapped


def ready_plan(deployment: Deployment) -> Plan:
    """Return a plan whose packages, devices and weights are present. Missing weights are fetched, with a message.
    Raises for anything that prevents the start."""
    from omni_actors.models.weights.cli import progress_reporter
    from omni_actors.models.weights.hub.progress import download_reporter

    def say(text: str) -> None:
        click.echo(text, err=True)

    plan = ready_to_start(deployment.spec(), FetchProgress(say, progress_reporter, lambda: download_reporter(say)))
    _check_folder(plan)
    return plan


def _check_folder(plan: Plan) -> None:
    """Raise if the pipeline serves a model's folder and only the pipeline's name was given."""
    family = plan.pipeline
    serves_folders = family.architectures or family.checkpoints or family.describe
    if serves_folders and any(stage.model is None for stage in plan.stages if stage is not plan.media):
        known = f" ({', '.join(family.checkpoints)})" if family.checkpoints else ""
        raise PlanError(
            f"'{plan.name}' is a pipeline without weights of its own: name a folder that it serves, or the public name "
            f"of a checkpoint{known}"
        )
