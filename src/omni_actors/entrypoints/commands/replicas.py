"""The commands ``replicas …``: operations on the workers of a running server."""

from __future__ import annotations

import http.client
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from omni_actors.entrypoints.admin.keyfile import find_key, folders
from omni_actors.entrypoints.commands.groups import group
from omni_actors.entrypoints.commands.keys import checked_keys
from omni_actors.entrypoints.commands.target import Target, target_options
from omni_actors.protocol.errors import ErrorInfo, OmniError

PATH = "/admin/replicas"

CONNECT_S = 10.0
"""Seconds for the server's answer to a quick command. Commands that replace workers wait without a limit."""


@dataclass(frozen=True, slots=True)
class Server:
    """The server that the commands talk to, and the form of their output."""

    target: Target
    admin_key: str | None
    """The admin key; ``None`` takes the key that the server has published for its own user, if there is one."""
    as_json: bool

    def ask(self, command: dict[str, Any] | None = None, *, waits: bool = False) -> list[dict[str, Any]]:
        """Send a command and return the replicas afterwards; ``waits`` allows for a long answer. Raises
        :class:`OmniError`."""
        target = self.target
        kind = http.client.HTTPSConnection if target.tls else http.client.HTTPConnection
        connection = kind(target.host, target.port)
        path = target.root + PATH
        headers: dict[str, str] = {}
        try:
            connection.sock = target.connect(CONNECT_S)
            key = self.admin_key or find_key(connection.sock, target.uds)
            if key is not None:
                headers["Authorization"] = f"Bearer {key}"
            if waits:
                connection.sock.settimeout(None)
            if command is None:
                connection.request("GET", path, headers=headers)
            else:
                headers["Content-Type"] = "application/json"
                connection.request("POST", path, json.dumps(command), headers)
            response = connection.getresponse()
            status, body = response.status, response.read()
        except (OSError, http.client.HTTPException) as error:
            raise _failed(f"The server at {target} does not answer: {str(error) or type(error).__name__}.") from None
        finally:
            connection.close()
        if status == 401 and key is None:
            raise _failed(_no_key(target))
        return _replicas(status, body)

    def show(self, found: list[dict[str, Any]]) -> None:
        """Print the replicas."""
        if self.as_json:
            click.echo(json.dumps(found, indent=2))
        else:
            Console().print(table(found))


def server_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add ``--url``, ``--uds``, ``--admin-key`` and ``--json``."""
    for option in (
        click.option("--json", "as_json", is_flag=True, help="Print JSON."),
        click.option(
            "--admin-key",
            envvar="OMNI_ACTORS_ADMIN_KEY",
            callback=checked_keys,
            help="The server's admin key.  [env: OMNI_ACTORS_ADMIN_KEY]  [default: the key in the file that a server "
            "of the same user on the same machine has written]",
        ),
        target_options("http://127.0.0.1:8000", "URL of the server; a /v1 at the end is ignored."),
    ):
        command = option(command)
    return command


_GRACE = click.option(
    "--grace",
    "grace_s",
    type=click.FloatRange(min=0),
    help="Seconds that requests in the old worker get to finish; the rest continues in the new worker.  "
    "[default: limits.drain_s]",
)


@group("replicas", context_settings={"max_content_width": 110})
def replicas_group() -> None:
    """List the workers of a server, drain them, replace them, or restart a stage without a failed request.

    \b
    omni-actors replicas list
    omni-actors replicas restart llm
    omni-actors replicas restart --all --grace 60
    omni-actors replicas drain llm 1
    omni-actors replicas sleep llm 1

    The commands find the key of a server that the same user runs on this machine. Another server needs --admin-key.
    """


@replicas_group.command("list")
@server_options
def list_command(**server: Any) -> None:
    """List every replica: its state, worker and requests, and how its last worker ended."""
    it = Server(**server)
    it.show(it.ask())


def _one(action: str, doc: str) -> click.Command:
    """Make a quick command for one replica."""

    @click.command(action, help=doc)
    @click.argument("stage")
    @click.argument("index", type=click.IntRange(min=0))
    @server_options
    def command(stage: str, index: int, **server: Any) -> None:
        it = Server(**server)
        it.show(it.ask({"action": action, "stage": stage, "index": index}))

    return command


replicas_group.add_command(
    _one("drain", "Let replica INDEX of STAGE take no new requests; its current requests finish.")
)
replicas_group.add_command(_one("undrain", "Let replica INDEX of STAGE take requests again after a drain."))
replicas_group.add_command(
    _one("kill", "Kill the worker of replica INDEX of STAGE at once; another worker is started.")
)
replicas_group.add_command(_one("wake", "Wake replica INDEX of STAGE after a sleep, and let it take requests again."))


@replicas_group.command("sleep")
@click.argument("stage")
@click.argument("index", type=click.IntRange(min=0))
@click.option(
    "--level", type=click.IntRange(0, 1), default=0, show_default=True, help="Level 1 also frees the memory of the GPU."
)
@server_options
def sleep_command(stage: str, index: int, level: int, **server: Any) -> None:
    """Pause replica INDEX of STAGE until 'wake'; only vLLM's engine supports it."""
    it = Server(**server)
    it.show(it.ask({"action": "sleep", "stage": stage, "index": index, "level": level}, waits=True))


@replicas_group.command("replace")
@click.argument("stage")
@click.argument("index", type=click.IntRange(min=0))
@_GRACE
@server_options
def replace_command(stage: str, index: int, grace_s: float | None, **server: Any) -> None:
    """Give replica INDEX of STAGE a new worker, and wait until the new worker is ready."""
    it = Server(**server)
    command = {"action": "replace", "stage": stage, "index": index}
    it.show(it.ask(command if grace_s is None else {**command, "grace_s": grace_s}, waits=True))


@replicas_group.command("restart")
@click.argument("stage", required=False)
@click.option("--all", "everything", is_flag=True, help="Restart every stage.")
@_GRACE
@server_options
def restart_command(stage: str | None, everything: bool, grace_s: float | None, **server: Any) -> None:
    """Replace all replicas of STAGE, one after the other.

    Each replica stops taking requests, finishes its current requests and gets a new worker. The next replica follows
    when the new worker is ready. Requests that find no replica meanwhile wait.
    """
    if (stage is None) is not everything:
        raise click.UsageError("give a STAGE, or --all")
    it = Server(**server)
    command = {"action": "restart", "stage": stage}
    it.show(it.ask(command if grace_s is None else {**command, "grace_s": grace_s}, waits=True))


def table(found: list[dict[str, Any]]) -> Table:
    """Return a table with a row per replica."""
    made = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("stage", "#", "state", "pid", "on"):
        made.add_column(name, no_wrap=True)
    for name in ("requests", "served", "up", "restarts"):
        made.add_column(name, justify="right", no_wrap=True)
    made.add_column("last end", overflow="fold")
    for it in found:
        state = it["state"] if it["next_s"] is None else f"{it['state']} (ready in {it['next_s']:.0f} s)"
        end, on = it["last_end"], _lines(dict.fromkeys(it["devices"]))
        made.add_row(
            *(Text(str(cell)) for cell in (it["stage"], it["index"], state, _lines(it["ranks"]), on)),
            *(str(it[name]) for name in ("requests", "served")),
            "–" if it["uptime_s"] is None else _span(it["uptime_s"]),
            str(it["restarts"]),
            Text("" if end is None else f"{end['cause']}, {_span(end['ago_s'])} ago: {end['message']}"),
        )
    return made


def _lines(values: Iterable[object]) -> str:
    return "\n".join(map(str, values)) or "–"


def _span(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def _no_key(target: Target) -> str:
    places = " and ".join(map(str, folders()))
    return (
        f"The server at {target} asks for its admin key, and none was found for it in {places}. Run this as the user "
        "who serves, on the same machine (with the same OMNI_ACTORS_CACHE, if it has one), or give the key of "
        "'serve --admin-key' by --admin-key or OMNI_ACTORS_ADMIN_KEY."
    )


def _replicas(status: int, body: bytes) -> list[dict[str, Any]]:
    try:
        answer = json.loads(body)
        if status == 200:
            found = answer["replicas"]
            assert isinstance(found, list)
            return found
        message = str(answer["error"]["message"])
    except (ValueError, LookupError, TypeError, AssertionError):
        message = f"The server answered {status} in an unknown form; is it of this version?"
    raise _failed(message)


def _failed(message: str) -> OmniError:
    return OmniError(ErrorInfo(message=message, code="command_failed"))
