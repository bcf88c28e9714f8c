"""A chat template of the operator's own."""

from __future__ import annotations

import json
from pathlib import Path

from omni_actors.pipelines.declaration import Pipeline
from omni_actors.pipelines.deploy.overlay import Override
from omni_actors.pipelines.plan import PlanError, stage_path

OPTION = "chat_template"
"""The option of a stage that reads chats by a template: the template's file."""


def template_override(family: Pipeline, path: Path) -> Override:
    """The setting by which the stage that reads chats takes its template from this file. Raises :class:`PlanError` for
    a pipeline without such a stage."""
    stages = [stage.name for stage in family.stages if OPTION in stage.options]
    if len(stages) != 1:
        raise PlanError(f"--chat-template {path}: no stage of pipeline '{family.name}' reads chats by a template")
    value = json.dumps(str(path.expanduser().absolute()))  # YAML too, whatever the path is made of
    return Override(f"{stage_path(stages[0])}.options.{OPTION}={value}", f"--chat-template {path}")
