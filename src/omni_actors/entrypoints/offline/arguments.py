"""Checks of the Python API's arguments: types, ranges, and names of sections."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from omni_actors.entrypoints.openai.fields import decode
from omni_actors.entrypoints.openai.sampling import sampling_of
from omni_actors.entrypoints.openai.schemas import SamplingFields
from omni_actors.pipelines.deploy.overlay import Override
from omni_actors.pipelines.plan import Plan
from omni_actors.pipelines.sections import check_sections
from omni_actors.pipelines.subgraph import subgraph
from omni_actors.protocol.errors import OmniError, invalid_request
from omni_actors.protocol.params import SECTIONS, Sampling
from omni_actors.protocol.request import MAX_PRIORITY, MediaRef, Request

S = TypeVar("S", bound=msgspec.Struct)

_SHARED = tuple(name for name in Sampling.__struct_fields__ if name in SamplingFields.__struct_fields__)
"""Fields that the section ``sampling`` shares with HTTP bodies; the same ranges apply to both."""


def check_open_arguments(
    model: object,
    overlay: object,
    overrides: object,
    platform: object,
    revision: object,
    offline: object,
    log_level: object,
) -> tuple[str | Plan | None, Path | None]:
    """Check the arguments of ``open_omni`` and ``Omni``, and return ``model`` and ``overlay`` in their usual types.

    Raises:
        TypeError: An argument is of another type; the message names the argument.
    """
    if model is not None and not isinstance(model, str | os.PathLike | Plan):
        raise TypeError(_expected("model", "a name, the path of a folder, a Plan or None", model))
    if overlay is not None and not isinstance(overlay, str | os.PathLike):
        raise TypeError(_expected("overlay", "the path of a deploy file (YAML) or None", overlay))
    if isinstance(overrides, str) or not isinstance(overrides, Sequence):
        raise TypeError(_expected("overrides", "a list of 'path=value' texts", overrides))
    for place, one in enumerate(overrides):
        if not isinstance(one, str | Override):
            raise TypeError(_expected(f"overrides[{place}]", "a 'path=value' text", one))
    for name, value in (("platform", platform), ("revision", revision), ("log_level", log_level)):
        if value is not None and not isinstance(value, str):
            raise TypeError(_expected(name, "a text", value))
    if not isinstance(offline, bool):
        raise TypeError(_expected("offline", "a bool", offline))
    return (
        os.fspath(model) if isinstance(model, os.PathLike) else model,
        None if overlay is None else Path(overlay),
    )


def _expected(name: str, expected: str, given: object) -> str:
    return f"'{name}' takes {expected}, not {type(given).__name__} ({given!r:.60})"


def is_number(value: object) -> bool:
    """Return whether a value is an int or a float (a bool is not, and neither is NaN)."""
    return type(value) in (int, float) and value == value


def section(given: Any, kind: type[S]) -> S:
    """Check the types of a section's fields and return it as its struct.

    Raises:
        OmniError: Status 400, ``param`` is the field.
    """
    try:
        return msgspec.convert(msgspec.to_builtins(given), kind)
    except msgspec.ValidationError as error:
        what, _, path = str(error).partition(" - at ")
        name = path.strip("`").removeprefix("$.")
        where = f"'{name}'" if name else f"Section '{kind.__name__.lower()}'"
        raise invalid_request(f"{where}: {what.replace('`', '')}.", name or None, "invalid_value") from None
    except TypeError as error:  # a value that no section can hold, such as an object of the program's own
        raise invalid_request(f"Section '{kind.__name__.lower()}': {error}.", None, "invalid_value") from None


def sampling_for(plan: Plan, task: str, given: Sampling | None) -> Sampling:
    """Check sampling parameters as HTTP's are checked.

    Raises:
        OmniError: Status 400, ``param`` is the field: a wrong type, a value out of range, a contradiction, an adapter
            that is not served, or a constraint that the stage's engine cannot hold an answer to.
    """
    if given is None:
        return Sampling()
    if not isinstance(given, Sampling):
        raise invalid_request(f"'sampling' takes a Sampling, not {type(given).__name__}.", "sampling", "invalid_value")
    given = section(given, Sampling)
    least = 0 if given.echo else 1
    if given.max_tokens is not None and given.max_tokens < least:
        raise invalid_request(f"'max_tokens' is at least {least}.", "max_tokens", "invalid_value")
    if given.logprobs is not None and not 0 <= given.logprobs <= 20:
        raise invalid_request("'logprobs' is from 0 to 20.", "logprobs", "invalid_value")
    if given.lora is not None and given.lora not in plan.adapters:
        known = ", ".join(plan.adapters) or "none"
        raise invalid_request(f"There is no adapter '{given.lora}'; there are: {known}.", "lora", "invalid_value")
    if given.constraint is not None:
        if sum(value not in (None, False) for value in msgspec.structs.astuple(given.constraint)) != 1:
            raise invalid_request("'constraint' takes exactly one kind of constraint.", "constraint", "invalid_value")
        stage = plan.stage(plan.tasks[task].outputs["text"])
        if not stage.constrains:
            raise invalid_request(
                f"'constraint': the engine of stage '{stage.name}' does not support structured output; vLLM's does.",
                "constraint",
                "unsupported_parameter",
            )
    shared = {name: getattr(given, name) for name in _SHARED if name != "max_tokens"}
    return sampling_of(
        decode(msgspec.json.encode(shared), SamplingFields),
        max_tokens=given.max_tokens,
        logprobs=given.logprobs,
        echo=given.echo,
        constraint=given.constraint,
        lora=given.lora,
    )


def check_request(plan: Plan, request: object) -> Request:
    """Check a request that a program put together by hand, and return it.

    Raises:
        OmniError: Status 400, ``param`` is the field: a field of another type, or one that no stage of this request
            reads.
    """
    if not isinstance(request, Request):
        raise _wrong("request", "a Request", request)
    if not isinstance(request.task, str):
        raise _wrong("task", "a text", request.task)
    for name in ("inputs", "outputs"):
        given = getattr(request, name)
        if not isinstance(given, tuple) or not all(isinstance(it, str) for it in given):
            raise _wrong(name, "a tuple of modalities", given)
    if not isinstance(request.media, tuple) or not all(isinstance(it, MediaRef) for it in request.media):
        raise _wrong("media", "a tuple of what decode() gave", request.media)
    if request.deadline_s is not None and not is_number(request.deadline_s):
        raise _wrong("deadline_s", "a number of seconds", request.deadline_s)
    if type(request.priority) is not int or abs(request.priority) > MAX_PRIORITY:
        raise _wrong("priority", f"a whole number from {-MAX_PRIORITY} to {MAX_PRIORITY}", request.priority)
    for name in ("id", "affinity"):
        if getattr(request, name) is not None and not isinstance(getattr(request, name), str):
            raise _wrong(name, "a text", getattr(request, name))
    if not isinstance(request.tenant, str):
        raise _wrong("tenant", "a text", request.tenant)
    if not isinstance(request.params, Mapping):
        raise _wrong("params", "a mapping of section names to sections", request.params)
    needed = subgraph(plan, request.task, request.inputs, request.outputs)
    check_sections(needed, request.params)
    for name, value in request.params.items():
        if (kind := SECTIONS.get(name)) is not None:
            if not isinstance(value, kind):
                raise _wrong(f"params.{name}", f"a {kind.__name__}", value)
            section(value, kind)
    return request


def _wrong(param: str, expected: str, given: object) -> OmniError:
    return invalid_request(f"'{param}' takes {expected}, not {type(given).__name__}.", param, "invalid_value")
