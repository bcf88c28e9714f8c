"""``/admin/replicas``: the state of the replicas, and commands to them."""

from __future__ import annotations

from typing import Literal, get_args

import msgspec

from omni_actors.entrypoints.http import Call, Reply
from omni_actors.entrypoints.openai import fields
from omni_actors.entrypoints.openai.errors import http_error
from omni_actors.entrypoints.services import Services
from omni_actors.protocol.errors import OmniError, invalid_request, too_large
from omni_actors.stages.control import ReplicaStatus

MAX_COMMAND = 64 << 10
"""Most bytes of a command's body."""


Action = Literal["drain", "undrain", "replace", "kill", "restart", "sleep", "wake"]
ACTIONS: tuple[Action, ...] = get_args(Action)


class Command(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A command to replicas.

    ``drain``: take no new requests, until ``undrain``. ``replace``: drain, then start another worker. ``kill``: end the
    worker now. ``restart``: replace all replicas of a stage (without ``stage``: of every stage), one at a time.
    ``grace_s``: seconds for requests in a replica to finish before they continue in another worker. ``sleep``: take no
    new requests and stand still, with a ``level`` of 1 without the device's memory, until ``wake`` (for engines that
    can).
    """

    action: Action
    stage: str | None = None
    index: int | None = None
    grace_s: float | None = None
    level: Literal[0, 1] | None = None


async def listed(services: Services, call: Call) -> Reply:
    """List every replica with its state."""
    return _listed(services.orchestrator.control.status())


async def command(services: Services, call: Call) -> Reply:
    """Carry out a command, and answer with the state of the replicas afterwards. ``replace`` and ``restart`` answer
    when the new workers are ready; a client that leaves before cancels the steps that have not begun."""
    it = await _read(call)
    control = services.orchestrator.control
    if it.action == "restart":
        return _listed(await control.restart(it.stage, it.grace_s))
    if it.stage is None or it.index is None:
        name = "stage" if it.stage is None else "index"
        raise invalid_request(f"'{it.action}' needs '{name}': it is for one replica.", name)
    if it.action == "replace":
        return _listed([await control.replace(it.stage, it.index, it.grace_s)])
    if it.action == "sleep":
        return _listed([await control.sleep(it.stage, it.index, it.level or 0)])
    if it.action == "wake":
        return _listed([await control.wake(it.stage, it.index)])
    act = {"drain": control.drain, "undrain": control.undrain, "kill": control.kill}[it.action]
    return _listed([act(it.stage, it.index)])


async def _read(call: Call) -> Command:
    """Read a command. Raises 400, 413 and 415 for a body that is no command."""
    if call.content_type != "application/json":
        raise OmniError(http_error(415, "A command is JSON: send it with 'Content-Type: application/json'."))
    body, whole = await call.read(MAX_COMMAND)
    if not whole:
        raise too_large(f"A command has at most {MAX_COMMAND} bytes.")
    try:
        it = fields.decode(body, Command)
    except OmniError as error:
        if error.info.param != "action":
            raise
        raise invalid_request(f"{error.info.message} The actions are: {', '.join(ACTIONS)}.", "action") from None
    if it.action == "restart" and it.index is not None:
        raise invalid_request("'restart' is for all replicas of a stage: leave 'index' out, or use 'replace'.", "index")
    if it.level is not None and it.action != "sleep":
        raise invalid_request(f"'level' belongs to 'sleep': leave it out of '{it.action}'.", "level")
    if it.grace_s is not None:
        if it.action not in ("replace", "restart"):
            message = f"'grace_s' belongs to 'replace' and 'restart': leave it out of '{it.action}'."
            raise invalid_request(message, "grace_s")
        if not 0 <= it.grace_s < float("inf"):
            raise invalid_request("'grace_s' is a number of seconds, 0 or more.", "grace_s")
    return it


def _listed(found: list[ReplicaStatus]) -> Reply:
    return Reply(msgspec.json.encode({"replicas": found}))
