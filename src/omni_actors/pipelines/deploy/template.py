"""The option ``--chat-template``: a chat template of the operator."""

from __future__ import annotations

import json
from pathlib import Path

from omni_actors.pipelines.declaration import Pipeline
from omni_actors.pipelines.deploy.overlay import Override
from omni_actors.pipelines.plan import PlanError, stage_path

OPTION = "chat_template"
"""The option of a stage that takes the file of a chat template."""


def template_override(family: Pipeline, path: Path) -> Override:
    """Return the override that gives a chat template to the stage that reads chats.

    Args:
        family: The pipeline.
        path: The template's file.

    Raises:
        PlanError: The pipeline has no stage that reads chats by a template, or several.
    """
    stages = [stage.name for stage in family.stages if OPTION in stage.options]
    if len(stages) != 1:
        raise PlanError(f"--chat-template {path}: no stage of pipeline '{family.name}' reads chats by a template")
    value = json.dumps(str(path.expanduser().absolute()))  # JSON is YAML, so any path can be written
    return Override(f"{stage_path(stages[0])}.options.{OPTION}={value}", f"--chat-template {path}")
