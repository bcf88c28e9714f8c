"""Images and videos to put into the media engine."""

from __future__ import annotations

import io
import struct
import zlib
from fractions import Fraction
from typing import Any

import av
import numpy as np
import numpy.typing as npt
from PIL import Image

UInt8 = npt.NDArray[np.uint8]


def noise(height: int, width: int, seed: int = 0) -> UInt8:
    """Uneven colours that no codec makes flat by accident: broad gradients with a mark in one corner."""
    rows, columns = np.mgrid[0:height, 0:width]
    made = np.stack([rows * 255 // height, columns * 255 // width, (rows + columns + 40 * seed) % 256], axis=-1)
    made[: height // 4, : width // 4] = (255, 0, 0)
    return made.astype(np.uint8)


def encoded(image: Image.Image, format: str, **options: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, format, **options)
    return file.getvalue()


def png(pixels: npt.NDArray[Any], mode: str | None = None, **options: Any) -> bytes:
    image = Image.fromarray(pixels)
    return encoded(image.convert(mode) if mode else image, "PNG", **options)


def huge_png(width: int, height: int) -> bytes:
    """A valid PNG of one colour that is a few KiB small."""
    packer = zlib.compressobj(9)
    row = bytes(1 + 3 * width)
    data = b"".join(packer.compress(row) for _ in range(height)) + packer.flush()
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", data) + chunk(b"IEND", b"")


def endless_jpeg(side: int, scans: int) -> bytes:
    """A progressive JPEG of one grey whose last scan, which changes nothing, comes so many times more."""
    made = encoded(Image.new("L", (side, side), 128), "JPEG", progressive=True)
    last = made.rindex(b"\xff\xc4", 0, made.rindex(b"\xff\xda"))
    return made[:-2] + made[last:-2] * scans + made[-2:]


def motion_jpeg(frames: list[bytes], side: int) -> bytes:
    """An AVI of these JPEG files, two a second."""
    sink = io.BytesIO()
    with av.open(sink, "w", format="avi") as file:
        stream: Any = file.add_stream("mjpeg", rate=2)
        stream.width = stream.height = side
        stream.pix_fmt = "yuvj420p"
        for number, frame in enumerate(frames):
            packet = av.Packet(frame)
            packet.stream = stream
            packet.pts = packet.dts = number
            packet.time_base = Fraction(1, 2)
            file.mux(packet)
    return sink.getvalue()


def chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def video(
    frames: int,
    rate: int = 10,
    size: tuple[int, int] = (64, 48),
    format: str = "mp4",
    codec: str = "libx264",
    pixels: str = "yuv420p",
    sound_hz: float | None = None,
    times: list[int] | None = None,
    **options: str,
) -> bytes:
    """A video of ``size`` (width, height) whose frame ``i`` is :func:`shade` ``i``; ``times`` are when each is shown,
    in thousandths of a second. With ``sound_hz`` a tone as long as the video."""
    sink = io.BytesIO()
    voice = "aac" if format in ("mp4", "mov") else "libopus"
    with av.open(sink, "w", format=format) as file:
        stream: Any = file.add_stream(codec, rate=rate, options=options)
        stream.width, stream.height = size
        stream.pix_fmt = pixels
        if times is not None:
            stream.codec_context.time_base = Fraction(1, 1000)
        sound: Any = file.add_stream(voice, rate=48_000, layout="mono") if sound_hz else None
        for number in range(frames):
            picture = np.full((size[1], size[0], 3), shade(number), np.uint8)
            frame = av.VideoFrame.from_ndarray(picture, "rgb24")
            if times is not None:
                frame.pts = times[number]
                frame.time_base = Fraction(1, 1000)
            file.mux(stream.encode(frame))
        file.mux(stream.encode(None))
        if sound is not None:
            angle = 2 * np.pi * (sound_hz or 0) * np.arange(frames * 48_000 // rate) / 48_000
            wave = (np.sin(angle) / 2).astype(np.float32).reshape(1, -1)
            for at in range(0, wave.shape[1], 960):
                piece = av.AudioFrame.from_ndarray(wave[:, at : at + 960].copy(), "fltp", "mono")
                piece.sample_rate, piece.pts = 48_000, at
                file.mux(sound.encode(piece))
            file.mux(sound.encode(None))
    return sink.getvalue()


def shade(number: int) -> int:
    """The grey of a video's frame of that number."""
    return 20 + 4 * number % 216


def shades(frames: UInt8) -> list[int]:
    """The greys of decoded frames."""
    return [round(float(frame.mean())) for frame in frames]


def announcing(packets: int) -> bytes:
    """A small MP4 whose header announces so many packets of one byte."""
    data = bytearray(video(20, 10))
    for box, fields in {
        b"stsz": (0, 1, packets),
        b"stsc": (0, 1, 1, packets, 1),
        b"stts": (0, 1, packets, 1),
    }.items():
        at = data.index(box) + 4
        data[at : at + 4 * len(fields)] = struct.pack(f">{len(fields)}I", *fields)
    return bytes(data)
