"""Sound is in the format that was asked for, and a strict reader finds nothing wrong with it."""

from __future__ import annotations

import json
import struct
import urllib.error
import urllib.request

import pytest
from tests.demo.server import Server

from .stub_voice_client import SAY, expected_sound, say

TEXT = "one two three. four five. six"

MAGIC = {
    "mp3": (b"\xff", b"ID3"),
    "opus": (b"OggS",),
    "aac": (b"\xff\xf1", b"\xff\xf9"),
    "flac": (b"fLaC",),
    "wav": (b"RIFF",),
}


def raw(server: Server, **fields: object) -> tuple[int, dict[str, str], bytes]:
    request = urllib.request.Request(
        server.url + SAY, json.dumps(say(TEXT, **fields)).encode(), {"content-type": "application/json"}
    )
    try:
        with urllib.request.urlopen(request, timeout=30) as response:
            return response.status, {k.lower(): v for k, v in response.headers.items()}, response.read()
    except urllib.error.HTTPError as error:
        return error.code, {}, error.read()


def chunks(wav: bytes) -> dict[bytes, tuple[int, bytes]]:
    """RIFF chunks: declared size, and what follows."""
    assert wav[:4] == b"RIFF"
    assert wav[8:12] == b"WAVE"
    found, at = {}, 12
    while at + 8 <= len(wav):
        name, size = wav[at : at + 4], struct.unpack("<I", wav[at + 4 : at + 8])[0]
        assert name not in found, "a chunk twice: another header in the midst of the sound"
        found[name] = size, wav[at + 8 : at + 8 + size]
        at += 8 + size + size % 2
    return found


def test_a_whole_wav_has_exact_sizes(server: Server) -> None:
    _, _, wav = raw(server, response_format="wav", stream=False)
    found = chunks(wav)
    size, data = found[b"data"]
    assert struct.unpack("<I", wav[4:8])[0] == len(wav) - 8
    assert size == len(data)
    assert data == expected_sound(TEXT)


def test_a_streamed_wav_has_one_header_and_the_samples_of_pcm(server: Server) -> None:
    _, _, wav = raw(server, response_format="wav", stream=True)
    size, data = chunks(wav)[b"data"]
    assert size in (0xFFFFFFFF, 0x7FFFFFFF, 0xFFFFFFFF - 36, 0x7FFFFFFF - 36) or size == len(data)
    assert wav.count(b"RIFF") == 1
    assert wav[-len(data) :] == data == expected_sound(TEXT)
    _, _, pcm = raw(server, response_format="pcm")
    assert pcm == data


@pytest.mark.parametrize("format", [*MAGIC, "pcm"])
def test_magic_bytes_and_type_agree(server: Server, format: str) -> None:
    status, headers, data = raw(server, response_format=format)
    assert status == 200
    if format == "pcm":
        assert headers["content-type"] == "audio/pcm;rate=24000;channels=1"
        assert data == expected_sound(TEXT)
    else:
        assert data.startswith(MAGIC[format])
        assert headers["content-type"] == {"mp3": "audio/mpeg", "opus": "audio/ogg"}.get(format, f"audio/{format}")
    assert (headers["x-sample-rate"], headers["x-channels"]) == ("24000", "1") or format not in ("pcm", "wav")


@pytest.mark.parametrize("format", ["mpeg", "ogg", "", "MP3 ", 7, ["wav"]])
def test_an_unknown_format_is_refused_by_its_field(server: Server, format: object) -> None:
    status, _, body = raw(server, response_format=format)
    assert status == 400
    assert b"response_format" in body
