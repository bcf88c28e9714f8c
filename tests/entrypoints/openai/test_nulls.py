"""A null field counts as absent in the objects of our own schemas, and stays a null in what is passed through."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import Any

import hypothesis.strategies as st
import msgspec
import pytest
from hypothesis import given, settings

from omni_actors.entrypoints.openai.fields import decode
from omni_actors.entrypoints.openai.nulls import MAX_OBJECTS
from omni_actors.entrypoints.openai.schemas import ChatRequest, CompletionRequest
from omni_actors.entrypoints.openai.speech_request import SpeechRequest
from omni_actors.entrypoints.openai.transcriptions import TranscriptionRequest, TranslationRequest
from omni_actors.protocol.errors import OmniError

BODIES: dict[type[msgspec.Struct], dict[str, Any]] = {
    ChatRequest: {
        "model": "m",
        "messages": [
            {"role": "system", "content": [{"type": "text", "text": "null"}]},
            {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "audio", "index": 0}]},
            {"role": "assistant", "audio": {"id": "audio_1"}},
            {"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]},
            {"role": "tool"},
        ],
        "stream": True,
        "stream_options": {"include_usage": True},
        "audio": {"format": "wav", "voice": {"id": "heart"}},
        "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": {"const": None}}},
        "mm_processor_kwargs": {"fps": 2},
        "structured_outputs": {"json": {"const": None}},
    },
    CompletionRequest: {
        "prompt": ["a"],
        "stream_options": {"include_usage": True},
        "structured_outputs": {"regex": "a"},
    },
    SpeechRequest: {"input": "a", "voice": {"id": "heart"}, "ref_audio": {"type": "audio", "index": 0}},
    TranscriptionRequest: {"input_audio": {"type": "audio", "index": 0}, "timestamp_granularities": ["word"]},
    TranslationRequest: {"input_audio": {"type": "audio", "index": 0}},
}

OWN = {"model_parameters", "vllm_xargs"}

DATA = {
    ChatRequest: {
        *OWN,
        *("chat_template_kwargs", "logit_bias", "metadata", "prediction", "prompt_cache_options"),
        *("tools", "tool_choice", "functions", "function_call", "moderation", "reasoning_effort", "verbosity"),
        *("web_search_options", "response_format.json_schema.schema", "structured_outputs.json"),
        *(
            "messages.annotations",
            "messages.function_call",
            "messages.images",
            "messages.parsed",
            "messages.tool_calls",
        ),
        *("messages.audio.data", "messages.audio.expires_at", "messages.audio.transcript"),
    },
    CompletionRequest: {*OWN, "best_of", "suffix", "logit_bias", "structured_outputs.json"},
    SpeechRequest: {*OWN, "extra_params", "sample_rate", "speaker_embedding", "word_timestamps"},
    TranscriptionRequest: {"chunking_strategy", "vad_filter"},
    TranslationRequest: set(),
}
"""The fields of each body whose values are passed through, or refused, as they are."""

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
)


def objects(node: Any) -> Iterator[dict[str, Any]]:
    """Every object of ours in a body."""
    if isinstance(node, dict):
        yield node
        for name, value in node.items():
            if name not in ("schema", "json"):
                yield from objects(value)
    elif isinstance(node, list):
        for item in node:
            yield from objects(item)


@given(st.data())
def test_a_null_field_of_any_name_anywhere_changes_nothing(data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from(list(BODIES)))
    body = copy.deepcopy(BODIES[kind])
    plain = decode(json.dumps(body).encode(), kind)
    names = st.text() | st.sampled_from([*kind.__struct_encode_fields__, "tool_calls", "reasoning_content", "parsed"])
    for place in data.draw(st.sets(st.integers(0, len(list(objects(body))) - 1), min_size=1, max_size=3)):
        one = list(objects(body))[place]
        for name in data.draw(st.lists(names, min_size=1, max_size=3)):
            one.setdefault(name, None)
    indent = data.draw(st.sampled_from([None, 1]))
    assert decode(json.dumps(body, indent=indent, ensure_ascii=data.draw(st.booleans())).encode(), kind) == plain


@settings(max_examples=50)
@given(st.dictionaries(st.text(), JSON, max_size=3))
def test_what_is_passed_through_keeps_its_nulls(value: dict[str, Any]) -> None:
    body: dict[str, Any] = {"messages": [{"role": "user", "content": "a", "name": None}], "chat_template_kwargs": value}
    body |= {"structured_outputs": {"json": value, "regex": None}, "prediction": value, "speaker": None}
    body["response_format"] = {"type": "json_schema", "json_schema": {"name": "n", "schema": value, "strict": None}}
    body["metadata"] = {"a": None}
    made = decode(json.dumps(body).encode(), ChatRequest)
    assert made.chat_template_kwargs == made.prediction == value
    assert made.structured_outputs is not None
    assert made.response_format is not None
    assert made.response_format.json_schema is not None
    assert made.structured_outputs.json == made.response_format.json_schema.schema == value
    assert made.metadata == {"a": None}


def data_of(kind: type[msgspec.Struct]) -> Iterator[str]:
    """Paths of the fields that are data, as JSON schema tells them: whatever has no type, or free keys."""
    (_,), known = msgspec.json.schema_components([kind])

    def of(node: dict[str, Any], path: str) -> Iterator[str]:
        if "$ref" in node:
            node = known[node["$ref"].rpartition("/")[2]]
        for variant in (*node.get("anyOf", ()), *([node["items"]] if "items" in node else ())):
            yield from of(variant, path)
        for name, inner in node.get("properties", {}).items():
            yield from of(inner, f"{path}.{name}".lstrip("."))
        free = node.get("additionalProperties", False) is not False or node.get("type") == "object"
        if (free and "properties" not in node) or not node.keys() & {"type", "anyOf", "$ref", "enum", "properties"}:
            yield path

    return of({"$ref": f"/{kind.__name__}"}, "")


@pytest.mark.parametrize("kind", BODIES)
def test_the_list_of_fields_that_are_passed_through(kind: type[msgspec.Struct]) -> None:
    """Whoever adds such a field sees here that its nulls are data."""
    assert set(data_of(kind)) == DATA[kind]


class _Inner(msgspec.Struct, forbid_unknown_fields=True):
    detection: bool | msgspec.UnsetType | None = msgspec.UNSET
    data: msgspec.Raw = msgspec.Raw()
    size: int = 0


class _Outer(msgspec.Struct, forbid_unknown_fields=True):
    inner: list[_Inner] | _Inner | str = ""
    detection: bool | msgspec.UnsetType | None = msgspec.UNSET


def test_fields_whose_type_gives_null_a_meaning_keep_it() -> None:
    body = b'{"detection": null, "other":null, "inner":[{"detection":null,"size" : null,"odd":null}, {}]}'
    assert decode(body, _Outer) == _Outer(detection=None, inner=[_Inner(detection=None), _Inner()])


def test_data_comes_through_byte_for_byte() -> None:
    data = b'{"a" : null, "b":[null , 1E2, 12345678901234567890123, "\\u00e9"]}'
    made = decode(b'{"x":null, "inner": {"size": null, "data": %b}}' % data, _Outer)
    assert isinstance(made.inner, _Inner)
    assert bytes(made.inner.data) == data


@pytest.mark.parametrize(
    ("change", "param", "code"),
    [
        ({"mood": "glad", "odd": None}, "mood", "unknown_parameter"),
        ({"messages": [{"role": "user", "content": "a", "tool_calls": []}], "a": None}, "messages[0].tool_calls", None),
        ({"messages": [None]}, "messages[0]", None),
        ({"messages": None}, "messages", "missing_required_parameter"),
        ({"stop": [None]}, "stop[0]", None),
        ({"logit_bias": {"1": None}}, "logit_bias", None),
        ({"tools": [None]}, "tools", "unsupported_parameter"),
        ({"messages": [{"role": "user", "content": "a", "parsed": 1}], "a": None}, "messages[0].parsed", None),
    ],
)
def test_values_are_as_wrong_beside_a_null_as_without(change: dict[str, Any], param: str, code: str | None) -> None:
    body = {"messages": [{"role": "user", "content": "a"}], **change}
    with pytest.raises(OmniError) as caught:
        decode(json.dumps(body).encode(), ChatRequest)
    assert (caught.value.info.status, caught.value.info.param) == (400, param)
    assert code in (None, caught.value.info.code)


@pytest.mark.parametrize(
    "body",
    [
        b"[null]",
        b'{"a":null',
        b'{"messages":[{"x":null}',
        b'{"messages":"null"',
        b'{"messages":' + b"[" * 2000 + b"null",
        b'{"a":null,"b":' + b"[" * 9000,
        b'{"messages":[' + b'{"a":null},' * (MAX_OBJECTS + 1) + b"{}]}",
        b'{"messages":[' + b'{"content":[{"a":null}]},' * (MAX_OBJECTS // 2 + 1) + b"{}]}",
    ],
)
def test_hostile_bodies_are_400(body: bytes) -> None:
    with pytest.raises(OmniError) as caught:
        decode(body, ChatRequest)
    assert caught.value.info.status == 400
    assert len(caught.value.info.message) < 300
