"""From a chat to token ids."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from omni_actors.protocol.errors import invalid_request
from omni_actors.protocol.params import Prompt


def fill_transcripts(messages: list[dict[str, Any]], transcripts: Mapping[int, str]) -> list[dict[str, Any]]:
    """The same messages with text contents only: an audio part becomes what was said in it.

    Raises :class:`OmniError` (400) for a part that is neither text nor a clip with a transcript.
    """
    return [
        message if not isinstance(message.get("content"), list) else message | {"content": _join(message, transcripts)}
        for message in messages
    ]


def _join(message: dict[str, Any], transcripts: Mapping[int, str]) -> str:
    pieces: list[str] = []
    for part in message["content"]:
        kind = part.get("type")
        if kind == "text":
            pieces.append(part.get("text", ""))
        elif kind == "audio" and part.get("index") in transcripts:
            pieces.append(transcripts[part["index"]].strip())
        else:
            raise invalid_request(f"This model takes no content part of type {kind!r}.", param="messages")
    return "\n".join(piece for piece in pieces if piece)


def _check_variables(tokenizer: Any, given: Mapping[str, Any]) -> None:
    """Raises 400 for what is no variable of the template but an argument of its rendering. Above all a request brings
    no template of its own: one nested loop would hold the worker for hours."""
    arguments = inspect.signature(tokenizer.apply_chat_template).parameters.values()
    ours = {it.name for it in arguments if it.kind is not inspect.Parameter.VAR_KEYWORD}
    for name in given.keys() & (ours - {"tools", "documents"} | {"messages"}):
        raise invalid_request(f"'{name}' is no variable of the chat template.", f"chat_template_kwargs.{name}")


def render(tokenizer: Any, prompt: Prompt, messages: list[dict[str, Any]]) -> str:
    """The chat template's text, special tokens and all. Raises :class:`OmniError` (400) when the template refuses the
    messages."""
    if tokenizer.chat_template is None:
        raise invalid_request("This model has no chat template: use the completions route.", param="messages")
    if prompt.chat_template_kwargs:
        _check_variables(tokenizer, prompt.chat_template_kwargs)
    try:
        text: str = tokenizer.apply_chat_template(
            messages,
            tokenize=False,
            add_generation_prompt=prompt.add_generation_prompt and not prompt.continue_final_message,
            continue_final_message=prompt.continue_final_message,
            **prompt.chat_template_kwargs,
        )
    except Exception as error:
        raise invalid_request(f"The chat template refuses the messages: {error}", param="messages") from error
    return text
