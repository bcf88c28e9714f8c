"""Detokenization of one token at a time, and stop strings.

Guaranteed for any sequence of ids, valid or not: the pieces, joined, are the tokenizer's own decoding of the whole
sequence (up to a stop string); a piece never ends inside a character; nothing of a stop string leaves before it is
certain that it is none. The cost of a token does not depend on how many came before.
"""

from __future__ import annotations

import codecs
import json
import re
from collections import deque
from collections.abc import Sequence
from typing import Any, Protocol

from tokenizers import Tokenizer

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_CONTEXT_TOKENS = 8
"""The number of tokens before a position that determine the decoding of its token (spaces, word pieces)."""


class Vocabulary:
    """The vocabulary of a model: a cache of the tokenizer's answers for each token."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self.special = frozenset(i for i, t in tokenizer.get_added_tokens_decoder().items() if t.special)
        state: dict[str, Any] = {"type": "none"}
        if tokenizer.decoder is not None:
            state = json.loads(tokenizer.decoder.__getstate__())
        kinds = {state["type"], *(d["type"] for d in state.get("decoders", ()))}
        self.byte_level = state["type"] == "ByteLevel"
        """Every token is a fixed string of bytes, and a text is their sequence."""
        self.byte_fallback = "ByteFallback" in kinds
        """A run of tokens like ``<0xE2>`` is decoded as one, when it is over."""
        self.may_split = "ByteLevel" in kinds
        """A character may be cut into several tokens."""
        self._bytes: dict[int, bytes] = {}

    def token_bytes(self, token_id: int) -> bytes:
        """Return the token's share of a text, as bytes that need not be valid UTF-8. Empty for an unknown id."""
        known = self._bytes.get(token_id)
        if known is None:
            known = self._bytes[token_id] = self._look_up(token_id)
        return known

    def is_fallback(self, token_id: int) -> bool:
        """Whether the token is a raw byte whose meaning depends on neighbouring bytes."""
        token = self.tokenizer.id_to_token(token_id) if self.byte_fallback else None
        return token is not None and _BYTE_TOKEN.fullmatch(token) is not None

    def _look_up(self, token_id: int) -> bytes:
        token: str | None = self.tokenizer.id_to_token(token_id)
        if token is None:
            return b""
        if self.byte_level:
            # A token with a character that stands for no byte (an added one) is its own text.
            return bytes(map(_BYTE_OF.__getitem__, token)) if _BYTE_OF.keys() >= set(token) else token.encode()
        if self.byte_fallback and (match := _BYTE_TOKEN.fullmatch(token)):
            return bytes([int(match[1], 16)])
        return token.replace("\u2581", " ").encode()


def _byte_characters() -> dict[str, int]:
    """The byte-level alphabet: printable bytes stand for themselves, the others for characters from 256 on."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [b for b in range(256) if b not in plain]
    return {chr(b): b for b in plain} | {chr(256 + i): b for i, b in enumerate(others)}


_BYTE_OF = _byte_characters()


class _Decoding(Protocol):
    """The decoding of one sequence. ``settled`` is the number of tokens whose text is complete."""

    settled: int

    def push(self, token_id: int) -> str: ...

    def finish(self) -> str: ...


class _ByteLevel:
    """The decoding of tokens that are bytes, by an incremental UTF-8 decoder."""

    __slots__ = ("_count", "_decoder", "_skip", "_token_bytes", "settled")

    def __init__(self, vocabulary: Vocabulary, skip_special_tokens: bool) -> None:
        self._token_bytes = vocabulary.token_bytes
        self._skip = vocabulary.special if skip_special_tokens else frozenset()
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._count = 0
        self.settled = 0

    def push(self, token_id: int) -> str:
        self._count += 1
        data = b"" if token_id in self._skip else self._token_bytes(token_id)
        text = self._decoder.decode(data)
        pending = len(self._decoder.getstate()[0])
        if not pending:
            self.settled = self._count
        elif data and pending <= len(data):  # only this one is still open
            self.settled = self._count - 1
        return text

    def finish(self) -> str:
        self.settled = self._count
        return self._decoder.decode(b"", final=True)


class _Windowed:
    """The decoding of any other tokenizer: the difference between a window of tokens with and without the newest ones.

    ``_window`` has a few tokens with complete text, so that the rest is decoded as in the middle of a text, and then
    the waiting tokens: a cut character, or a run of byte tokens whose meaning may still change.
    """

    __slots__ = ("_before", "_count", "_done", "_skip", "_vocabulary", "_window", "settled")

    def __init__(self, vocabulary: Vocabulary, skip_special_tokens: bool, context: Sequence[int]) -> None:
        self._vocabulary = vocabulary
        self._skip = vocabulary.special if skip_special_tokens else frozenset()
        self._count = 0
        self.settled = 0
        window = [t for t in context if t not in self._skip]
        while window and vocabulary.is_fallback(window[-1]):  # the prompt's last run is over
            window.pop()
        self._keep(window)

    def push(self, token_id: int) -> str:
        self._count += 1
        vocabulary = self._vocabulary
        if token_id in self._skip or vocabulary.tokenizer.id_to_token(token_id) is None:
            if len(self._window) == self._done:
                self.settled = self._count
            return ""
        self._window.append(token_id)
        return "" if vocabulary.is_fallback(token_id) else self._release(final=False)

    def finish(self) -> str:
        text = self._release(final=True)
        self.settled = self._count
        return text

    def _release(self, final: bool) -> str:
        text = self._decode(self._window)
        if not final and self._vocabulary.may_split and text.endswith("\ufffd"):
            return ""
        piece = text[len(self._before) :]
        self.settled = self._count
        self._keep(self._window)
        return piece

    def _keep(self, window: list[int]) -> None:
        self._window = window[-_CONTEXT_TOKENS:]
        self._done = len(self._window)
        self._before = self._decode(self._window)

    def _decode(self, ids: list[int]) -> str:
        text: str = self._vocabulary.tokenizer.decode(ids, skip_special_tokens=False)
        return text


class StopStrings:
    """A set of strings compiled into one automaton (Aho and Corasick's), shared by all choices of a request.

    A node is the longest end of the text so far that begins a stop string; its depth is what must be held back.
    """

    def __init__(self, strings: Sequence[str]) -> None:
        self.strings = tuple(dict.fromkeys(strings))
        self.first = frozenset(s[0] for s in self.strings)
        self.next: list[dict[str, int]] = [{}]
        self.depth = [0]
        self.fail = [0]
        self.match: list[str | None] = [None]
        for string in self.strings:
            node = 0
            for char in string:
                if char not in self.next[node]:
                    self.next[node][char] = len(self.next)
                    self.next.append({})
                    self.depth.append(self.depth[node] + 1)
                    self.fail.append(0)
                    self.match.append(None)
                node = self.next[node][char]
            self.match[node] = string
        queue = deque(self.next[0].values())
        while queue:  # by depth: what a node falls back to is finished before it
            node = queue.popleft()
            if self.match[node] is None:
                self.match[node] = self.match[self.fail[node]]
            for char, child in self.next[node].items():
                queue.append(child)
                self.fail[child] = self.step(self.fail[node], char)

    def step(self, node: int, char: str) -> int:
        """The node after one more character."""
        while node and char not in self.next[node]:
            node = self.fail[node]
        return self.next[node].get(char, 0)


NO_STOPS = StopStrings(())


class TextStream:
    """The text of one choice, token by token.

    ``stopped`` is the stop string that ended it; the first to be complete wins, of several at once the longest. How the
    text is cut into tokens makes no difference. A stop string complete within the first ``min_tokens`` tokens is text.
    ``context`` is the end of the prompt when the output goes on with its text (a completion): some tokenizers decode
    the first token of a text differently. ``released_tokens`` is how many tokens, from the first, have left whole.
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        *,
        stops: StopStrings = NO_STOPS,
        include_stop: bool = False,
        skip_special_tokens: bool = True,
        min_tokens: int = 0,
        context: Sequence[int] = (),
    ) -> None:
        self._decoding: _Decoding = (
            _ByteLevel(vocabulary, skip_special_tokens)
            if vocabulary.byte_level
            else _Windowed(vocabulary, skip_special_tokens, context)
        )
        self._stops = stops
        self._include_stop = include_stop
        self._min_tokens = min_tokens
        self._count = 0
        self._node = 0
        self._held = ""
        self._decoded = 0  # characters
        self._ends: deque[tuple[int, int]] = deque()  # tokens settled while text is held: their count, characters
        self.stopped: str | None = None
        self.released_tokens = 0

    def push(self, token_id: int) -> str:
        """Take the next token, and return the text that is certain now. After a stop there is no more text."""
        if self.stopped is not None:
            return ""
        self._count += 1
        return self._pass(self._decoding.push(token_id))

    def finish(self) -> str:
        """Return the text that was held back, with U+FFFD for a cut character. After a stop there is none."""
        if self.stopped is not None:
            return ""
        text = self._pass(self._decoding.finish())
        if self.stopped is None:
            text += self._held
            self._held = ""
            self._node = 0
            self.released_tokens = self._count
        return text

    def _pass(self, text: str) -> str:
        """Hold back text that may become a stop string, and return the rest."""
        stops = self._stops
        self._decoded += len(text)
        if not self._node and (not stops.first or stops.first.isdisjoint(text)):
            self.released_tokens = self._decoding.settled
            return text
        self._ends.append((self._decoding.settled, self._decoded))
        armed = self._count > self._min_tokens
        node = self._node
        buffer = self._held + text
        for i, char in enumerate(text, len(self._held) + 1):
            node = stops.step(node, char)
            match = stops.match[node]
            if match is not None and armed:
                self.stopped = match
                text = buffer[: i if self._include_stop else i - len(match)]
                self._settle(self._decoded - len(buffer) + len(text))
                self._held = ""
                return text
        self._node = node
        cut = len(buffer) - stops.depth[node]
        self._held = buffer[cut:]
        self._settle(self._decoded - len(self._held))
        return buffer[:cut]

    def _settle(self, released: int) -> None:
        """``released`` characters have left: count the tokens whose text is among them."""
        ends = self._ends
        while ends and ends[0][1] <= released:
            self.released_tokens = ends.popleft()[0]
