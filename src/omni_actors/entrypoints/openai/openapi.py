"""``GET /openapi.json``: this API as an OpenAPI 3.1 document.

Bodies are described by the structs that decode them, so the document cannot contradict the server. A route whose task
the deployment's pipeline lacks is left out: it would only answer that the task is unsupported.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from omni_actors.entrypoints.admin.replicas import Command
from omni_actors.entrypoints.http import Call, Reply
from omni_actors.entrypoints.openai import loras, schemas, speech_request, transcriptions
from omni_actors.entrypoints.openai.audio import CONTENT_TYPES
from omni_actors.entrypoints.openai.fields import NoOp, Refused, list_fields, marks
from omni_actors.entrypoints.openai.images import schemas as images
from omni_actors.entrypoints.openai.images.encoding import CONTENT_TYPES as IMAGE_TYPES
from omni_actors.entrypoints.services import Services
from omni_actors.version import __version__

JSON = "application/json"
SSE = "text/event-stream"

Schema = dict[str, Any]

_OBJECT: Schema = {"type": "object"}
_TEXT: Schema = {"type": "string"}
_ANY: Schema = {}
_REF = "#/components/schemas/{name}"
_RULES = (
    "In JSON bodies a field that is null counts as absent, whatever its name; values that are passed through as data "
    "keep their nulls. In forms an empty field counts as absent. Any other unknown field is refused."
)
_INSIDE = ("ClipPart", "ImagePart", "VideoPart")
"""Structs that the media process leaves in a body; clients may not send them."""

_STATUS = {
    400: "The request is wrong; `param` names the field.",
    401: "The API key, or for the admin routes the admin key, is missing or wrong.",
    403: "An API key does not open the admin routes.",
    404: "There is no such model, picture, replica or route.",
    408: "The request's deadline passed, or its body came too slowly.",
    409: "The command does not fit the state of the replica, or another command is being carried out.",
    413: "Too large.",
    415: "Not in this form.",
    429: "The server is full: try again after `Retry-After` seconds.",
    500: "The server failed; its log has the error under the request's id.",
    503: "A stage that the request needs has no live worker: try again after `Retry-After` seconds.",
}
_GUARD = (400, 401)
_WORK = (400, 401, 404, 408, 413, 429, 500, 503)
_COMMAND = (400, 401, 403, 404, 408, 409, 413, 415, 500, 503)


def _array(of: Schema) -> Schema:
    return {"type": "array", "items": of}


def _fields(**properties: Schema) -> Schema:
    return {"type": "object", "required": list(properties), "properties": properties}


@dataclass(frozen=True, slots=True)
class Operation:
    """One route: ``bodies`` by content type, and ``answers`` of status 200 by content type."""

    summary: str
    answers: dict[str, Schema]
    errors: Sequence[int]
    bodies: dict[str, Schema] | None = None
    other: Schema | None = None
    """Schema of a 503 that is a report like the 200, and not an error."""
    task: str | None = None
    """The pipeline's task that the route needs; ``None`` for a route that every deployment serves."""


def _json(summary: str, answer: Schema, errors: Sequence[int] = _GUARD, other: Schema | None = None) -> Operation:
    return Operation(summary, {JSON: answer}, errors, other=other)


def _ref(kind: type[msgspec.Struct] | str) -> Schema:
    return {"$ref": _REF.format(name=kind if isinstance(kind, str) else kind.__name__)}


_CHOICES = _fields(
    id=_TEXT, object=_TEXT, created={"type": "integer"}, model=_TEXT, choices=_array(_OBJECT), usage=_OBJECT
)
_CARD = _fields(id=_TEXT, object={"const": "model"}, created={"type": "integer"}, owned_by=_TEXT, capabilities=_OBJECT)
_NAMED = _array(_fields(id=_TEXT, name=_TEXT))
_STATE = _fields(status=_TEXT)
_REPLICAS = _fields(replicas=_array(_OBJECT))
_IMAGES = _fields(created={"type": "integer"}, data=_array(_OBJECT), output_format=_TEXT, size=_TEXT, usage=_OBJECT)
_TRANSCRIPT = {JSON: _fields(text=_TEXT), "text/plain": _TEXT, "text/vtt": _TEXT}


def _transcription(kind: type[msgspec.Struct]) -> dict[str, Schema]:
    return {JSON: _ref(kind), "multipart/form-data": _ref(f"{kind.__name__}Form")}


OPERATIONS: dict[tuple[str, str], Operation] = {
    ("POST", "/v1/chat/completions"): Operation(
        "Answer a conversation in text and speech",
        {JSON: _CHOICES, SSE: _ANY},
        _WORK,
        {JSON: _ref(schemas.ChatRequest)},
        task="chat",
    ),
    ("POST", "/v1/completions"): Operation(
        "Text behind text",
        {JSON: _CHOICES, SSE: _ANY},
        _WORK,
        {JSON: _ref(schemas.CompletionRequest)},
        task="completion",
    ),
    ("POST", "/v1/audio/speech"): Operation(
        "Make speech from text",
        {**dict.fromkeys((*CONTENT_TYPES.values(), "audio/pcm"), _TEXT), SSE: _ANY},
        _WORK,
        {JSON: _ref(speech_request.SpeechRequest)},
        task="speech",
    ),
    ("POST", "/v1/audio/transcriptions"): Operation(
        "Text of speech",
        {**_TRANSCRIPT, SSE: _ANY},
        _WORK,
        _transcription(transcriptions.TranscriptionRequest),
        task="transcription",
    ),
    ("POST", "/v1/audio/translations"): Operation(
        "Translate speech into English text",
        _TRANSCRIPT,
        _WORK,
        _transcription(transcriptions.TranslationRequest),
        task="translation",
    ),
    ("POST", "/v1/images/generations"): Operation(
        "Make pictures from text",
        {JSON: _IMAGES, SSE: _ANY},
        _WORK,
        {JSON: _ref(images.GenerationRequest)},
        task="image",
    ),
    ("POST", "/v1/images/edits"): Operation(
        "Edit pictures",
        {JSON: _IMAGES, SSE: _ANY},
        _WORK,
        {JSON: _ref(images.EditRequest), "multipart/form-data": _ref(images.EditForm)},
        task="image_edit",
    ),
    ("POST", "/v1/images/variations"): Operation("Refused: variations are not served", {}, (*_GUARD, 404)),
    ("GET", "/v1/images/files/{token}"): Operation(
        "Fetch a picture by its URL", dict.fromkeys(IMAGE_TYPES.values(), _TEXT), (400, 404)
    ),
    ("GET", "/v1/audio/voices"): _json("The voices", _fields(voices=_NAMED)),
    ("GET", "/v1/audio/models"): _json("List the models that speak", _fields(models=_NAMED)),
    ("GET", "/v1/models"): _json("The models", _fields(object={"const": "list"}, data=_array(_CARD))),
    ("GET", "/v1/models/{name}"): _json("One model", _CARD, (*_GUARD, 404)),
    ("POST", "/v1/load_lora_adapter"): Operation(
        "Load a LoRA adapter", {"text/plain": _TEXT}, _COMMAND, {JSON: _ref(loras.LoadLora)}
    ),
    ("POST", "/v1/unload_lora_adapter"): Operation(
        "Unload a LoRA adapter", {"text/plain": _TEXT}, _COMMAND, {JSON: _ref(loras.UnloadLora)}
    ),
    ("GET", "/admin/replicas"): _json("List every replica", _REPLICAS, (*_GUARD, 403)),
    ("POST", "/admin/replicas"): Operation(
        "Drain, replace, kill or restart replicas", {JSON: _REPLICAS}, _COMMAND, {JSON: _ref(Command)}
    ),
    ("GET", "/live"): _json("Whether the process runs", _STATE, (400,)),
    ("GET", "/ready"): _json("Whether any task can be served", _STATE, (400,), _STATE),
    ("GET", "/health"): _json("Whether every stage can serve", _STATE, (400,), _STATE),
    ("GET", "/version"): _json("The version", _fields(version=_TEXT), (400,)),
    ("GET", "/metrics"): Operation("Metrics for Prometheus", {"text/plain": _TEXT}, (400,)),
    ("GET", "/openapi.json"): _json("This document", _fields(openapi=_TEXT, info=_OBJECT, paths=_OBJECT)),
}


async def describe(services: Services, call: Call) -> Reply:
    """Describe the routes that this deployment serves."""
    return Reply(document(frozenset(services.plan.tasks)))


@functools.cache
def document(tasks: frozenset[str] | None = None) -> bytes:
    """Return the document of a deployment with these tasks; ``None`` means all tasks."""
    paths: dict[str, Schema] = {}
    for (method, path), operation in OPERATIONS.items():
        if operation.task is not None and tasks is not None and operation.task not in tasks:
            continue
        made = paths.setdefault(path, {})
        made[method.lower()] = _operation(f"{method.lower()} {path}", operation)
        for name in re.findall(r"{(\w+)}", path):
            made["parameters"] = [{"name": name, "in": "path", "required": True, "schema": {"type": "string"}}]
    return msgspec.json.encode(
        {
            "openapi": "3.1.0",
            "info": {"title": "omni-actors", "version": __version__, "description": _RULES},
            "security": [{}, {"key": []}],
            "paths": paths,
            "components": {
                "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
                "schemas": _components(),
            },
        }
    )


def _operation(name: str, operation: Operation) -> Schema:
    responses = {"200": {"description": "Done.", "content": _content(operation.answers)}} if operation.answers else {}
    for status in operation.errors:
        responses[str(status)] = {"description": _STATUS[status], "content": _content({JSON: _ref("Error")})}
    if operation.other is not None:
        responses["503"] = {"description": "It cannot.", "content": _content({JSON: operation.other})}
    made: Schema = {"operationId": name, "summary": operation.summary, "responses": responses}
    if operation.bodies is not None:
        made["requestBody"] = {"required": True, "content": _content(operation.bodies)}
    return made


def _content(by_type: dict[str, Schema]) -> Schema:
    return {kind: {"schema": schema} for kind, schema in by_type.items()}


def _components() -> dict[str, Schema]:
    listens = (transcriptions.TranscriptionRequest, transcriptions.TranslationRequest)
    kinds = (
        schemas.ChatRequest,
        schemas.CompletionRequest,
        speech_request.SpeechRequest,
        *listens,
        images.GenerationRequest,
        images.EditRequest,
        images.EditForm,
        loras.LoadLora,
        loras.UnloadLora,
        Command,
    )
    _, made = msgspec.json.schema_components(kinds, ref_template=_REF)
    modules = (schemas, speech_request, transcriptions, images, loras)
    structs = [it for module in modules for it in vars(module).values() if _is_struct(it)]
    for kind in structs:
        if kind.__name__ in made:
            _mark(kind, made[kind.__name__]["properties"])
    for kind in listens:
        schema = made[kind.__name__]
        made[f"{kind.__name__}Form"] = _form(kind, schema)
        schema["properties"]["input_audio"] = _ref(schemas.InputAudio)
        schema["required"] = ["input_audio"]
    _describe_pictures(made)
    for name in _INSIDE:
        made.pop(name, None)
    made["Error"] = _fields(
        error=_fields(message=_TEXT, type=_TEXT, param={"type": ["string", "null"]}, code={"type": ["string", "null"]})
    )
    public: dict[str, Schema] = _without_inside(made)
    return public


def _describe_pictures(made: dict[str, Schema]) -> None:
    """Put the pictures of edits into the schemas of their bodies, in the form in which clients send them."""
    picture = {**_fields(image_url=_TEXT), "additionalProperties": False}
    body, form = made["EditRequest"], made["EditForm"]
    body["properties"] |= {"images": {**_array(picture), "minItems": 1, "maxItems": images.MAX_INPUTS}, "mask": picture}
    body["required"] = [*body["required"], "images"]
    file = {"type": "string", "contentMediaType": "application/octet-stream"}
    files = {**_array(file), "minItems": 1, "maxItems": images.MAX_INPUTS}
    form["properties"] |= {"image": files, "mask": file, "mask_image": file}
    form["required"] = [*form["required"], "image"]


def _is_struct(value: Any) -> bool:
    return isinstance(value, type) and issubclass(value, msgspec.Struct)


def _mark(kind: type[msgspec.Struct], properties: dict[str, Schema]) -> None:
    """Mark properties that are refused or change nothing."""
    for name, refused in marks(kind, Refused).items():
        properties[name] = {"enum": [*refused.neutral, None], "description": f"Anything else: {refused.why}"}
    for name, no_op in marks(kind, NoOp).items():
        properties[name]["description"] = f"Changes nothing. {no_op.why}"


def _form(kind: type[msgspec.Struct], schema: Schema) -> Schema:
    """Return the schema of the same body as a form: fields are texts, and a list's name may end with ``[]``."""
    named = {name: it for name, it in schema["properties"].items() if name != "input_audio"}
    named |= {f"{name}[]": named[name] for name in list_fields(kind)}
    named["file"] = {"type": "string", "contentMediaType": "application/octet-stream"}
    return {"type": "object", "required": ["file"], "properties": named, "additionalProperties": False}


def _without_inside(node: Any) -> Any:
    refs = [_REF.format(name=name) for name in _INSIDE]
    if isinstance(node, list):
        return [_without_inside(it) for it in node if not (isinstance(it, dict) and it.get("$ref") in refs)]
    if isinstance(node, dict):
        return {key: _without_inside(it) for key, it in node.items() if not (isinstance(it, str) and it in refs)}
    return node
