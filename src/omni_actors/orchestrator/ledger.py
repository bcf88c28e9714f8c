"""The ledgers of a request: the reports of its stages over all attempts, as the start of a new attempt.

There are two kinds of stage (:attr:`~omni_actors.pipelines.declaration.Stage.recovery`). A *prefix* stage gets back its
earlier tokens, and goes on behind the last one. A *replay* stage computes everything again; by counting, the ledger
leaves out the output of earlier attempts.
"""

from __future__ import annotations

import msgspec

from omni_actors.orchestrator.diverged import Diverged
from omni_actors.orchestrator.pictures import PictureLedger
from omni_actors.pipelines.declaration import Recovery
from omni_actors.protocol.frames import Ledger, Prefix
from omni_actors.protocol.request import MediaChunk, StepProgress, TextDelta


class _Text:
    """The text of one choice of a replay stage, in characters and tokens: the length at the client, and the position
    of the present attempt."""

    __slots__ = ("at", "at_token", "ended", "sent", "sent_tokens")

    def __init__(self) -> None:
        self.sent = self.sent_tokens = 0
        self.at = self.at_token = 0
        self.ended = False

    def cut(self, delta: TextDelta) -> TextDelta | None:
        """Return the part of a delta new to the client."""
        begin, begin_token = self.at, self.at_token
        self.at += len(delta.text)
        self.at_token += len(delta.token_ids)
        if begin == self.sent and begin_token == self.sent_tokens and not self.ended:  # as in every first attempt
            self.sent, self.sent_tokens = self.at, self.at_token
            self.ended = delta.finish_reason is not None
            return delta
        skip, skip_tokens = max(0, self.sent - begin), max(0, self.sent_tokens - begin_token)
        finish = None if self.ended else delta.finish_reason
        self.ended |= delta.finish_reason is not None
        self.sent = max(self.sent, self.at)
        self.sent_tokens = max(self.sent_tokens, self.at_token)
        if not skip and not skip_tokens and finish == delta.finish_reason:
            return delta
        text, tokens = delta.text[skip:], delta.token_ids[skip_tokens:]
        if not text and not tokens and finish is None:
            return None
        logprobs = None if delta.logprobs is None else delta.logprobs[skip_tokens:]
        return msgspec.structs.replace(delta, text=text, token_ids=tokens, logprobs=logprobs, finish_reason=finish)


class StageLedger:
    """The ledger of one stage of one request."""

    __slots__ = ("_at", "_data", "_pictures", "_recovery", "_texts", "_tokens", "delivered")

    def __init__(self, recovery: Recovery) -> None:
        self._recovery = recovery
        self._tokens: list[list[int]] = []
        self._data = bytearray()
        self._texts: dict[int, _Text] = {}
        self._pictures: PictureLedger | None = None
        self._at = 0
        self.delivered = 0
        """Units of media that the client has: samples per channel of audio, bytes of any other modality. Pictures are
        not counted here."""

    @property
    def has_output(self) -> bool:
        """Whether the client has any output of this stage."""
        pictures = self._pictures is not None and bool(self._pictures.whole)
        return bool(self.delivered or self._texts or any(self._tokens) or pictures)

    def has_picture(self, index: int) -> bool:
        """Return whether the client has the picture of this index from this stage."""
        return self._pictures is not None and self._pictures.has(index)

    def text(self, delta: TextDelta) -> TextDelta | None:
        """Note a text delta. Returns the part for the client."""
        if self._recovery == "prefix":
            self._choice(delta.index).extend(delta.token_ids)
            return delta
        text = self._texts.get(delta.index)
        if text is None:
            text = self._texts[delta.index] = _Text()
        return text.cut(delta)

    def media(self, chunk: MediaChunk) -> MediaChunk | None:
        """Note a piece of media. Returns the part for the client. Raises :class:`Diverged` when the piece leaves a
        gap, and its ``BrokenPicture`` for a picture that cannot be delivered."""
        meta = chunk.meta
        if chunk.modality == "image":
            return self._picture_ledger().take(chunk)
        frame = 2 * meta["channels"] if chunk.modality == "audio" else 1
        begin = meta.get("start", self._at)
        self._at = begin + len(chunk.data) // frame
        if begin == self.delivered:
            self.delivered = self._at
            return chunk
        if begin > self.delivered:
            raise Diverged
        skip, self.delivered = self.delivered - begin, max(self.delivered, self._at)
        data = chunk.data[skip * frame :]
        return msgspec.structs.replace(chunk, data=data) if data else None

    def progress(self, progress: StepProgress) -> bool:
        """Note that a denoising step is done. Returns whether the client does not know that yet."""
        return self._picture_ledger().step(progress)

    def note(self, entry: Ledger) -> None:
        """Note tokens or data chosen by the stage and not sent to the client."""
        if entry.tokens:
            self._choice(entry.index).extend(entry.tokens)
        self._data += entry.data

    def done(self) -> None:
        """Check a finished stage. Raises :class:`Diverged` when the attempt produced less than the client has, or only
        a part of a picture. (A stage may begin behind the delivered output; with nothing to add, such a stage reports
        nothing.)"""
        if self._pictures is not None:
            self._pictures.done()
        if 0 < self._at < self.delivered or any(text.at < text.sent for text in self._texts.values()):
            raise Diverged

    def again(self) -> tuple[Prefix | None, int]:
        """Begin a new attempt. Returns the ``prefix`` and ``delivered`` of its Submit."""
        self._at = 0
        if self._pictures is not None:
            self._pictures.again()
        for text in self._texts.values():
            text.at = text.at_token = 0
        prefix = None
        if self._recovery == "prefix" and (self._tokens or self._data):
            prefix = Prefix(tuple(map(tuple, self._tokens)), bytes(self._data))
        return prefix, self.delivered

    def _picture_ledger(self) -> PictureLedger:
        if self._pictures is None:
            self._pictures = PictureLedger()
        return self._pictures

    def _choice(self, index: int) -> list[int]:
        while len(self._tokens) <= index:
            self._tokens.append([])
        return self._tokens[index]
