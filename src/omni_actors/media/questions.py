"""The queries from the serving half to the media process: one struct for each, with ``Query.what`` as its tag.

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

Everything that is opened has an ``owner``, a token that the client draws for each operation: a client that was
cancelled before it received an id can still let the thing be freed. ``param`` names the field of an error.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, TypeVar

import msgspec

A = TypeVar("A")


class Question(msgspec.Struct, kw_only=True, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    what: ClassVar[str]

    def args(self) -> dict[str, Any]:
        """Return the arguments as :class:`~omni_actors.protocol.frames.Query` carries them."""
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
    """The way in which a medium is decoded. A field with ``None`` follows the limits.

    ``rate``: the sample rate of a clip in Hz, among the rates that the limits allow. ``within``: the side in pixels of
    the square into which an image is shrunk. ``fps`` and ``max_frames``: the sampling of a video's frames, never more
    than the limits allow. ``sound``: whether a video's sound is decoded, if there is any.

    ``alpha``: whether an image keeps its transparency, as a fourth channel; otherwise the image is laid on white.
    ``mask_of``: the width and height of the picture whose mask the image is. A mask keeps its transparency, has the
    picture's size and transparent pixels; any other image is refused.
    """

    rate: int | None = None
    within: int | None = None
    fps: float | None = None
    max_frames: int | None = None
    sound: bool = False
    alpha: bool = False
    mask_of: tuple[int, int] | None = None


class Decode(Question, frozen=True):
    """Decode a body: ``blob``, or ``data`` when the body fits one piece.

    The hints only matter for raw PCM, whose bytes do not declare the format.
    """

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
    """Parse a chat body.

    ``modalities`` are the modalities that the model takes in messages (``None``: all); others are refused. ``clip`` is
    the body's own field with a clip (a transcription's ``input_audio``, a speech's ``ref_audio``), or ``images`` for
    a body with pictures to edit and perhaps a ``mask``;
    other fields stay as they are. ``reference_rate`` is :attr:`How.rate` of ``ref_audio``, and ``alpha`` is
    :attr:`How.alpha` of the images.
    """

    what = "parse_chat"
    owner: str
    blob: int | None = None
    data: bytes = b""
    modalities: tuple[str, ...] | None = None
    clip: str | None = None
    reference_rate: int | None = None
    alpha: bool = False


class DecodeParts(Question, frozen=True):
    """Decode all media of ``body``, an id from :attr:`ChatInfo.held`.

    ``max_seconds`` bounds the sum of all sound, ``longest_s`` each clip.
    """

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
    """Answer once the process holds no client's data, so that the process can be replaced without a loss.

    The asker must start no operation (:func:`begins`) until then.
    """

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
    """Whether a query begins an operation. Other queries belong to an operation with data in the process."""
    return what in ("blob_open", "encode_open") or (what in ("decode", "parse_chat") and args.get("blob") is None)


def first_id(replica: int, incarnation: int) -> int:
    """Return the first id of a process. Ids count up, and never equal an id of another replica or incarnation."""
    return (replica & 0x7FFF) << 48 | (incarnation & 0xFFFF) << 32 | 1


class MediumInfo(msgspec.Struct, frozen=True):
    """A decoded medium that waits for its request, under the number ``id``.

    ``audio_seconds`` counts towards the limit on the sound of a body. ``width`` and ``height`` are those of an image or
    of a video's frames, in pixels, and 0 for sound.
    """

    id: int
    modality: str
    seconds: float
    audio_seconds: float
    width: int = 0
    height: int = 0


class PartInfo(msgspec.Struct, frozen=True, tag="part"):
    """A medium with its data in the body."""

    modality: str


class LinkInfo(msgspec.Struct, frozen=True, tag="link"):
    """A medium that a body names by URL. The asker must fetch the medium and let it be decoded."""

    url: str
    modality: str
    param: str
    how: How


class ChatInfo(msgspec.Struct, frozen=True):
    """A parsed chat body.

    ``body`` is the request's JSON with each media part replaced by ``{"type": MODALITY, "index": i}``; ``media`` are
    the parts in order. ``held`` is the id of the data of all parts that are not links, or ``None``.
    """

    body: bytes
    media: tuple[PartInfo | LinkInfo, ...] = ()
    held: int | None = None


class Encoded(msgspec.Struct, frozen=True):
    data: bytes
    more: bool = False


def plain(answer: msgspec.Struct) -> Any:
    """Turn an answer into plain builtins; bytes stay bytes."""
    return msgspec.to_builtins(answer, builtin_types=(bytes,))


def parse(value: Any, kind: type[A]) -> A:
    """Turn plain builtins into an answer. Raises :class:`msgspec.ValidationError`."""
    return msgspec.convert(value, kind, builtin_types=(bytes,))
