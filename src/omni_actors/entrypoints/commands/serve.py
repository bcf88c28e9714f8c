"""The command ``serve``."""

from __future__ import annotations

from dataclasses import fields
from typing import Any, Literal, NoReturn

import click
from rich.console import Console
from rich.table import Table

from omni_actors.entrypoints.commands.completion import complete_model
from omni_actors.entrypoints.commands.deployment import (
    LOG_LEVELS,
    Deployment,
    deployment_options,
    offline_option,
    ready_plan,
)
from omni_actors.entrypoints.commands.keys import checked_keys
from omni_actors.entrypoints.commands.target import check_one_address, host_option
from omni_actors.entrypoints.options import ServerOptions
from omni_actors.entrypoints.server.limits import Limits
from omni_actors.pipelines.nearest import nearest
from omni_actors.telemetry import logs


@click.command("serve", context_settings={"show_default": True})
@click.argument("model", required=False, shell_complete=complete_model)
@host_option(
    "Address or name to listen on; 0.0.0.0 is every IPv4 address of this machine, :: every IPv4 and IPv6 address."
)
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=8000,
    help="TCP port to listen on; 0 takes a free port and prints it.",
)
@click.option("--uds", "unix_path", type=click.Path(), help="Listen on this unix socket instead of host and port.")
@click.option(
    "--ssl-certfile",
    "tls_certificate",
    type=click.Path(exists=True, dir_okay=False),
    help="File of the TLS certificate chain (PEM). With a certificate, the server speaks TLS only.",
)
@click.option(
    "--ssl-keyfile",
    "tls_key",
    type=click.Path(exists=True, dir_okay=False),
    help="File of the certificate's private key, if the key is not in the certificate's file.",
)
@click.option(
    "--server",
    type=click.Choice(("builtin", "hypercorn")),
    default="builtin",
    help="HTTP server to use. hypercorn speaks HTTP/2 too, but has no limits on connections: it is for trusted "
    "clients only.",
)
@click.option(
    "--limit",
    "limits",
    multiple=True,
    metavar="NAME=VALUE",
    help="Limit on connections; '--limit list' shows all limits. Repeatable.",
)
@click.option(
    "--api-key",
    "api_keys",
    multiple=True,
    envvar="OMNI_ACTORS_API_KEY",
    callback=checked_keys,
    help="Key that clients must send. Repeatable.  [env: OMNI_ACTORS_API_KEY]  [default: no key is needed]",
    show_default=False,
)
@click.option(
    "--admin-key",
    "admin_keys",
    multiple=True,
    envvar="OMNI_ACTORS_ADMIN_KEY",
    callback=checked_keys,
    help="Key that opens the admin routes, in addition to the key that the server makes for its own user. Repeatable.  "
    "[env: OMNI_ACTORS_ADMIN_KEY]",
    show_default=False,
)
@click.option(
    "--cors-origin",
    "cors_origins",
    multiple=True,
    help="Browser origin that may call the server. Repeatable; 'none' allows no origin.  "
    "[default: any, without credentials]",
    show_default=False,
)
@click.option(
    "--lora-dir",
    "lora_dirs",
    multiple=True,
    type=click.Path(exists=True, file_okay=False),
    help="Folder from which LoRA adapters may be loaded while the server runs. Repeatable.  [default: none]",
    show_default=False,
)
@click.option("--model-alias", "model_aliases", multiple=True, help="Another name of the model. Repeatable.")
@click.option(
    "--api-key-limit",
    type=click.IntRange(min=1),
    help="Most requests that each API key may have under way (limits.max_per_key).  [default: no limit]",
    show_default=False,
)
@click.option(
    "--deadline",
    type=click.FloatRange(min=0, min_open=True),
    help="Seconds that a request may take (limits.deadline_s).",
)
@click.option(
    "--log-level",
    type=click.Choice(LOG_LEVELS, case_sensitive=False),
    default="info",
    help="Level of the log; 'debug' follows each request through every process.",
)
@offline_option
@deployment_options
@click.pass_context
def serve(
    context: click.Context,
    deployment: Deployment,
    hosts: tuple[str, ...],
    port: int,
    unix_path: str | None,
    tls_certificate: str | None,
    tls_key: str | None,
    server: Literal["builtin", "hypercorn"],
    limits: tuple[str, ...],
    api_keys: tuple[str, ...],
    admin_keys: tuple[str, ...],
    cors_origins: tuple[str, ...],
    lora_dirs: tuple[str, ...],
    model_aliases: tuple[str, ...],
    log_level: str,
) -> None:
    """Serve a model over HTTP, with OpenAI's API.

    MODEL is a pipeline's name, the folder of a model (such as a Hugging Face causal language model), or the public name
    of a checkpoint. A checkpoint that is not in the Hugging Face cache of this machine is fetched into the cache. The
    default is the built-in demo (speech and text in and out, on a CPU), whose weights are fetched once (190 MB).

    \b
    omni-actors serve
    omni-actors serve ./SmolLM2-135M-Instruct --port 9000 --set stages.llm.dtype=bfloat16
    omni-actors serve --deploy two-gpus.yaml --api-key secret

    Ctrl-C (SIGINT), SIGTERM, or closing the terminal (SIGHUP, unless under nohup) drains: requests in flight
    may finish, new ones are refused, then every worker ends.
    """
    logs.configure(log_level)
    if set(api_keys) & set(admin_keys):
        raise click.UsageError(
            "--api-key and --admin-key must be different keys: an API key must not open the admin routes"
        )
    check_one_address(context)
    if tls_key is not None and tls_certificate is None:
        raise click.UsageError("--ssl-keyfile needs --ssl-certfile")
    if limits and server != "builtin":
        raise click.UsageError("--limit is for the builtin server only")
    limited = _limits(limits)
    plan = ready_plan(deployment)
    options = ServerOptions(
        hosts=hosts,
        port=port,
        unix_path=unix_path,
        tls_certificate=tls_certificate,
        tls_key=tls_key,
        server=server,
        limits=limited,
        api_keys=api_keys,
        admin_keys=admin_keys,
        cors_origins=_origins(cors_origins),
        lora_dirs=lora_dirs,
        model_aliases=model_aliases,
        log_level=log_level.upper(),
    )
    from omni_actors.entrypoints.serve import run_server

    run_server(plan, options)


def _limits(given: tuple[str, ...]) -> Limits:
    if "list" in given:
        _list_limits()
    kinds: dict[str, type[int] | type[float]] = {
        field.name: int if field.type == "int" else float for field in fields(Limits)
    }
    values: dict[str, Any] = {}
    for one in given:
        name, _, value = one.partition("=")
        if name not in kinds:
            raise click.UsageError(f"--limit {name}: there is no such limit; {nearest(name, kinds)}")
        try:
            values[name] = kinds[name](value)
        except ValueError:
            raise click.UsageError(f"--limit {name} takes a number, not {value!r}") from None
    try:
        return Limits(**values)
    except ValueError as error:
        raise click.UsageError(f"--limit {error}") from None


def _list_limits() -> NoReturn:
    """Show every limit and exit."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("name", "default", "meaning"):
        table.add_column(heading, no_wrap=heading == "name")
    for field in fields(Limits):
        table.add_row(
            field.name,
            f"{field.default:g}" if isinstance(field.default, float) else str(field.default),
            field.metadata["doc"],
        )
    Console().print(table)
    raise click.exceptions.Exit(0)


def _origins(given: tuple[str, ...]) -> tuple[str, ...]:
    if not given:
        return ServerOptions().cors_origins
    if "none" in given:
        if len(given) > 1:
            raise click.UsageError("--cors-origin none excludes other origins")
        return ()
    return given
