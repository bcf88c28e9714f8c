"""What a request's stages make of it: pure functions of its seed and length, and the same composed without any stage.

Everything is a function of (seed, stage, choice, position), as in a real stage, so that no attempt differs from
another.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass

from .schedule import Load

TAIL = 2
"""Frames that the speaker makes once its text has ended."""

SAMPLES = 3
"""Of each frame of the voice."""

WIDTH = 5
"""Bytes of picture for each token."""


def mix(*values: int) -> int:
    """A number of 32 bits that depends on each of these and on their order."""
    found = 0x811C9DC5
    for value in values:
        found = ((found ^ (value & 0xFFFFFFFF)) * 0x01000193 + (value >> 7)) & 0xFFFFFFFF
        found ^= found >> 15
    return found


def token_of(fold: int, choice: int, position: int) -> int:
    return mix(fold, 101 + choice, position) % 50_000


def text_of(token: int) -> str:
    return chr(97 + token % 26) * (1 + token % 3)


def code_of(fold: int) -> int:
    return mix(fold, 7) % 4096


def samples_of(fold: int) -> bytes:
    return struct.pack(f"<{SAMPLES}H", *(mix(fold, 13, i) & 0xFFFF for i in range(SAMPLES)))


def fed_value(seed: int, position: int) -> int:
    """What a client feeds."""
    return mix(seed, 17, position) % 50_000


def file_of(content: bytes, salt: bytes) -> bytes:
    """A picture's file: another one each time it is written, with the same picture in it."""
    return struct.pack("<III", len(content), zlib.crc32(content), zlib.crc32(salt)) + content + salt


def opened(file: bytes) -> bytes | None:
    """The picture in a file; ``None`` for a file that is cut off, or made of parts of several."""
    if len(file) < 12:
        return None
    size, content_sum, salt_sum = struct.unpack("<III", file[:12])
    content, salt = file[12 : 12 + size], file[12 + size :]
    whole = (zlib.crc32(content), zlib.crc32(salt)) == (content_sum, salt_sum) and len(content) == size
    return content if whole else None


def latents_of(seed: int, steps: int) -> int:
    """The state of a cursor after so many steps. Each step depends on the one before."""
    fold = mix(seed & 0xFFFFFFFF, 31)
    for step in range(1, steps + 1):
        fold = denoised(fold, step)
    return fold


def denoised(latents: int, step: int) -> int:
    return mix(latents, 37, step)


def skipped(step: int) -> bool:
    """Whether a step cache answers this step."""
    return step % 3 == 0


def pixels_of(latents: int) -> bytes:
    return b"".join(mix(latents, 41, i).to_bytes(4, "little") for i in range(1 + latents % 40))


@dataclass(frozen=True, slots=True)
class Drawn:
    """What the task ``draw`` makes: pictures, after so many steps each. The seed is drawn by the orchestrator."""

    pictures: int
    steps: int

    @property
    def skipped(self) -> int:
        return self.pictures * sum(skipped(step + 1) for step in range(self.steps))


@dataclass(frozen=True, slots=True)
class Expected:
    """The text of each choice, the sound and the picture; ``None`` for what is not wanted."""

    texts: tuple[str, ...] | None
    audio: bytes | None
    image: bytes | None
    tokens: int
    drawn: Drawn | None = None


def expected(load: Load, seed: int) -> Expected:
    """What this request gives when nothing befalls it."""
    audio = image = None
    texts: tuple[str, ...] | None = None
    if load.task == "draw":
        return Expected(None, None, None, 0, Drawn(load.choices, load.tokens))
    if load.task == "stream":
        tokens = [fed_value(seed, i) for i in range(load.tokens)]
    else:
        fold = seed
        if load.task == "describe":
            for i in range(load.tokens):
                fold = mix(fold, mix(seed, 11, i))
        chosen = [[token_of(fold, choice, i) for i in range(load.tokens)] for choice in range(load.choices)]
        tokens = chosen[0]
        if "text" in load.outputs:
            texts = tuple("".join(map(text_of, choice)) for choice in chosen)
        if "image" in load.outputs:
            image = picture_of(tokens)
    if "audio" in load.outputs:
        fold, heard, sound = 1, 2, bytearray()
        for token in [*tokens, *range(TAIL)]:
            fold = mix(fold, token)
            heard = mix(heard, code_of(fold))
            sound += samples_of(heard)
        hint = 3
        if load.task != "stream":
            for token in tokens:
                hint = mix(hint, token)
        sound += samples_of(mix(heard, hint))
        audio = bytes(sound)
    return Expected(texts, audio, image, load.tokens * load.choices)


def picture_of(tokens: list[int]) -> bytes:
    fold = 5
    found = bytearray()
    for token in tokens:
        fold = mix(fold, token)
        found += fold.to_bytes(4, "little") + b"."
    return bytes(found)
