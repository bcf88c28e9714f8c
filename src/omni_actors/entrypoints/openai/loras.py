"""``POST /v1/load_lora_adapter`` and ``/v1/unload_lora_adapter``, as vLLM has them: for operators alone."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from omni_actors.entrypoints.admin.replicas import MAX_COMMAND
from omni_actors.entrypoints.http import Call, Reply
from omni_actors.entrypoints.openai.errors import http_error
from omni_actors.entrypoints.openai.fields import NoOp, Refused, decode
from omni_actors.entrypoints.services import Services
from omni_actors.protocol.errors import OmniError, invalid_request, too_large

_TEXT = (("content-type", "text/plain; charset=utf-8"),)

_NAME = re.compile(r"[\w.:/-]{1,200}")

_IDS = "Adapters are told apart by their names."


class LoadLora(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """The body of ``POST /v1/load_lora_adapter``. ``load_inplace`` replaces an adapter of the same name."""

    lora_name: str
    lora_path: Annotated[str, Meta(min_length=1, max_length=4096)]
    load_inplace: bool = False
    base_model_name: str | None = None
    is_3d_lora_weight: Annotated[Any, Refused("the adapters are those of pictures.", (False,))] = None


class UnloadLora(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """The body of ``POST /v1/unload_lora_adapter``."""

    lora_name: str
    lora_int_id: Annotated[Any, NoOp(_IDS)] = None


async def load(services: Services, call: Call) -> Reply:
    """Load a LoRA adapter from one of the folders that the operator has allowed."""
    body = decode(await _read(call), LoadLora)
    if _NAME.fullmatch(body.lora_name) is None:
        message = "A name has 1 to 200 letters, digits, '.', ':', '/', '-' and '_'."
        raise invalid_request(message, "lora_name", "invalid_value")
    if body.base_model_name is not None:
        services.model(body.base_model_name, adapted=False)
    if body.lora_name in (services.plan.served_model_name, *services.options.model_aliases, *services.planned_adapters):
        raise invalid_request(f"The name '{body.lora_name}' is taken.", "lora_name", "invalid_value")
    path = allowed(body.lora_path, services.options.lora_dirs)
    await services.orchestrator.adapters.load(body.lora_name, str(path), replace=body.load_inplace)
    return Reply(f"Success: LoRA adapter '{body.lora_name}' added successfully.".encode(), _TEXT)


async def unload(services: Services, call: Call) -> Reply:
    """Unload a LoRA adapter that was loaded while the server ran."""
    body = decode(await _read(call), UnloadLora)
    await services.orchestrator.adapters.unload(body.lora_name)
    return Reply(f"Success: LoRA adapter '{body.lora_name}' removed successfully.".encode(), _TEXT)


def allowed(given: str, folders: tuple[str, ...]) -> Path:
    """Return the path of an adapter's weights, without links.

    Args:
        given: The path that the request names; one that is not absolute lies below one of the folders.
        folders: The folders from which adapters may be loaded.

    Raises:
        OmniError: 400 for a server without such folders, and 404 for a path that is not below them: what lies outside
            is not told apart from what does not exist.
    """
    if not folders:
        message = "This server loads no LoRA adapters while it runs: start it with --lora-dir FOLDER."
        raise invalid_request(message, "lora_path", "unsupported_parameter")
    if "\0" in given:
        raise invalid_request("'lora_path' is no path.", "lora_path", "invalid_value")
    roots = [Path(folder).resolve() for folder in folders]
    for root in roots:
        try:
            path = (root / given).resolve()
            if path.is_relative_to(root) and path.exists():
                return path
        except OSError:  # a name that is too long
            continue
    raise OmniError(
        http_error(
            404,
            f"There is no '{given[:200]}' below the folders of --lora-dir.",
            code="lora_not_found",
            param="lora_path",
        )
    )


async def _read(call: Call) -> bytes:
    """Read a command. Raises 413 and 415 for a body that is no command."""
    if call.content_type != "application/json":
        raise OmniError(http_error(415, "A command is JSON: send it with 'Content-Type: application/json'."))
    body, whole = await call.read(MAX_COMMAND)
    if not whole:
        raise too_large(f"A command has at most {MAX_COMMAND} bytes.")
    return body
