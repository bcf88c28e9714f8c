"""Chats that ask for pictures: their body, and the request that it becomes.

The text of the last user message is the prompt, and the pictures in that message are edited. Earlier messages are not
read: the models take a prompt, not a conversation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from omni_actors.entrypoints.http import Call
from omni_actors.entrypoints.openai.fields import NoOp, Refused, refuse_unserved
from omni_actors.entrypoints.openai.images.facts import EDIT, GENERATE, SECTION, TASKS, picture_facts
from omni_actors.entrypoints.openai.images.schemas import MAX_INPUTS, MAX_PICTURES, PictureFields
from omni_actors.entrypoints.openai.images.section import image_section
from omni_actors.entrypoints.openai.messages import prompt_messages
from omni_actors.entrypoints.openai.schemas import MAX_MESSAGES, Message, StreamOptions
from omni_actors.entrypoints.services import Services
from omni_actors.pipelines.subgraph import Key
from omni_actors.protocol.errors import invalid_request
from omni_actors.protocol.request import Request

CHAT = "chat"

_STORED = "Nothing is stored."
_UNSAMPLED = "a picture is not sampled token by token."
_NO_TEXT = "a picture has no text."


class ImageChatRequest(PictureFields, forbid_unknown_fields=True, kw_only=True):
    """The body of ``POST /v1/chat/completions`` for an answer with pictures."""

    messages: Annotated[list[Message], Meta(min_length=1, max_length=MAX_MESSAGES)]
    modalities: list[Literal["text", "image"]] | None = None
    stream: bool = False
    stream_options: StreamOptions | None = None
    images_as: Literal["images", "content"] | None = None
    """Where the pictures are: in ``message.images`` (the default), or as parts of ``message.content``, where
    vLLM-Omni has them."""
    num_outputs_per_prompt: Annotated[int, Meta(ge=1, le=MAX_PICTURES)] | None = None
    """vLLM-Omni's name of ``n``."""

    store: Annotated[bool | None, NoOp(_STORED)] = None
    metadata: Annotated[dict[str, str | None] | None, NoOp(_STORED)] = None
    service_tier: Annotated[str | None, NoOp("There is only one tier.")] = None

    temperature: Annotated[Any, Refused(_UNSAMPLED, (1, 1.0))] = None
    top_p: Annotated[Any, Refused(_UNSAMPLED, (1, 1.0))] = None
    presence_penalty: Annotated[Any, Refused(_UNSAMPLED, (0, 0.0))] = None
    frequency_penalty: Annotated[Any, Refused(_UNSAMPLED, (0, 0.0))] = None
    max_tokens: Annotated[Any, Refused(_NO_TEXT)] = None
    max_completion_tokens: Annotated[Any, Refused(_NO_TEXT)] = None
    logprobs: Annotated[Any, Refused(_NO_TEXT, (False,))] = None
    stop: Annotated[Any, Refused(_NO_TEXT, ([],))] = None
    response_format: Annotated[Any, Refused("the format of pictures is output_format.")] = None
    audio: Annotated[Any, Refused("a picture does not sound.")] = None
    tools: Annotated[Any, Refused("tools are not served yet.", ([],))] = None


class _Modalities(msgspec.Struct):
    """The field of a chat that tells which kind of body it is."""

    modalities: Any = None


@dataclass(slots=True)
class Ask:
    """A chat's last user message: the prompt, and the places of the pictures among all media of the body."""

    prompt: str
    pictures: Sequence[int]


def paints(services: Services) -> bool:
    """Return whether the model makes pictures."""
    return bool(set(TASKS) & services.plan.tasks.keys())


def edits(services: Services) -> bool:
    """Return whether the model edits pictures, so that those of chats keep their transparency."""
    return EDIT in services.plan.tasks


def asks_for_pictures(services: Services, body: bytes) -> bool:
    """Return whether a chat's body asks for pictures: it names them among its modalities, or the model makes nothing
    else. The modalities of a malformed body are left to whoever decodes it."""
    if not paints(services):
        return False
    if CHAT not in services.plan.tasks:
        return True
    try:
        wanted = msgspec.json.decode(body, type=_Modalities).modalities
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    return isinstance(wanted, list) and "image" in wanted


def least_needs(services: Services) -> Key:
    """Return what every chat with the model needs at least, as far as is known before its body is read."""
    tasks = services.plan.tasks
    if CHAT in tasks or not paints(services):
        return (CHAT, ("text",), ("text",))
    return (GENERATE, ("text",), ("image",)) if GENERATE in tasks else (EDIT, ("text", "image"), ("image",))


def media_inputs(services: Services) -> tuple[str, ...] | None:
    """Return the modalities of media that a chat may bring; ``None`` leaves them to the check of the body."""
    own = services.media_inputs.get(CHAT)
    if not paints(services):
        return own
    return tuple(sorted({*(own or ()), *services.media_inputs.get(EDIT, ())}))


def image_chat_request(
    services: Services, call: Call, body: ImageChatRequest, media: tuple[str, ...]
) -> tuple[Request, Ask]:
    """Return the request for the orchestrator, without its media, whose modalities are ``media`` in order.

    Raises:
        OmniError: 400 for anything that is certain to be impossible.
    """
    if body.stream_options is not None:
        refuse_unserved(body.stream_options, "stream_options.")
        if not body.stream:
            raise invalid_request("'stream_options' is only allowed when 'stream' is true.", "stream_options")
    wanted = body.modalities if body.modalities is not None else ["image"]
    if "image" not in wanted or len(set(wanted)) != len(wanted):
        raise invalid_request(
            "This model makes pictures: 'modalities' is [\"image\"].", "modalities", "unsupported_modality"
        )
    outputs = tuple(it for it in ("text", "image") if it in wanted)
    ask = last_ask(services, body, media)
    task = EDIT if ask.pictures else GENERATE
    if task not in services.plan.tasks:
        missing = "takes no pictures" if ask.pictures else "edits pictures: the last message must bring one"
        raise invalid_request(f"This model {missing}.", "messages", "unsupported_modality")
    inputs = ("text", "image") if ask.pictures else ("text",)
    services.task(task, inputs=inputs, outputs=outputs)
    if body.n is not None and body.num_outputs_per_prompt not in (None, body.n):
        raise invalid_request("'n' and 'num_outputs_per_prompt' are the same field, and differ.", "n", "invalid_value")
    body.n = body.n or body.num_outputs_per_prompt
    image = image_section(
        body,
        picture_facts(services),
        ask.prompt,
        adapters=services.adapters,
        adapter=services.adapter(body.model),
        pictures=len(ask.pictures),
    )
    image.progress = body.stream
    request = Request(
        task=task,
        inputs=inputs,
        outputs=outputs,
        params={SECTION: image},
        id=call.context.id,
        deadline_s=call.context.remaining(body.timeout),
        priority=call.context.combined_priority(body.priority),
        tenant=call.context.tenant,
    )
    return request, ask


def last_ask(services: Services, body: ImageChatRequest, media: tuple[str, ...]) -> Ask:
    """Return what the last user message asks for. Raises 400 for messages without such an ask."""
    messages = prompt_messages(body.messages, media, services.history)
    place = next((place for place in reversed(range(len(messages))) if messages[place]["role"] == "user"), None)
    if place is None:
        raise invalid_request("The prompt is the last user message, and there is none.", "messages")
    content = messages[place]["content"]
    if isinstance(content, str):
        prompt, pictures = content, []
    else:
        prompt = "\n".join(part["text"] for part in content if part["type"] == "text")
        pictures = [part["index"] for part in content if part["type"] == "image"]
        if len(pictures) > MAX_INPUTS:
            message = f"A request edits at most {MAX_INPUTS} pictures."
            raise invalid_request(message, f"messages[{place}].content", "invalid_value")
    if not prompt.strip():
        raise invalid_request("The last user message has no text.", f"messages[{place}].content", "invalid_value")
    return Ask(prompt, pictures)
