"""Over HTTP: ``serve FOLDER``, then ``/v1/audio/speech`` whole and streamed, against the family's own code."""

from __future__ import annotations

import base64
import json
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.demo.server import Server, in_thread, serving
from tests.models.qwen3_tts.reference import Clip, reference
from tests.models.qwen3_tts.samples import folder_of, voice_clip

from omni_actors.media.wav import wav_header
from omni_actors.models.common.speech import Clip as Heard

pytestmark = [pytest.mark.slow, pytest.mark.deadline(180)]

TEXT = "Hello world, how are you?"
FRAMES = 16
GREEDY = {"temperature": 0, "repetition_penalty": 1, "max_new_tokens": FRAMES}
ONE_THREAD = ("--set", "stages.{}.threads=1")  # beside other work, a second one spins longer than it helps


def audio_of(server: Server, **body: Any) -> np.ndarray[Any, Any]:
    """The samples of one request in int16: its body's pieces, joined."""
    sent = json.dumps({"input": TEXT, "response_format": "pcm", **GREEDY, **body}).encode()
    request = urllib.request.Request(
        f"{server.url}/v1/audio/speech", sent, {"content-type": "application/json", "authorization": "Bearer none"}
    )
    with urllib.request.urlopen(request, timeout=90) as response:
        assert response.headers["x-sample-rate"] == "24000"
        data: bytes = response.read()
    if body.get("stream_format") == "sse":
        events = [json.loads(line[6:]) for line in data.decode().splitlines() if line.startswith("data: {")]
        assert events[-1]["type"] == "speech.audio.done"
        assert events[-1]["usage"]["output_tokens"] > 0
        data = b"".join(base64.b64decode(it["audio"]) for it in events if it["type"] == "speech.audio.delta")
    return np.frombuffer(data, "<i2")


def assert_heard(heard: np.ndarray[Any, Any], want: np.ndarray[Any, Any]) -> None:
    assert heard.shape == want.shape
    np.testing.assert_allclose(heard / 32767, want, rtol=0, atol=1e-4)


def refusal(server: Server, **body: Any) -> tuple[int, str | None]:
    status, answer = server.post("/v1/audio/speech", {"input": TEXT, **body})
    return status, answer["error"]["param"]


def test_a_voice_in_two_stages(tmp_path: Path) -> None:
    own = reference(folder_of("qwen3-tts"))
    threads = [it.format(stage) for stage in ("talker", "codec") for it in ONE_THREAD]
    with serving(tmp_path, str(folder_of("qwen3-tts")), *threads) as server:
        _, voices = server.get("/v1/audio/voices")
        assert [it["id"] for it in voices["voices"]][:3] == ["vivian", "ryan", "eric"]
        want = own.sound(own.codes(TEXT, voice="ryan", language="english"))
        asked = {"voice": "Ryan", "language": "English"}
        assert_heard(audio_of(server, **asked, stream=False), want)
        assert_heard(audio_of(server, **asked, stream_format="sse"), want)
        assert_heard(audio_of(server, **asked, speaker="ryan", initial_codec_chunk_frames=1), want)
        others: list[dict[str, Any]] = [
            {"voice": "vivian"},
            {"voice": "eric", "instructions": "Slow."},
            {"voice": "eric", "language": "de"},
        ]
        several = [in_thread(lambda body=body: audio_of(server, **body)) for body in others]  # type: ignore[misc]
        for body, heard in zip(others, several, strict=True):
            fields = body | {"language": "german"} if "language" in body else body
            assert_heard(heard(), own.sound(own.codes(TEXT, **fields)))
        drawn = [audio_of(server, seed=seed, temperature=1.0) for seed in (1, 1, 2)]
        # The same frames; where windows are cut depends on when they come, and rounding on that.
        np.testing.assert_allclose(drawn[0], drawn[1], rtol=0, atol=3)
        assert not np.array_equal(drawn[0][:9600], drawn[2][:9600])
        assert refusal(server, voice="nobody") == (400, "voice")
        assert refusal(server, language="klingon") == (400, "language")
        assert refusal(server, task_type="Base") == (400, "task_type")
        assert refusal(server, ref_text="words") == (400, "ref_text")
        assert refusal(server, speed=2) == (400, "speed")
        assert refusal(server, max_new_tokens=40000) == (400, "max_new_tokens")
        status, health = server.get("/health")
        assert status == 200, health


def test_a_clone_in_two_stages(tmp_path: Path) -> None:
    own = reference(folder_of("qwen3-tts-base"))
    pcm = (voice_clip(2.0, rate=16000) * 32767).astype("<i2")
    wav = base64.b64encode(wav_header(16000, 1, pcm.nbytes) + pcm.tobytes()).decode()
    heard = Heard((pcm / np.float32(32768)).astype(np.float32), 16000).at(24000)
    threads = [it.format(stage) for stage in ("talker", "codec") for it in ONE_THREAD]
    with serving(tmp_path, str(folder_of("qwen3-tts-base")), *threads) as server:
        for text, fields in (
            (None, {"x_vector_only_mode": True}),
            ("The boy runs.", {"ref_text": "The boy runs.", "task_type": "Base"}),
        ):
            clip = Clip(heard, text)
            want = own.sound(own.codes(TEXT, clip=clip), clip)
            body = {"ref_audio": f"data:audio/wav;base64,{wav}", **fields}
            assert_heard(audio_of(server, **body, stream=False), want)
            assert_heard(audio_of(server, **body), want)
        assert refusal(server) == (400, "ref_audio")
        assert refusal(server, ref_audio=wav) == (400, "ref_text")
        assert refusal(server, ref_audio=wav, ref_text="words", instructions="Slow.") == (400, "instructions")


def test_a_design_in_one_stage(tmp_path: Path) -> None:
    own = reference(folder_of("qwen3-tts-design"))
    arguments = ("--pipeline", "qwen3-tts-fused", *(it.format("tts") for it in ONE_THREAD))
    with serving(tmp_path, str(folder_of("qwen3-tts-design")), *arguments) as server:
        want = own.sound(own.codes(TEXT, instructions="An old man.", language="english"))
        asked = {"instructions": "An old man.", "language": "english"}
        assert_heard(audio_of(server, **asked, stream=False), want)
        assert_heard(audio_of(server, **asked), want)
        assert refusal(server) == (400, "instructions")
