"""The command ``explain``."""

from __future__ import annotations

import json

import click
from rich.console import Console

from omni_actors.entrypoints.commands.completion import complete_model
from omni_actors.entrypoints.commands.deployment import Deployment, deployment_options
from omni_actors.pipelines import explain as explanation
from omni_actors.pipelines.factory import settings_of
from omni_actors.pipelines.planning.missing import missing_devices

PIPED_WIDTH = 160


@click.command("explain")
@click.argument("model", required=False, shell_complete=complete_model)
@click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")
@click.option("--keys", is_flag=True, help="List every setting that a deploy file or --set may have.")
@deployment_options
def explain(deployment: Deployment, as_json: bool, keys: bool) -> None:
    """Show the plan of a deployment, and the origin of each value.

    MODEL is a pipeline's name, a model's folder or a checkpoint's public name; the default is the demo. The command
    takes the options of 'serve' that describe the deployment. It starts nothing, needs no weights and fetches none.

    \b
    omni-actors explain --deploy two-gpus.yaml
    omni-actors explain organisation/checkpoint
    omni-actors explain ./my-model --set stages.llm.replicas=2 --json
    omni-actors explain --keys
    """
    plan = deployment.plan()
    console = Console()
    if not console.is_terminal:
        console = Console(width=PIPED_WIDTH)
    if keys and as_json:
        click.echo(json.dumps(explanation.settings_builtins(settings_of(plan)), indent=2))
    elif keys:
        console.print(explanation.settings_text(settings_of(plan)))
    elif as_json:
        click.echo(json.dumps(explanation.as_builtins(plan), indent=2))
    else:
        console.print(explanation.as_text(plan))
        for reason in missing_devices(plan)[:1]:
            click.echo(f"'serve' would refuse this here: {reason}", err=True)
