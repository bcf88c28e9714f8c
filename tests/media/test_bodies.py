"""Big chat bodies: the audio is taken out, everything else stays as it was."""

from __future__ import annotations

import base64
import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.media.harness import MediaHarness, container, tone, wav

from omni_actors.media import questions as q
from omni_actors.media.limits import CLIP_RATE, Limits
from omni_actors.media.worker import bodies
from omni_actors.media.worker.bodies import LONG, ChatBody, decode_base64, long_strings
from omni_actors.protocol.errors import OmniError


def b64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def audio_part(data: str, **extra: Any) -> dict[str, Any]:
    return {"type": "input_audio", "input_audio": {"data": data, "format": "wav", **extra}}


def chat(*parts: Any, **fields: Any) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": list(parts)}], **fields}


def parse(
    harness: MediaHarness, body: dict[str, Any] | bytes, **options: Any
) -> tuple[dict[str, Any], list[q.MediumInfo]]:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    bound = {"max_seconds": options.pop("max_seconds")} if "max_seconds" in options else {}
    question = q.ParseChat(owner="o", blob=harness.blob(data), **options)
    info = q.parse(harness.ask(question), q.ChatInfo)
    clean: dict[str, Any] = json.loads(info.body)
    if info.held is None:
        return clean, []
    media = harness.ask(q.DecodeParts(owner="o", body=info.held, **bound))
    return clean, list(q.parse(media, tuple[q.MediumInfo, ...]))


def refused(
    body: dict[str, Any] | bytes, status: int = 400, harness: MediaHarness | None = None, **options: Any
) -> OmniError:
    harness = harness or MediaHarness()
    with pytest.raises(OmniError) as caught:
        parse(harness, body, **options)
    harness.ask(q.Discard(owners=("o",)))
    harness.assert_empty()
    assert caught.value.info.status == status
    assert len(caught.value.info.message) < 200
    return caught.value


def test_audio_parts_become_indices_and_clips_in_order() -> None:
    harness = MediaHarness()
    first, second = wav(tone(0.1, 16_000), 16_000), container("webm", "libopus", tone(0.5, 48_000))
    text = {"type": "text", "text": "which is longer?"}
    clean, media = parse(
        harness,
        chat(
            audio_part(b64(first)),
            text,
            {"type": "audio_url", "audio_url": {"url": f"data:audio/webm;codecs=opus;base64,{b64(second)}"}},
            stream=True,
            n=1,
        ),
    )
    content = [{"type": "audio", "index": 0}, text, {"type": "audio", "index": 1}]
    assert clean == {"model": "m", "messages": [{"role": "user", "content": content}], "stream": True, "n": 1}
    assert [clip.seconds for clip in media] == pytest.approx([0.1, 0.5], abs=0.03)
    samples = harness.deliver([clip.id for clip in media])
    assert np.array_equal(samples[0], np.frombuffer(tone(0.1, 16_000), "<i2") / np.float32(32_768))
    harness.assert_empty()


def test_a_transcriptions_json_body_has_one_clip() -> None:
    harness = MediaHarness()
    body = {"model": "m", "input_audio": {"data": b64(wav(tone(0.5))), "format": "wav"}}
    clean, media = parse(harness, body, clip="input_audio")
    assert clean == {"model": "m", "input_audio": {"type": "audio", "index": 0}}
    assert [clip.seconds for clip in media] == [0.5]
    assert refused({"input_audio": {"data": "????"}}, clip="input_audio").info.param == "input_audio.data"
    assert refused({"input_audio": {}}, clip="input_audio").info.param == "input_audio.data"


def test_a_body_without_audio_comes_back_equal() -> None:
    body = chat({"type": "text", "text": 'héllo \u2028 "quoted" \\ back'}, temperature=0.5, stop=["\n"], seed=2**53)
    body["messages"].append({"role": "assistant", "content": "a" * 300_000})
    body["messages"].append({"role": "user", "content": "日本語\n" * 50_000})
    clean, media = parse(MediaHarness(), body)
    assert clean == body
    assert media == []


@pytest.mark.parametrize("escape", ["plain", "slashes", "unicode", "breaks", "no padding"])
def test_base64_as_other_languages_write_it(escape: str) -> None:
    data = wav(np.random.default_rng(2).integers(-32768, 32768, 90_001, dtype="<i2").tobytes(), 16_000)
    text = b64(data)
    if escape == "breaks":
        text = "\r\n".join(text[at : at + 76] for at in range(0, len(text), 76))
    if escape == "no padding":
        assert text.endswith("=")
        text = text.rstrip("=")
    body = json.dumps(chat(audio_part(text)))
    if escape == "slashes":
        body = body.replace("/", "\\/")
    if escape == "unicode":
        body = body.replace("+", "\\u002B").replace("/", "\\u002f")
    harness = MediaHarness()
    _, media = parse(harness, body.encode())
    assert harness.deliver([media[0].id])[0].shape == (90_001,)


@pytest.mark.parametrize("long", [False, True])
@pytest.mark.parametrize("kind", ["input_audio", "audio_url", "image_url", "ref_audio", "transcription"])
def test_blanks_where_a_plus_stood_are_refused_with_the_reason(kind: str, long: bool) -> None:
    """A form decoder makes blanks of '+'; without them, other sound would come out of the same number of letters."""
    noise = np.random.default_rng(3).integers(-32768, 32768, 60_000 if long else 600, dtype="<i2").tobytes()
    text = b64(wav(noise, 16_000))
    assert "+" in text
    assert (len(text) > LONG) == long
    broken = text.replace("+", " ")
    bodies: dict[str, tuple[dict[str, Any], str, dict[str, Any]]] = {
        "input_audio": (chat(audio_part(broken)), "messages[0].content[0].input_audio.data", {}),
        "audio_url": (chat(by_url("audio", broken)), "messages[0].content[0].audio_url.url", {}),
        "image_url": (chat(by_url("image", broken)), "messages[0].content[0].image_url.url", {}),
        "ref_audio": ({"ref_audio": broken}, "ref_audio", {"clip": "ref_audio"}),
        "transcription": ({"input_audio": {"data": broken}}, "input_audio.data", {"clip": "input_audio"}),
    }
    body, param, options = bodies[kind]
    info = refused(body, **options).info
    assert (info.param, info.code) == (param, "invalid_base64")
    assert "'+'" in info.message


def by_url(modality: str, text: str) -> dict[str, Any]:
    return {"type": f"{modality}_url", f"{modality}_url": {"url": f"data:{modality}/x;base64,{text}"}}


@pytest.mark.parametrize("where", ["first", "last", "before a line break"])
def test_a_blank_is_refused_wherever_it_is(where: str) -> None:
    text = b64(wav(tone(0.1)))
    broken = {"first": " " + text, "last": text + " ", "before a line break": text[:76] + " \r\n" + text[76:]}[where]
    assert refused(chat(audio_part(broken))).info.code == "invalid_base64"


BAD_AUDIO: dict[str, tuple[Any, str]] = {
    "not base64": (audio_part("!!!!"), "messages[0].content[0].input_audio.data"),
    "url alphabet": (audio_part("-_-_" * 20), "messages[0].content[0].input_audio.data"),
    "padding inside": (audio_part("AA==AAAA"), "messages[0].content[0].input_audio.data"),
    "one character": (audio_part("A"), "messages[0].content[0].input_audio.data"),
    "not ascii": (audio_part("é" * 40), "messages[0].content[0].input_audio.data"),
    "empty": (audio_part(""), "messages[0].content[0].input_audio.data"),
    "no sound": (audio_part(b64(b"hello")), "messages[0].content[0].input_audio.data"),
    "no comma": (audio_part("data:audio/wav;base64"), "messages[0].content[0].input_audio.data"),
    "not base64 url": (audio_part("data:audio/wav,RIFF"), "messages[0].content[0].input_audio.data"),
    "a number": (audio_part(7), "messages[0].content[0].input_audio.data"),  # type: ignore[arg-type]
    "a field beside the audio": (
        audio_part(b64(wav(tone(0.1)))) | {"cache_control": {}},
        "messages[0].content[0].cache_control",
    ),
    "a field beside the data": (
        audio_part(b64(wav(tone(0.1))), language="de"),
        "messages[0].content[0].input_audio.language",
    ),
    "format is a number": (audio_part("AAAA", format=1), "messages[0].content[0].input_audio.format"),
    "no data": ({"type": "input_audio", "input_audio": {}}, "messages[0].content[0].input_audio.data"),
    "no object": ({"type": "input_audio", "input_audio": "x"}, "messages[0].content[0].input_audio.data"),
    "a file": ({"type": "audio_url", "audio_url": {"url": "file:///x.wav"}}, "messages[0].content[0].audio_url.url"),
    "the inner form": ({"type": "audio", "index": 0}, "messages[0].content[0].type"),
}


@pytest.mark.parametrize("name", BAD_AUDIO)
def test_a_bad_audio_part_is_a_400_that_names_the_field(name: str) -> None:
    part, param = BAD_AUDIO[name]
    assert refused(chat(part)).info.param == param


@pytest.mark.parametrize("name", ["cache_control", "text", "image_url", "détail", ""])
def test_a_null_beside_a_medium_counts_as_absent(name: str) -> None:
    data = b64(wav(tone(0.1)))
    audio = audio_part(data, **{name: None}) | {name: None}
    by_url = {"type": "audio_url", "audio_url": {"url": f"data:audio/wav;base64,{data}", name: None}, "x": None}
    clean, media = parse(MediaHarness(), chat(audio, by_url, chat_template_kwargs={"a": None}, x=None))
    assert [part["index"] for part in clean["messages"][0]["content"]] == [0, 1]
    assert clean["chat_template_kwargs"] == {"a": None}
    clean, media = parse(MediaHarness(), {"input_audio": {"data": data, name: None}}, clip="input_audio")
    assert len(media) == 1


def test_a_bad_part_behind_a_good_one_leaves_nothing() -> None:
    good = audio_part(b64(wav(tone(0.1))))
    assert refused(chat(good, audio_part("????"))).info.param == "messages[0].content[1].input_audio.data"


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"[]", b"null", b'"x"', b"\xff\xfe", b'{"messages": [}', b"[" * 100_000, b'{"a": ' + b"9" * 70_000],
    ids=lambda body: repr(body[:12]),
)
def test_what_is_no_json_object_is_a_400(body: bytes) -> None:
    assert refused(body).info.code == "invalid_json"


@pytest.mark.parametrize("messages", [None, 3, "x", {}, [3], [{"content": 3}], [{"content": [3, None, "x"]}], [{}]])
def test_strange_shapes_are_left_to_the_validation_behind(messages: Any) -> None:
    body = {"model": "m", "messages": messages}
    assert parse(MediaHarness(), body)[0] == body


def test_what_is_left_without_audio_is_bounded() -> None:
    refused(chat({"type": "text", "text": "a" * 300_000}), 413, MediaHarness(max_json_bytes=200_000))
    many = [{"type": "text", "text": "a" * 100_000}] * 3
    refused(chat(*many), 413, MediaHarness(max_json_bytes=200_000))
    refused({"messages": [], "x": list(range(100_000))}, 413, MediaHarness(max_json_bytes=200_000))


def test_the_number_of_clips_and_their_sum_are_bounded() -> None:
    part = audio_part(b64(wav(tone(0.4))))
    refused(chat(part, part, part), harness=MediaHarness(max_clips_per_body=2))
    assert refused(chat(part, part, part), max_seconds=1.0).info.param == "messages[0].content[2].input_audio.data"
    _, media = parse(MediaHarness(), chat(part, part), max_seconds=1.0)
    assert sum(clip.seconds for clip in media) == pytest.approx(0.8)


STRINGS = st.one_of(
    st.text(max_size=20),
    st.builds(
        lambda unit, times, end: unit * times + end,
        st.sampled_from(["A", "+/", '"', "\\", 'ab"', "\\\\", "é", "日", "\n", "}", " "]),
        st.sampled_from([1, LONG // 2, LONG, 2 * LONG + 1]),
        st.sampled_from(["", '"', "\\", "\\\\", "x"]),
    ),
)


@given(
    st.recursive(
        st.one_of(st.none(), st.booleans(), st.integers(-(2**53), 2**53), STRINGS),
        lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(STRINGS, inner, max_size=3)),
        max_leaves=6,
    ),
    st.booleans(),
)
@settings(max_examples=60, deadline=None)
def test_any_json_survives_the_cutting(tree: Any, ascii: bool) -> None:
    body = {"x": tree, "messages": [{"content": tree}]}
    data = json.dumps(body, ensure_ascii=ascii).encode()
    limits = Limits(max_json_bytes=1 << 30)
    for start, end in long_strings(data):
        assert end - start >= LONG
        assert data[start - 1 : start] == data[end : end + 1] == b'"'
    assert json.loads(ChatBody(data, limits).render()) == body


@given(st.binary(max_size=300), st.integers(1, 50))
@settings(max_examples=50, deadline=None)
def test_base64_decodes_the_same_in_any_slices(data: bytes, step: int) -> None:
    text = b64(data).replace("/", "\\/").replace("+", "\\u002B").encode()
    out = bytearray()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bodies, "_STEP", step)
        for _ in decode_base64(memoryview(text), out.extend, "x"):
            pass
    assert bytes(out) == data


def test_a_long_clip_in_a_body_is_whole() -> None:
    harness = MediaHarness()
    _, media = parse(harness, chat(audio_part(b64(wav(tone(60.0, 16_000), 16_000)))))
    assert len(harness.deliver([media[0].id])[0]) == 60 * CLIP_RATE


def test_a_clip_to_clone_has_the_rate_that_was_asked_for() -> None:
    """And the other clips of the process the clip rate, as ever."""
    harness = MediaHarness()
    data = base64.b64encode(wav(tone(0.5, 48_000), 48_000)).decode()
    clean, (clip,) = parse(harness, {"input": "Hi.", "ref_audio": data}, clip="ref_audio", reference_rate=24_000)
    assert clean == {"input": "Hi.", "ref_audio": {"type": "audio", "index": 0}}
    (payload,) = harness.payloads([clip.id])
    assert (payload.meta["sample_rate"], len(payload.tensors["samples"])) == (24_000, 12_000)
    assert (clip.seconds, clip.audio_seconds) == (0.5, 0.5)
    with pytest.raises(OmniError, match="resampled to 1 Hz"):
        parse(harness, {"ref_audio": data}, clip="ref_audio", reference_rate=1)
    assert refused({"ref_audio": {"type": "audio", "index": 0}}, clip="ref_audio").info.param == "ref_audio"
    harness.assert_empty()


def test_a_clip_to_clone_may_be_named_by_url() -> None:
    harness = MediaHarness()
    data = json.dumps({"ref_audio": "https://example.org/a.wav"}).encode()
    info = q.parse(harness.ask(q.ParseChat(owner="o", data=data, clip="ref_audio", reference_rate=24_000)), q.ChatInfo)
    assert info.media == (q.LinkInfo("https://example.org/a.wav", "audio", "ref_audio", q.How(rate=24_000)),)
    harness.assert_empty()


@pytest.mark.parametrize("field", ["fps", "max_frames"])
@pytest.mark.parametrize("value", ["true", "1" + "0" * 30, "1" + "0" * 400, '"2"', "[]", "-1"])
def test_numbers_about_videos_that_nobody_could_mean_are_left_to_the_validation_behind(field: str, value: str) -> None:
    """They go into an answer, which holds numbers of 64 bits only."""
    url = '{"type": "video_url", "video_url": {"url": "https://example.org/a.mp4"}}'
    body = f'{{"messages": [{{"content": [{url}]}}], "mm_processor_kwargs": {{"{field}": {value}}}}}'
    info = q.parse(MediaHarness().ask(q.ParseChat(owner="o", data=body.encode())), q.ChatInfo)
    assert info.media == (
        q.LinkInfo("https://example.org/a.mp4", "video", "messages[0].content[0].video_url.url", q.How()),
    )
