"""Constraints on the form of an answer: JSON, a schema, a regular expression, a choice, a grammar."""

from __future__ import annotations

from typing import Any

import msgspec

from omni_actors.entrypoints.openai.schemas import ResponseFormat, StructuredOutputs
from omni_actors.pipelines.plan import Plan
from omni_actors.protocol.errors import invalid_request
from omni_actors.protocol.params import Constraint


def constraint_of(
    plan: Plan, task: str, format: ResponseFormat | None, structured: StructuredOutputs | None
) -> Constraint | None:
    """Return the ``constraint`` of the section ``sampling``. Raises 400 for an impossible form, for two forms at once,
    and if the engine of the stage that writes the text cannot follow a constraint."""
    formatted = format is not None and format.type != "text"
    if not formatted and structured is None:
        return None
    param = "response_format" if formatted else "structured_outputs"
    stage = plan.stage(plan.tasks[task].outputs["text"])
    if not stage.constrains:
        raise invalid_request(
            f"'{param}': the engine of stage '{stage.name}' does not support structured output; vLLM's does.",
            param,
            "unsupported_parameter",
        )
    if not formatted:
        assert structured is not None
        return _structured(structured)
    if structured is not None:
        raise invalid_request("'response_format' and 'structured_outputs' exclude each other.", "structured_outputs")
    assert format is not None
    if format.type == "json_object":
        return Constraint(json_object=True)
    if format.json_schema is None or format.json_schema.schema is None:
        raise invalid_request("'json_schema' needs a 'schema'.", "response_format.json_schema")
    return Constraint(json=_schema(format.json_schema.schema, "response_format.json_schema.schema"))


def _structured(given: StructuredOutputs) -> Constraint:
    found = Constraint(
        json=None if given.json is None else _schema(given.json, "structured_outputs.json"),
        json_object=bool(given.json_object),
        regex=given.regex,
        choice=given.choice,
        grammar=given.grammar,
    )
    if sum(value not in (None, False) for value in msgspec.structs.astuple(found)) != 1:
        raise invalid_request("'structured_outputs' takes exactly one kind of constraint.", "structured_outputs")
    return found


def _schema(given: dict[str, Any] | str, param: str) -> str:
    if isinstance(given, str):
        return given
    try:
        return msgspec.json.encode(given).decode()
    except (OverflowError, RecursionError) as error:
        raise invalid_request(f"'{param}': {error}.", param) from None
