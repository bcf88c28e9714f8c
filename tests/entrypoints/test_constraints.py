"""What a request may say of the form of its answer, and what of it reaches the stage that writes it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from omni_actors.entrypoints.openai.constraints import constraint_of
from omni_actors.entrypoints.openai.fields import decode
from omni_actors.entrypoints.openai.schemas import ChatRequest
from omni_actors.pipelines.factory import resolve
from omni_actors.pipelines.plan import Plan
from omni_actors.protocol.errors import OmniError
from omni_actors.protocol.params import Constraint

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}


@pytest.fixture(scope="module")
def plan() -> Plan:
    """As if vLLM computed the stage that writes text."""
    made = resolve("causal-lm", platform="cpu")
    stages = tuple(replace(it, declaration=replace(it.declaration, engine="vllm")) for it in made.stages)
    return replace(made, stages=stages)


def said(plan: Plan, **fields: Any) -> Constraint | None:
    import json

    body = decode(json.dumps({"messages": [{"role": "user", "content": "x"}], **fields}).encode(), ChatRequest)
    return constraint_of(plan, "chat", body.response_format, body.structured_outputs)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, None),
        ({"response_format": {"type": "text"}}, None),
        ({"response_format": {"type": "json_object"}}, Constraint(json_object=True)),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "object"}}}},
            Constraint(json='{"type":"object"}'),
        ),
        ({"structured_outputs": {"json": '{"type": "object"}'}}, Constraint(json='{"type": "object"}')),
        ({"structured_outputs": {"json": {"type": "null"}}}, Constraint(json='{"type":"null"}')),
        ({"structured_outputs": {"choice": ["yes", "no"]}}, Constraint(choice=["yes", "no"])),
        ({"structured_outputs": {"regex": "a+"}}, Constraint(regex="a+")),
        ({"structured_outputs": {"grammar": "root ::= [a]"}}, Constraint(grammar="root ::= [a]")),
    ],
)
def test_each_form_is_one_constraint(plan: Plan, fields: dict[str, Any], expected: Constraint | None) -> None:
    assert said(plan, **fields) == expected


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "a"}}}, "response_format.json_schema"),
        ({"structured_outputs": {}}, "structured_outputs"),
        ({"structured_outputs": {"regex": "a", "choice": ["b"]}}, "structured_outputs"),
        (
            {"response_format": {"type": "json_object"}, "structured_outputs": {"regex": "a"}},
            "structured_outputs",
        ),
    ],
)
def test_what_cannot_be_is_refused_by_its_name(plan: Plan, fields: dict[str, Any], param: str) -> None:
    with pytest.raises(OmniError) as refused:
        said(plan, **fields)
    assert (refused.value.info.status, refused.value.info.param) == (400, param)


def test_an_engine_that_cannot_hold_an_answer_to_a_form_refuses_it() -> None:
    with pytest.raises(OmniError, match="does not support structured output"):
        said(resolve("causal-lm", platform="cpu"), response_format={"type": "json_object"})
