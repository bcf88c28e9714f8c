"""Chat messages of a program: their media become parts in OpenAI's format, which the media process decodes."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import trio

from omni_actors.entrypoints.history import SpokenHistory
from omni_actors.entrypoints.openai.fields import decode
from omni_actors.entrypoints.openai.messages import prompt_messages
from omni_actors.entrypoints.openai.schemas import ChatRequest
from omni_actors.media.service.client import MediaService
from omni_actors.protocol.errors import OmniError, invalid_request
from omni_actors.protocol.request import MediaRef

Messages = str | Sequence[Mapping[str, Any]]
"""One user's message, or a list of messages in OpenAI's format."""

_OPENAI = {"input_audio": "audio", "audio_url": "audio", "image_url": "image", "video_url": "video"}
_OWN = frozenset({"audio", "image", "video"})

_SCHEMES = ("http://", "https://", "data:")
"""Prefixes of URLs. A text is a URL and never the name of a file, so that messages from strangers cannot read files of
this machine."""

_IN_A_THREAD = 1 << 20
"""Size in bytes from which files are encoded in a thread, so that the loop is not blocked."""


class ChatPrompt:
    """The messages of one chat, checked as far as possible before their media are decoded.

    ``modalities`` are the media's, in the order of the messages.

    Raises:
        OmniError: Status 400, ``param`` is the path of the mistake, such as ``messages[0].content[1].image``.
    """

    def __init__(self, messages: object) -> None:
        self.modalities: list[str] = []
        self._sources: list[tuple[dict[str, Any], bytes | Path | str]] = []
        """Parts that still need a URL, each with the program's source."""
        if isinstance(messages, str):
            messages = [{"role": "user", "content": messages}]
        if isinstance(messages, bytes | Mapping) or not isinstance(messages, Sequence):
            raise _wrong("messages", "a text, or a list of messages", messages)
        self._messages: list[Any] = []
        bare: list[Any] = []  # the same, with what the media process leaves in the place of media
        for place, message in enumerate(messages):
            content = message.get("content") if isinstance(message, Mapping) else None
            if isinstance(message, Mapping) and isinstance(content, list | tuple):
                pairs = [self._part(part, f"messages[{place}].content[{at}]") for at, part in enumerate(content)]
                self._messages.append({**message, "content": [part for part, _ in pairs]})
                bare.append({**message, "content": [left for _, left in pairs]})
            else:
                self._messages.append(message)
                bare.append(message)
        _checked(_encode({"messages": bare}), tuple(self.modalities))

    async def decoded(
        self, media: MediaService, use_audio_in_video: bool = False, longest_s: float | None = None
    ) -> tuple[list[dict[str, Any]], list[MediaRef]]:
        """Decode the media, and return the messages in the form of the section ``prompt``, and the media in order.

        Files are read and URLs are fetched here. No clip may be longer than ``longest_s`` seconds. Cancellation frees
        media that are decoded already.
        """
        for part, source in self._sources:
            part[part["type"]] = {"url": await _url(source)}
        body: dict[str, Any] = {"messages": self._messages}
        if use_audio_in_video:
            body["mm_processor_kwargs"] = {"use_audio_in_video": True}
        data = _encode(body)
        if not self.modalities:
            return _checked(data, ()), []
        async with media.parse(data, modalities=tuple(sorted(set(self.modalities)))) as parsed:
            prompt = _checked(parsed.json, parsed.modalities)
            return prompt, await parsed.decode(longest_s=longest_s)

    def _part(self, part: Any, at: str) -> tuple[Any, Any]:
        """Return a part in OpenAI's format, and the media process' later replacement of the part."""
        kind = part.get("type") if isinstance(part, Mapping) else None
        if kind in _OPENAI:
            modality = _OPENAI[kind]
        elif kind in _OWN and kind in part:
            modality, source = kind, part[kind]
            if rest := part.keys() - {"type", kind}:
                name = min(map(str, rest))
                raise invalid_request(f"Unknown field '{at}.{name}'.", f"{at}.{name}", "unknown_parameter")
            if not isinstance(source, bytes | Path | str):
                expected = "a pathlib.Path, the file's bytes, or a text with a URL"
                raise _wrong(f"{at}.{kind}", expected, source)
            if isinstance(source, str) and not source.startswith(_SCHEMES):
                raise invalid_request(
                    f"'{at}.{kind}': a text is a URL (http, https or data); for a file give a pathlib.Path.",
                    f"{at}.{kind}",
                    "invalid_value",
                )
            part = {"type": f"{kind}_url"}
            self._sources.append((part, source))
        else:
            return part, part  # text, or something that is refused with its path
        self.modalities.append(modality)
        return part, {"type": modality, "index": len(self.modalities) - 1}


def _checked(body: bytes, media: tuple[str, ...]) -> list[dict[str, Any]]:
    """Return a body's messages in the form of the section ``prompt``, under the rules of ``POST /v1/chat/completions``;
    ``media`` are the modalities of the media, in order."""
    return prompt_messages(decode(body, ChatRequest).messages, media, SpokenHistory(0))


def _encode(body: dict[str, Any]) -> bytes:
    try:
        return msgspec.json.encode(body)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise invalid_request(f"The messages hold what JSON cannot: {error}.", "messages", "invalid_value") from None


async def _url(source: bytes | Path | str) -> str:
    """Return the URL of a source."""
    if isinstance(source, str):
        return source
    data = await trio.Path(source).read_bytes() if isinstance(source, Path) else source
    if len(data) < _IN_A_THREAD:
        return _data_url(data)
    return await trio.to_thread.run_sync(_data_url, data)


def _data_url(data: bytes) -> str:
    return "data:application/octet-stream;base64," + base64.b64encode(data).decode()


def _wrong(param: str, expected: str, given: object) -> OmniError:
    return invalid_request(f"'{param}' takes {expected}, not {type(given).__name__}.", param, "invalid_value")
