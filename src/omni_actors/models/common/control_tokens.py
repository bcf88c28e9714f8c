"""Control tokens of a tokenizer, and ids of a chat in which no client's text becomes one.

A control token is an added token that a model reads as a mark and not as words: every special token, the checkpoint's
``chat_control_tokens``, the tokens that its chat template writes or looks for (``<think>``, ``<tool_call>``), and
tokens written like ``<|this|>``. Added tokens that only abbreviate text (Gemma's runs of line breaks and tags of HTML)
are not control tokens: such a text's ids are those of the reference.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from tokenizers import AddedToken, Tokenizer

from omni_actors.models.common.traced import UNSURE, Traced
from omni_actors.protocol.errors import invalid_request

_SHAPE = re.compile(r"<[|｜].*[|｜]>", re.DOTALL)

_OWN, _CUT = "\U0010fffd\U000ffff0\U0010fffd", "\U0010fffd\U000ffff1\U0010fffd"
"""Added tokens of the second tokenizer: the place of a control token of the template's own, and a place where a text is
cut, which is no token in the end. No character of theirs means anything to anybody."""


class Unsure(Exception):
    """The template did an untracked operation on a text, and a control token came out of the operation."""


class ControlTokens:
    """The control tokens of one tokenizer with its chat template."""

    def __init__(self, tokenizer: Any, template: str) -> None:
        listed = frozenset(getattr(tokenizer, "chat_control_tokens", None) or ())
        added: Mapping[int, AddedToken] = tokenizer.added_tokens_decoder
        self.texts = {
            id_: token.content
            for id_, token in added.items()
            if token.content.strip()
            and (
                token.special or token.content in listed or token.content in template or _SHAPE.fullmatch(token.content)
            )
        }
        """The tokens' texts, by id."""
        self._tokenizer = tokenizer
        self._unknown = tokenizer.unk_token_id
        backend: Tokenizer = tokenizer.backend_tokenizer
        # Added tokens that are looked for in the normalized text may come about by normalization alone.
        normalized = any(added[id_].normalized for id_ in self.texts)
        self._normalizer = backend.normalizer if normalized else None
        self._edges = {edge for text in self.texts.values() for edge in (text[0], text[-1])}
        kept = {id_: token for id_, token in added.items() if id_ not in self.texts}
        self._plain = _words_only(backend, kept.values())
        self._meant = {self._plain.token_to_id(token.content): id_ for id_, token in kept.items()}
        """Ids of the second tokenizer's added tokens → the tokenizer's own."""
        self._own, self._cut = map(self._plain.token_to_id, (_OWN, _CUT))

    def suspects(self, texts: Iterable[str]) -> bool:
        """Return whether these texts of a client could form a control token, alone or together with the text around: a
        text holds a character with which a control token begins or ends, or is a piece of one."""
        return any(map(self._suspects, texts))

    def _suspects(self, text: str) -> bool:
        if self._normalizer is not None and not text.isascii():
            text = self._normalizer.normalize_str(text)
        if any(edge in text for edge in self._edges):
            return True
        bare = text.strip()
        return bool(bare) and any(bare in control for control in self.texts.values())

    def held_by(self, texts: Iterable[str]) -> str | None:
        """Return a control token that one of these texts holds whole, or ``None``."""
        return next((control for text in texts for control in self.texts.values() if control in text), None)

    def encode(self, text: Traced) -> list[int]:
        """Return the ids of a chat: those of the tokenizer, except that a control token with a character from a client
        is encoded as words. Raises :class:`Unsure` if the author of a control token cannot be told, and 400 for a token
        that cannot be encoded as words."""
        made = self._tokenizer(text.plain, add_special_tokens=False, return_offsets_mapping=True)
        ids: list[int] = made["input_ids"]
        places = list(self._controls(ids, made["offset_mapping"], text.plain))
        origins = [_origins(text, begin, end) for _, begin, end in places]
        if any(UNSURE in found for found in origins):
            raise Unsure
        own = [place for place, found in zip(places, origins, strict=True) if not any(found)]
        return ids if len(own) == len(places) else self._encode_words(text, own)

    def _controls(
        self, ids: Iterable[int], offsets: Iterable[tuple[int, int]], text: str
    ) -> Iterator[tuple[int, int, int]]:
        """Yield the control tokens among a text's ids, each as (id, begin, end). The id for unknown text counts only
        where its own name is written."""
        for id_, (begin, end) in zip(ids, offsets, strict=True):
            if id_ in self.texts and (id_ != self._unknown or text[begin:end].strip() == self.texts[id_]):
                yield id_, begin, end

    def _encode_words(self, text: Traced, own: list[tuple[int, int, int]]) -> list[int]:
        """Return the ids of a text whose only control tokens are these, each as (id, begin, end)."""
        if _OWN in text or _CUT in text:
            raise invalid_request("A text holds characters that mean nothing.", "messages")
        pieces: list[str] = []
        at = 0
        for _, begin, end in own:
            pieces += (text[at:begin].plain, _OWN)
            at = end
        ids = self._cut_in_two("".join((*pieces, text[at:].plain)))
        controls = iter([id_ for id_, _, _ in own])
        return [next(controls) if id_ == self._own else self._meant.get(id_, id_) for id_ in ids if id_ != self._cut]

    def _cut_in_two(self, text: str) -> list[int]:
        """Return ids of the second tokenizer. If its model knows the text of a control token as a word, that word is
        cut."""
        while True:
            made = self._plain.encode(text, add_special_tokens=False)
            known = [
                (begin, end)
                for id_, begin, end in self._controls(made.ids, made.offsets, text)
                if id_ not in (self._own, self._cut, *self._meant)
            ]
            if not known:
                ids: list[int] = made.ids
                return ids
            pieces: list[str] = []
            at = 0
            for begin, end in known:
                if end - begin < 2:
                    raise invalid_request("A text holds a control token that cannot be written as words.", "messages")
                pieces += (text[at : begin + 1], _CUT)
                at = begin + 1
            text = "".join((*pieces, text[at:]))


def _origins(text: Traced, begin: int, end: int) -> bytes:
    """Return the origins of a token's characters, without white space that the token may have swallowed."""
    return text[begin:end].strip().origins


def _words_only(backend: Tokenizer, kept: Iterable[AddedToken]) -> Tokenizer:
    """Return a tokenizer with the same model (shared, not copied) that knows only these added tokens, :data:`_OWN` and
    :data:`_CUT`."""
    made = Tokenizer(backend.model)
    if backend.normalizer is not None:
        made.normalizer = backend.normalizer
    if backend.pre_tokenizer is not None:
        made.pre_tokenizer = backend.pre_tokenizer
    made.add_tokens([*kept, *(AddedToken(it, normalized=False, special=False) for it in (_OWN, _CUT))])
    return made
