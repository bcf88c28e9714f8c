"""Rendering of a chat to token ids, by the model's chat template."""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from jinja2 import TemplateSyntaxError

from omni_actors.models.common.control_tokens import ControlTokens, Unsure
from omni_actors.models.common.traced import CLIENT, Traced
from omni_actors.models.common.traced_template import ROLES, TracedEnvironment, render_traced
from omni_actors.protocol.errors import ErrorInfo, OmniError, invalid_request
from omni_actors.protocol.params import Prompt

_FILES = ("chat_template.jinja", "chat_template.json", "tokenizer_config.json")
"""Files in which a folder may keep its template, in order of preference."""


class Chat:
    """A tokenizer and its chat template. With ``allow_control_tokens`` a client's text is encoded as the reference
    does: text in the form of a control token becomes a control token."""

    def __init__(self, tokenizer: Any, *, allow_control_tokens: bool = False) -> None:
        self._tokenizer = tokenizer
        self._allow = allow_control_tokens
        self.control_tokens = ControlTokens(tokenizer, "\n".join(templates_of(tokenizer).values()))
        """Control tokens of all of the tokenizer's templates."""

    def render(self, prompt: Prompt, messages: list[dict[str, Any]]) -> str:
        """Return the chat template's text, control tokens included. Raises :class:`OmniError` (400) when the template
        refuses the messages."""
        return render(self._tokenizer, prompt, messages)

    def encode(self, prompt: Prompt, messages: list[dict[str, Any]], text: str) -> list[int]:
        """Return the ids of a chat that :meth:`render` gave as ``text``. Raises :class:`OmniError` (400) if a text of
        the messages cannot be kept from becoming a control token."""
        sent = [*messages, prompt.chat_template_kwargs]
        if self._allow or not self.control_tokens.suspects(texts_of(sent)):
            return self._encode(text)
        traced = self._traced(prompt, messages, text)
        if traced is not None:
            with suppress(Unsure):
                return self.control_tokens.encode(traced)
        if (held := self.control_tokens.held_by(texts_of(sent))) is not None:
            raise invalid_request(
                f"A text holds {held!r}, a control token of this model, which its chat template does not let be told "
                "from its own.",
                param="messages",
            )
        return self._encode(text)

    def encode_words(self, text: str) -> list[int]:
        """Return the ids of a client's text without control tokens."""
        if self._allow or not self.control_tokens.suspects((text,)):
            return self._encode(text)
        return self.control_tokens.encode(Traced.of(text, CLIENT))

    def _encode(self, text: str) -> list[int]:
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False)
        return ids

    def _traced(self, prompt: Prompt, messages: list[dict[str, Any]], text: str) -> Traced | None:
        """Return the text with the origin of each character; ``None`` for a template whose operations cannot be
        followed."""
        try:
            made = render_traced(
                self._tokenizer.get_chat_template(tools=prompt.chat_template_kwargs.get("tools")),
                messages,
                prompt.chat_template_kwargs,
                self._tokenizer.special_tokens_map,
                add_generation_prompt=prompt.add_generation_prompt and not prompt.continue_final_message,
                continue_final_message=prompt.continue_final_message,
            )
        except Exception:  # the template has rendered the chat once: only the tracing can have failed
            return None
        return made if made.plain == text else None


_WORDS = frozenset(("role", "content", "type", "text", "image", "audio", "video"))
"""Names in messages that are the protocol's and not a client's."""


def texts_of(value: Any) -> Iterator[str]:
    """Yield every text in a client's value, keys of mappings too, except a known role and type."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            if key not in _WORDS:
                yield from texts_of(key)
            if not (key in ("role", "type") and isinstance(item, str) and item in ROLES | _WORDS):
                yield from texts_of(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from texts_of(item)


def render(tokenizer: Any, prompt: Prompt, messages: list[dict[str, Any]]) -> str:
    """Return the chat template's text, special tokens included. Raises :class:`OmniError` (400) when the template
    refuses the messages."""
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


def reserved_variables(tokenizer: Any) -> set[str]:
    """Return the names that variables of a chat template cannot have: arguments of its rendering."""
    arguments = inspect.signature(tokenizer.apply_chat_template).parameters.values()
    ours = {it.name for it in arguments if it.kind is not inspect.Parameter.VAR_KEYWORD}
    return ours - {"tools", "documents"} | {"messages"}


def _check_variables(tokenizer: Any, given: Mapping[str, Any]) -> None:
    """Raise 400 for a variable that is an argument of the template's rendering instead. Above all a request brings no
    template of its own: one nested loop would hold the worker for hours."""
    for name in given.keys() & reserved_variables(tokenizer):
        raise invalid_request(f"'{name}' is not a variable of the chat template.", f"chat_template_kwargs.{name}")


def templates_of(tokenizer: Any) -> dict[str, str]:
    """Return a tokenizer's chat templates by name; most tokenizers have one, or none."""
    found = tokenizer.chat_template
    if found is None:
        return {}
    return dict(found) if isinstance(found, Mapping) else {"default": found}


def read_template(path: str) -> str:
    """Return the chat template in a file of its own. Raises :class:`OmniError` (500) for a file that cannot be read."""
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise _bad(f"the chat template {path} cannot be read: {error}") from error


def check_templates(tokenizer: Any, source: str) -> None:
    """Raise :class:`OmniError` (500) for a chat template with a syntax error. ``source`` is the file or folder of the
    template."""
    for name, template in templates_of(tokenizer).items():
        try:
            TracedEnvironment().from_string(template)
        except TemplateSyntaxError as error:
            which = "the chat template" if name == "default" else f"the chat template '{name}'"
            where = f"in line {error.lineno}: {error.message}"
            raise _bad(f"{which} of {_file(source)} has a mistake {where}") from None


def _file(source: str) -> Path:
    """Return the file of a folder's chat template."""
    place = Path(source)
    for name in _FILES if place.is_dir() else ():
        try:
            text = (place / name).read_text(encoding="utf-8")
            if not name.endswith(".json") or "chat_template" in json.loads(text):
                return place / name
        except (OSError, ValueError):
            continue
    return place


def _bad(message: str) -> OmniError:
    return OmniError(ErrorInfo(message=message, code="bad_model", status=500))
