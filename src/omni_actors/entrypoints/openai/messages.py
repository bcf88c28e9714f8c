"""Chat messages in the form of the section ``prompt``."""

from __future__ import annotations

from typing import Any

from omni_actors.entrypoints.history import SpokenHistory
from omni_actors.entrypoints.openai.fields import refuse_unserved
from omni_actors.entrypoints.openai.schemas import (
    AssistantMessage,
    AudioUrlPart,
    FunctionMessage,
    ImageUrlPart,
    InputAudioPart,
    Message,
    TextPart,
    ToolMessage,
    VideoUrlPart,
)
from omni_actors.protocol.errors import OmniError, invalid_request

_MODALITIES: dict[type, str] = {
    InputAudioPart: "audio",
    AudioUrlPart: "audio",
    ImageUrlPart: "image",
    VideoUrlPart: "video",
}
"""Modalities of media parts that the media process has not taken out."""

_OF_TOOLS = (ToolMessage, FunctionMessage)


def prompt_messages(messages: list[Message], media: tuple[str, ...], history: SpokenHistory) -> list[dict[str, Any]]:
    """Return the messages with ``developer`` turned into ``system``, spoken answers replaced by transcripts, and texts
    joined.

    ``media`` are the modalities of the media that the media process took out of the body; the messages must refer to
    each once, in order. Raises 400 with the path of the mistake.
    """
    made = []
    seen = 0
    for place, message in enumerate(messages):
        if isinstance(message, _OF_TOOLS):
            at = f"messages[{place}]"
            raise invalid_request(f"'{at}': tools are not served yet.", f"{at}.role", "unsupported_parameter")
        role = type(message).__struct_config__.tag
        one: dict[str, Any] = {"role": "system" if role == "developer" else role}
        if message.name is not None:
            one["name"] = message.name
        if isinstance(message, AssistantMessage):
            one["content"] = _assistant_text(message, f"messages[{place}]", history)
        elif isinstance(message.content, str):
            one["content"] = message.content
        else:
            one["content"], seen = _parts(message.content, f"messages[{place}]", seen, media)
        made.append(one)
    if seen != len(media):
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
                f"'{at}.audio.id': no spoken answer with this id is kept; send its text as content.",
                f"{at}.audio.id",
                "audio_not_found",
            )
        return transcript
    if message.refusal is not None:
        return message.refusal
    raise invalid_request(f"'{at}': an assistant message needs content or audio.", f"{at}.content")


def _parts(parts: list[Any], at: str, seen: int, media: tuple[str, ...]) -> tuple[str | list[dict[str, Any]], int]:
    """Join parts of text into one string, which text models' templates take; with media, return a list."""
    if not parts:
        raise invalid_request(f"'{at}.content' is empty.", f"{at}.content")
    if all(isinstance(part, TextPart) for part in parts):
        return "\n".join(part.text for part in parts), seen
    made: list[dict[str, Any]] = []
    for place, part in enumerate(parts):
        where = f"{at}.content[{place}]"
        if isinstance(part, TextPart):
            made.append({"type": "text", "text": part.text})
        elif (modality := _MODALITIES.get(type(part))) is not None:
            raise invalid_request(
                f"'{where}': this model takes no {modality}.", f"{where}.type", "unsupported_modality"
            )
        else:
            modality = type(part).__struct_config__.tag
            if part.index != seen or seen >= len(media) or media[seen] != modality:
                raise _forged(f"{where}.type")
            made.append({"type": modality, "index": seen})
            seen += 1
    return made, seen


def _forged(param: str) -> OmniError:
    """Return the error for a body that contains a part in the server's internal form."""
    known = "'input_audio', 'image_url', 'audio_url' and 'video_url'"
    return invalid_request(f"Media must be sent as parts of type {known}.", param, "invalid_value")
