"""Prompts with media: the media of a prompt, and the places of their features."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch

from omni_actors.connectors.payload import Payload
from omni_actors.protocol.errors import invalid_request
from omni_actors.worker.checks import TensorSpec, check_input

Modality = Literal["image", "audio", "video"]

MODALITIES: tuple[Modality, ...] = ("image", "audio", "video")


@dataclass(frozen=True, slots=True)
class Medium:
    """The facts about a medium that the prompt needs: the metadata of its "features" payload.

    ``tokens`` is the number of rows of its features; ``grid`` the patches [time, height, width] of an image or video;
    ``second_per_grid`` the seconds between a video's grids; ``audio_tokens`` the rows of its sound track, 0 without
    one; ``digest`` names its bytes.
    """

    modality: Modality
    index: int
    tokens: int
    grid: tuple[int, int, int] = (0, 0, 0)
    second_per_grid: float = 0.0
    audio_tokens: int = 0
    digest: str = ""

    @classmethod
    def of(cls, meta: dict[str, Any]) -> Medium:
        """Return the medium of a "features" payload's metadata."""
        t, h, w = meta.get("grid", (0, 0, 0))
        return cls(
            modality=meta["modality"],
            index=meta["index"],
            tokens=meta["tokens"],
            grid=(t, h, w),
            second_per_grid=meta.get("second_per_grid", 0.0),
            audio_tokens=meta.get("audio_tokens", 0),
            digest=meta.get("digest", ""),
        )


def check_features(payload: Payload, medium: Medium, width: int) -> None:
    """Raise :class:`InputError` unless a "features" payload has the stated number of rows of the thinker's
    ``width``."""
    rows: dict[str, tuple[int | None, ...]] = {
        "features": (medium.tokens, width),
        "audio": (medium.audio_tokens, width),
        "deepstack": (None, medium.tokens, width),
    }
    wanted = {"features"} | ({"audio"} if medium.audio_tokens else set()) | (rows.keys() & payload.tensors.keys())
    check_input(payload, {name: TensorSpec("float", rows[name]) for name in wanted})


@dataclass(frozen=True, slots=True)
class Placement:
    """The places of a medium's rows: row ``i`` of its tensor ``tensor`` ("features", "audio") is the prompt's token
    ``places[i]``. ``places`` is int64 [rows], ascending."""

    medium: Medium
    tensor: Literal["features", "audio"]
    places: torch.Tensor


@dataclass(frozen=True, slots=True)
class Expanded:
    """The thinker's input.

    ``positions`` are float32 [3, tokens]: temporal, vertical, horizontal. They are whole numbers if every video's
    ``second_per_grid`` times the positions of a second is one. Token ``n`` behind the prompt has position ``n +
    rope_delta`` on all three axes, ``n`` counted from the prompt's first token. ``root`` names the media: prompts with
    equal tokens and different media have different roots; ``b""`` without media.
    """

    tokens: list[int]
    positions: torch.Tensor
    rope_delta: float
    placements: tuple[Placement, ...] = ()
    root: bytes = b""


def with_media(
    messages: list[dict[str, Any]], media: Mapping[int, Medium]
) -> tuple[list[dict[str, Any]], list[Medium]]:
    """Return the messages with their media parts in the form for chat templates, and the media in order. Raises 400 for
    a part that names no medium of its modality."""
    parts: list[Medium] = []

    def convert(part: dict[str, Any]) -> dict[str, Any]:
        kind = part.get("type")
        if kind == "text":
            return {"type": "text", "text": part.get("text", "")}
        medium = media.get(part.get("index", -1)) if kind in MODALITIES else None
        if medium is None or medium.modality != kind:
            raise invalid_request(f"This model takes no content part of type {kind!r} here.", param="messages")
        parts.append(medium)
        return {"type": kind, kind: str(medium.index)}

    converted = [
        message | {"content": [convert(part) for part in message["content"]]}
        if isinstance(message.get("content"), list)
        else message
        for message in messages
    ]
    return converted, parts


def root_of(media: Sequence[Medium]) -> bytes:
    """Return the name of these media in the prefix cache; empty without media."""
    if not media:
        return b""
    digest = hashlib.blake2b(digest_size=16)
    for medium in media:
        facts = (medium.modality, medium.digest, medium.tokens, medium.grid, medium.second_per_grid)
        digest.update(repr((*facts, medium.audio_tokens)).encode())
    return digest.digest()
