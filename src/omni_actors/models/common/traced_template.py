"""Rendering of a chat template that tells, for each character, whether the template or a client wrote it.

The environment is that of transformers' ``apply_chat_template`` (settings, filters, globals): for the same input the
text is the same. Chats are rendered by transformers; this module renders only where the author of a text matters, and
the texts are compared.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from datetime import datetime
from functools import lru_cache, wraps
from string import Formatter
from typing import Any

from jinja2 import Template, TemplateError, nodes
from jinja2.compiler import CodeGenerator, Frame
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

from omni_actors.models.common.traced import CLIENT, Traced, concatenated, followed, joined, traced

ROLES = frozenset(("system", "developer", "user", "assistant", "tool", "function"))
"""Roles of messages, from which a template may make control tokens (``'<|' + role + '|>'``): roles count as the
template's."""

_TAG = "CONTINUE_FINAL_MESSAGE_TAG "
"""The text that transformers puts behind a message to be continued, to find the message's end in the rendered text."""

_REASONING = ("reasoning_content", "thinking", "reasoning")
"""Names of a message's reasoning: transformers fills the first two from any of the names."""


def render_traced(
    template: str,
    messages: list[dict[str, Any]],
    variables: Mapping[str, Any],
    own: Mapping[str, Any],
    *,
    add_generation_prompt: bool,
    continue_final_message: bool,
) -> Traced:
    """Return the text of a chat. ``variables`` are a client's, ``own`` the tokenizer's special tokens. Raises the
    template's exceptions."""
    chat = [_message(message) for message in messages]
    if continue_final_message:
        _tag_last(chat[-1])
    given = {"tools": None, "documents": None, **own, **{name: traced(it) for name, it in variables.items()}}
    text = _compiled(template).render(messages=chat, add_generation_prompt=add_generation_prompt, **given)
    made = text if isinstance(text, Traced) else Traced(text, bytes(len(text)))
    if continue_final_message:
        at = made.rindex(_TAG.strip())
        made = made[:at] if made[at : at + len(_TAG)] == _TAG else made[:at].rstrip()
    return made


def _message(message: Mapping[str, Any]) -> dict[str, Any]:
    found = {key: traced(value) for key, value in message.items() if value is not None}
    if message.get("role") in ROLES:
        found["role"] = message["role"]
    if (reasoning := next((found[key] for key in _REASONING if key in found), None)) is not None:
        found = {"thinking": reasoning, **found, "reasoning_content": reasoning}
    return found


def _tag_last(message: dict[str, Any]) -> None:
    content = message["content"]
    if isinstance(content, str):
        message["content"] = content + _TAG
    elif (part := next((it for it in reversed(content) if "text" in it), None)) is not None:
        part["text"] = part["text"] + _TAG


@lru_cache(maxsize=16)
def _compiled(template: str) -> Template:
    return TracedEnvironment().from_string(template)


class _Generation(Extension):
    """The tag ``generation``, which only marks the assistant's part."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> nodes.Node | list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _Joins(CodeGenerator):
    """A compiler of the operator ``~`` to an operation that keeps origins."""

    def visit_Concat(self, node: nodes.Concat, frame: Frame) -> None:
        self.write("environment.concat((")
        for part in node.nodes:
            self.visit(part, frame)
            self.write(", ")
        self.write("))")


class TracedEnvironment(ImmutableSandboxedEnvironment):
    """A sandbox whose operations keep the origins of texts, or mark as unsure the results of other operations. It
    renders only input that transformers' stricter sandbox has rendered before."""

    code_generator_class = _Joins
    concat = staticmethod(concatenated)
    intercepted_binops = frozenset(("%",))

    def __init__(self) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols])
        self.filters = {name: _following(it) for name, it in self.filters.items()}
        self.filters |= {"join": _join, "replace": _replace, "tojson": _tojson, "string": str, "safe": str}
        self.globals |= {"raise_exception": _raise_exception, "strftime_now": _strftime_now}

    def call(self, context: Context, called: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Follow methods of texts; functions of the template and methods of other objects keep their origins."""
        method = getattr(called, "__wrapped__", called)
        text, name = getattr(method, "__self__", None), getattr(method, "__name__", "")
        if isinstance(text, str):
            if name == "join":
                return joined(text, *args)
            if name == "replace" and not isinstance(text, Traced):
                return Traced(text, bytes(len(text))).replace(*args)
            if name == "format" and (made := _format(text, args, kwargs)) is not None:
                return made
            return followed(super().call(context, called, *args, **kwargs), text, args, list(kwargs.values()))
        return super().call(context, called, *args, **kwargs)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        if isinstance(left, str) and (made := _percent(left, right)) is not None:
            return made
        return followed(super().call_binop(context, operator, left, right), left, right)


def _following(function: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(function)
    def followed_filter(*args: Any, **kwargs: Any) -> Any:
        return followed(function(*args, **kwargs), args, list(kwargs.values()))

    return followed_filter


def _join(value: Any, d: str = "", attribute: str | int | None = None) -> Traced:
    if attribute is not None:
        value = [it[attribute] for it in value]
    return joined(d, value)


def _replace(text: Any, old: str, new: str, count: int | None = None) -> Traced:
    whole = concatenated((text,))
    return whole.replace(str(old), str(new), -1 if count is None else count)


def _tojson(
    value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False
) -> Any:
    """Return a client's values as JSON: all of the text counts as the client's."""
    made = json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
    return followed(made, value, origin=CLIENT)


def _format(text: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Traced | None:
    """Return ``str.format`` for formats whose fields are plain values; ``None`` for other formats."""
    made: list[Any] = []
    automatic = 0
    for literal, field, spec, conversion in Formatter().parse(text):
        made.append(literal)
        if field is None:
            continue
        if spec or conversion or not (field == "" or field.isidentifier() or field.isdigit()):
            return None
        if field == "":
            field, automatic = str(automatic), automatic + 1
        made.append(args[int(field)] if field.isdigit() else kwargs[field])
    return concatenated(made)


def _percent(text: str, values: Any) -> Traced | None:
    """Return the operator ``%`` for formats with plain ``%s`` only; ``None`` for other formats."""
    given = list(values) if isinstance(values, tuple) else [values]
    literals = text.split("%s")
    if len(literals) != len(given) + 1 or any("%" in literal for literal in literals):
        return None
    return concatenated((literals[0], *(it for pair in zip(given, literals[1:], strict=True) for it in pair)))


def _raise_exception(message: str) -> None:
    raise TemplateError(message)


def _strftime_now(pattern: str) -> str:
    return datetime.now().strftime(pattern)
