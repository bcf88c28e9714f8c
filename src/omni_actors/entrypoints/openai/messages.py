"""Chat messages as the ``prompt`` section carries them."""

from __future__ import annotations

from typing import Any

from omni_actors.entrypoints.openai.fields import refuse_unserved
from omni_actors.entrypoints.openai.schemas import (
    AssistantMessage,
    ClipPart,
    FunctionMessage,
    InputAudioPart,
    Message,
    TextPart,
    ToolMessage,
)
from omni_actors.entrypoints.services import SpokenHistory
from omni_actors.protocol.errors import OmniError, invalid_request


def prompt_messages(messages: list[Message], clips: int, history: SpokenHistory) -> list[dict[str, Any]]:
    """The messages with developer turned into system, spoken answers into their transcripts, and texts joined.

    ``clips`` is how many clips the media process took out of the body: the messages must refer to each once, in order.
    Raises 400 with the path of what is wrong.
    """
    made = []
    seen = 0
    for place, message in enumerate(messages):
        at = f"messages[{place}]"
        if isinstance(message, ToolMessage | FunctionMessage):
            raise invalid_request(f"'{at}': tools are not served yet.", f"{at}.role", "unsupported_parameter")
        role = type(message).__struct_config__.tag
        one: dict[str, Any] = {"role": "system" if role == "developer" else role}
        if message.name is not None:
            one["name"] = message.name
        if isinstance(message, AssistantMessage):
            one["content"] = _assistant_text(message, at, history)
        elif isinstance(message.content, str):
            one["content"] = message.content
        else:
            one["content"], seen = _parts(message.content, at, seen, clips)
        made.append(one)
    if seen != clips:
        raise _forged("messages")
    return made


def _assistant_text(message: AssistantMessage, at: str, history: SpokenHistory) -> str:
    refuse_unserved(message, f"{at}.")
    if message.content is not None:
        if isinstance(message.content, str):
            return message.content
        return "\n".join(part.text if isinstance(part, TextPart) else part.refusal for part in message.content)
    if message.audio is not None:
        transcript = history.get(message.audio.id)
        if transcript is None:
            raise invalid_request(
                f"'{at}.audio.id': no spoken answer of that id is kept (any more); send its text as content.",
                f"{at}.audio.id",
                "audio_not_found",
            )
        return transcript
    if message.refusal is not None:
        return message.refusal
    raise invalid_request(f"'{at}': an assistant's message needs content or audio.", f"{at}.content")


def _parts(parts: list[Any], at: str, seen: int, clips: int) -> tuple[str | list[dict[str, Any]], int]:
    """Text alone becomes one string (what text models' templates take); with clips it stays a list."""
    if not parts:
        raise invalid_request(f"'{at}.content' is empty.", f"{at}.content")
    if all(isinstance(part, TextPart) for part in parts):
        return "\n".join(part.text for part in parts), seen
    made: list[dict[str, Any]] = []
    for place, part in enumerate(parts):
        if isinstance(part, TextPart):
            made.append({"type": "text", "text": part.text})
        elif isinstance(part, ClipPart) and part.index == seen < clips:
            made.append({"type": "audio", "index": seen})
            seen += 1
        elif isinstance(part, InputAudioPart):  # no media process has taken it out
            raise invalid_request(
                f"'{at}.content[{place}]': this model takes no audio.",
                f"{at}.content[{place}].type",
                "unsupported_modality",
            )
        else:
            raise _forged(f"{at}.content[{place}].type")
    return made, seen


def _forged(param: str) -> OmniError:
    """The body brought a part of the server's own making."""
    return invalid_request("Audio comes as parts of type 'input_audio'.", param, "invalid_value")
