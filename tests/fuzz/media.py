"""Files of clients, decoded by the media process: a damaged one is a 400, and a decoder's death is a finding."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial

import numpy as np
from PIL import Image
from tests.fuzz.inputs import refusing
from tests.fuzz.target import One, Target, chance, cuts
from tests.media.harness import container, tone, wav
from tests.media.pictures import encoded, endless_jpeg, motion_jpeg, noise, png, video

from omni_actors.media.limits import Limits
from omni_actors.media.questions import How
from omni_actors.media.worker.decode import Decoding
from omni_actors.media.worker.decoder_thread import DecoderThread
from omni_actors.media.worker.held import Blob, Clip, Picture, Video

LIMITS = Limits(
    max_seconds=20.0,
    max_video_seconds=60.0,
    max_image_pixels=1 << 18,
    max_frame_pixels=1 << 16,
    max_video_pixels=1 << 18,
    max_video_frames=8,
)
_TYPES = (None, "audio/pcm", "audio/L16;rate=8000;channels=2", "audio/pcm;rate=x", "audio/mpeg", "")


@contextmanager
def _decoder(modality: str) -> Iterator[One]:
    decoder_thread = DecoderThread()
    try:
        yield partial(_decode, modality, decoder_thread)
    finally:
        decoder_thread.close()


def _decode(modality: str, decoder_thread: DecoderThread, data: bytes) -> None:
    dice = chance(data)
    blob = Blob()
    for piece in cuts(data):
        blob.write(piece)
    how = How(
        rate=dice.choice((None, 24_000)) if modality == "audio" else None,
        within=dice.choice((None, 16)) if modality == "image" else None,
        alpha=modality == "image" and dice.random() < 0.5,
        mask_of=dice.choice((None, None, (8, 8), (24, 32))) if modality == "image" else None,
        sound=modality == "video" and dice.random() < 0.5,
    )
    decoding = Decoding(modality, how, LIMITS, LIMITS.max_seconds, lambda nbytes: None, decoder_thread, "file")
    declared = dice.choice(_TYPES) if modality == "audio" else None
    with refusing():
        work = decoding.run(blob, declared, dice.choice((None, "a.pcm", "a.wav")))
        try:
            while True:
                next(work)
        except StopIteration as done:
            _check(done.value, how)


def _check(made: Clip | Picture | Video, how: How) -> None:
    if isinstance(made, Clip):
        assert 0 < made.seconds <= LIMITS.max_seconds
        assert made.samples.dtype == np.float32
        assert np.abs(made.samples).max() <= 1.0  # NaN fails too
    elif isinstance(made, Picture):
        assert made.pixels.ndim == 3
        assert made.pixels.shape[2] == (4 if how.alpha or how.mask_of else 3)
        assert 0 < made.pixels.shape[0] * made.pixels.shape[1] <= LIMITS.max_image_pixels


def _sounds() -> Sequence[bytes]:
    made = [wav(tone(0.05)), wav(tone(0.05, channels=2), channels=2), tone(0.02)]
    for format, codec in (("mp3", "libmp3lame"), ("ogg", "libopus"), ("flac", "flac"), ("webm", "libopus")):
        made.append(container(format, codec, tone(0.08, 48_000)))
    return [*made, container("mp4", "aac", tone(0.08, 48_000)), container("aiff", "pcm_s16be", tone(0.03, 48_000))]


def _images() -> Sequence[bytes]:
    picture = Image.fromarray(noise(24, 32))
    made = [encoded(picture, name) for name in ("PNG", "JPEG", "WEBP", "GIF", "BMP")]
    made += [png(noise(8, 8), "P"), png(noise(8, 8), "LA"), encoded(picture, "JPEG", progressive=True)]
    exif = Image.Exif()
    exif[0x0112] = 6
    clear = np.dstack([noise(8, 8), np.arange(64, dtype=np.uint8).reshape(8, 8)])
    deep = Image.fromarray(np.arange(64, dtype=np.uint16).reshape(8, 8) * 1000)
    made += [png(clear), png(clear, "P"), encoded(Image.fromarray(clear), "WEBP", lossless=True)]
    made += [encoded(deep, "PNG", transparency=3000)]
    return [*made, encoded(picture, "JPEG", exif=exif), endless_jpeg(16, 4)]


def _videos() -> Sequence[bytes]:
    small = (32, 32)
    return [
        video(4, size=small),
        video(4, size=small, sound_hz=440.0),
        video(4, size=small, format="webm", codec="libvpx"),
        video(4, size=small, format="avi", codec="mpeg4"),
        motion_jpeg([encoded(Image.fromarray(noise(16, 16)), "JPEG")] * 3, 16),
    ]


def _opened(modality: str) -> Callable[[], AbstractContextManager[One]]:
    return partial(_decoder, modality)


_BOXES = (
    b"moov",
    b"trak",
    b"stsd",
    b"mdat",
    b"RIFF",
    b"WAVEfmt ",
    b"data",
    b"OggS",
    b"fLaC",
    b"ID3",
    b"\x1a\x45\xdf\xa3",
)
_CHUNKS = (
    b"IHDR",
    b"IDAT",
    b"PLTE",
    b"eXIf",
    b"\xff\xd8",
    b"\xff\xda",
    b"\xff\xc2",
    b"GIF89a",
    b"RIFF",
    b"WEBPVP8X",
    b"BM",
)

TARGETS = (
    Target("audio", "OmniError below 500", _opened("audio"), _sounds, _BOXES, 16384),
    Target("image", "OmniError below 500", _opened("image"), _images, _CHUNKS, 8192),
    Target("video", "OmniError below 500", _opened("video"), _videos, _BOXES, 32768),
)
