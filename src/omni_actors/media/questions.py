"""What the serving side asks of the media process: one struct per question, ``Query.what`` is its tag.

===============  ===========  =================================================================================
question         answer       meaning
===============  ===========  =================================================================================
blob_open        int          start a body; its id
blob_append      None         the next piece of it
decode           MediumInfo   decode a body to a clip, an image or a video; the body is used up, also on failure
parse_chat       ChatInfo     parse a chat body; nothing in it is decoded; the media that it brings itself are held
decode_parts     MediumInfo…  decode the media that a parsed body brought; the body is used up, also on failure
encode_open      int          start an encoder; its id
encode_feed      Encoded      PCM in, what is encoded so far out
encode_finish    Encoded      the last PCM (may be empty) in, the rest out; the encoder is gone when ``more`` is false
encode_read      Encoded      the next piece after ``more``
discard          None         free what these owners still have, and these media (a request that had them is over);
                              unknown ones are ignored
===============  ===========  =================================================================================

Whatever is opened has an ``owner``, a token that the client draws for each of its operations: a client that was
cancelled before it learnt an id still can have the thing freed. ``param`` names the field that an error is about.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, TypeVar

import msgspec

A = TypeVar("A")


class Question(msgspec.Struct, kw_only=True, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    what: ClassVar[str]

    def args(self) -> dict[str, Any]:
        """As :class:`~omni_actors.protocol.frames.Query` carries it."""
        args: dict[str, Any] = msgspec.to_builtins(self, builtin_types=(bytes,))
        return args


class BlobOpen(Question, frozen=True):
    what = "blob_open"
    owner: str
    param: str | None = None


class BlobAppend(Question, frozen=True):
    what = "blob_append"
    blob: int
    data: bytes


class How(msgspec.Struct, kw_only=True, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """How a medium is to be decoded; what is ``None`` is as the limits say.

    ``rate``: a clip is resampled to so many Hz (of those that the limits allow), in place of the clip rate. ``within``:
    an image is shrunk to fit a square of so many pixels a side. Of a video ``fps`` frames a second are sampled, at most
    ``max_frames`` (and never more than the limits allow), and its ``sound`` if there is any.
    """

    rate: int | None = None
    within: int | None = None
    fps: float | None = None
    max_frames: int | None = None
    sound: bool = False


class Decode(Question, frozen=True):
    """The body is ``blob``, or ``data`` when it fits one piece. The hints only matter for raw PCM, which nothing in the
    bytes declares."""

    what = "decode"
    owner: str
    modality: str = "audio"
    blob: int | None = None
    data: bytes = b""
    content_type: str | None = None
    filename: str | None = None
    max_seconds: float | None = None
    how: How = How()
    param: str | None = None


class ParseChat(Question, frozen=True):
    """``modalities``: those of messages that the model takes (``None``: all); another one is refused. ``clip``: the
    field of the body itself that brings a clip (a transcription's ``input_audio``, a speech's ``ref_audio``), if one
    does; others are left as they are. ``reference_rate``: :attr:`How.rate` of ``ref_audio``."""

    what = "parse_chat"
    owner: str
    blob: int | None = None
    data: bytes = b""
    modalities: tuple[str, ...] | None = None
    clip: str | None = None
    reference_rate: int | None = None


class DecodeParts(Question, frozen=True):
    """Decodes all media of ``body``, which is :attr:`ChatInfo.held`. ``max_seconds`` bounds the sum of their sound,
    ``longest_s`` each clip."""

    what = "decode_parts"
    owner: str
    body: int
    max_seconds: float | None = None
    longest_s: float | None = None


class EncodeOpen(Question, frozen=True):
    what = "encode_open"
    owner: str
    format: str
    sample_rate: int
    channels: int = 1
    streaming: bool = True


class EncodeFeed(Question, frozen=True):
    what = "encode_feed"
    stream: int
    data: bytes


class EncodeFinish(Question, frozen=True):
    what = "encode_finish"
    stream: int
    data: bytes = b""


class EncodeRead(Question, frozen=True):
    what = "encode_read"
    stream: int


class Discard(Question, frozen=True):
    what = "discard"
    owners: tuple[str, ...] = ()
    clips: tuple[int, ...] = ()


class Settle(Question, frozen=True):
    """Answered as soon as the process holds nothing of anybody, so that it can be replaced without a loss. Whoever asks
    sees to it that nothing begins (:func:`begins`) meanwhile."""

    what = "settle"


QUESTIONS: dict[str, type[Question]] = {
    question.what: question
    for question in (
        BlobOpen,
        BlobAppend,
        Decode,
        ParseChat,
        DecodeParts,
        EncodeOpen,
        EncodeFeed,
        EncodeFinish,
        EncodeRead,
        Discard,
        Settle,
    )
}


def begins(what: str, args: Mapping[str, Any]) -> bool:
    """Whether a question begins an operation. The others belong to one that the process holds something of."""
    return what in ("blob_open", "encode_open") or (what in ("decode", "parse_chat") and args.get("blob") is None)


def first_id(replica: int, incarnation: int) -> int:
    """Where a process's ids begin: they count up from here and never meet those of another replica or life."""
    return (replica & 0x7FFF) << 48 | (incarnation & 0xFFFF) << 32 | 1


class MediumInfo(msgspec.Struct, frozen=True):
    """A decoded medium that waits for its request, under the number ``id``. ``audio_seconds`` counts towards the limit
    on a body's sum."""

    id: int
    modality: str
    seconds: float
    audio_seconds: float


class PartInfo(msgspec.Struct, frozen=True, tag="part"):
    """A medium whose data are in the body itself."""

    modality: str


class LinkInfo(msgspec.Struct, frozen=True, tag="link"):
    """A medium that a body names by URL: the asker must fetch it, and have it decoded."""

    url: str
    modality: str
    param: str
    how: How


class ChatInfo(msgspec.Struct, frozen=True):
    """``body`` is the request's JSON with each media part replaced by ``{"type": MODALITY, "index": i}``; ``media`` are
    the parts in order. ``held`` is the id of the data of those that are no links, ``None`` without any."""

    body: bytes
    media: tuple[PartInfo | LinkInfo, ...] = ()
    held: int | None = None


class Encoded(msgspec.Struct, frozen=True):
    data: bytes
    more: bool = False


def plain(answer: msgspec.Struct) -> Any:
    """An answer as plain builtins (bytes stay bytes)."""
    return msgspec.to_builtins(answer, builtin_types=(bytes,))


def parse(value: Any, kind: type[A]) -> A:
    """The other way round; raises :class:`msgspec.ValidationError`."""
    return msgspec.convert(value, kind, builtin_types=(bytes,))
