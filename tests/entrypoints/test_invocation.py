"""What was typed becomes the right request, and what would be ignored is refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.entrypoints.test_media import OMNI
from tests.pipelines.builders import ASSISTANT, plan_of

from omni_actors.entrypoints.commands.invocation import Invocation, build_request
from omni_actors.pipelines.declaration import Port, Task
from omni_actors.pipelines.factory import resolve
from omni_actors.protocol.errors import OmniError
from omni_actors.protocol.params import ImageGeneration, Prompt, Sampling, Speech, Transcription
from omni_actors.protocol.request import MediaRef, Request

DEMO = resolve("omni-demo", platform="cpu")
CLIP = (MediaRef(7, "audio", 1.5),)


def test_a_prompt_is_a_chat() -> None:
    request = build_request(DEMO, Invocation(prompt="Hi", system="Be brief.", max_tokens=5, temperature=0.0, seed=1))
    assert (request.task, request.inputs, request.outputs) == ("chat", ("text",), ("text",))
    assert request.params == {
        "prompt": Prompt(messages=[{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]),
        "sampling": Sampling(max_tokens=5, temperature=0.0, seed=1),
    }


def test_a_spoken_question_with_a_spoken_answer() -> None:
    request = build_request(DEMO, Invocation(audio=True, modalities=("text", "audio"), voice="heart"), CLIP)
    assert (request.task, request.inputs, request.outputs) == ("chat", ("audio",), ("text", "audio"))
    assert request.params["prompt"].messages == [{"role": "user", "content": [{"type": "audio", "index": 0}]}]
    assert request.params["speech"] == Speech(text=None, voice="heart")
    assert request.params["transcription"] == Transcription(clips=1)
    assert request.media == CLIP


def test_images_videos_and_sound_stand_before_the_question_in_this_order() -> None:
    plan = plan_of(OMNI)
    typed = Invocation(prompt="What happens?", images=2, videos=1, audio=True, use_audio_in_video=True)
    refs = tuple(MediaRef(i, modality) for i, modality in enumerate(typed.media))
    request = build_request(plan, typed, refs)
    assert request.inputs == ("text", "image", "video", "audio")
    assert request.media == refs
    parts = [{"type": kind, "index": i} for i, kind in enumerate(("image", "image", "video", "audio"))]
    prompt = request.params["prompt"]
    assert prompt.messages == [{"role": "user", "content": [*parts, {"type": "text", "text": "What happens?"}]}]
    assert prompt.media_kwargs == {"use_audio_in_video": True}
    with pytest.raises(OmniError, match="--use-audio-in-video"):
        build_request(plan, Invocation(prompt="?", images=1, use_audio_in_video=True))
    with pytest.raises(OmniError, match="image"):
        build_request(DEMO, Invocation(prompt="?", images=1))


def test_speech_says_the_prompt() -> None:
    request = build_request(DEMO, Invocation(prompt="Good morning.", task="speech", speed=1.5))
    assert request == Request(
        task="speech", outputs=("audio",), params={"speech": Speech(text="Good morning.", speed=1.5)}
    )


def test_a_clip_beside_a_text_to_say_is_its_voice() -> None:
    cloning = Task("speech", {"text": "acoustic", "audio": "acoustic.clip"}, {"audio": "vocoder"})
    acoustic = replace(ASSISTANT.stages[2], ports=(*ASSISTANT.stages[2].ports, Port("clip", "pcm", required=False)))
    stages = tuple(acoustic if stage.name == "acoustic" else stage for stage in ASSISTANT.stages)
    plan = plan_of(replace(ASSISTANT, stages=stages, tasks=(cloning,)))
    request = build_request(plan, Invocation(prompt="Hi", audio=True, params={"speech": {"ref_text": "Ho"}}), CLIP)
    assert (request.task, request.inputs, request.media) == ("speech", ("text", "audio"), CLIP)
    assert request.params == {"speech": Speech(text="Hi", reference=True, ref_text="Ho")}


def test_options_of_speech_go_to_its_section() -> None:
    plan = plan_of(replace(ASSISTANT, speech_fields=("instructions", "max_tokens", "language")))
    given = Invocation(prompt="Hi", task="speech", instructions="softly", max_tokens=9, seed=4, language="de")
    speech = Speech(text="Hi", instructions="softly", max_tokens=9, seed=4, language="de")
    assert build_request(plan, given).params == {"speech": speech}
    with pytest.raises(OmniError, match="--temperature has no effect"):
        build_request(plan, Invocation(prompt="Hi", task="speech", temperature=0.5))


def test_a_thinker_says_a_text_and_does_not_answer_it() -> None:
    plan = resolve("qwen3-omni", platform="cpu")
    request = build_request(plan, Invocation(prompt="Hi", task="speech", voice="ethan", max_tokens=9))
    assert (request.outputs, request.params) == (
        ("audio",),
        {"speech": Speech(text="Hi", voice="ethan", max_tokens=9)},
    )


def test_a_transcription() -> None:
    request = build_request(DEMO, Invocation(audio=True, task="transcription", language="en"), CLIP)
    assert (request.inputs, request.outputs) == (("audio",), ("text",))
    assert request.params == {"transcription": Transcription(language="en")}
    request = build_request(DEMO, Invocation(audio=True, task="transcription", max_tokens=3), CLIP)
    assert request.params == {"transcription": Transcription(max_tokens=3)}
    given = Invocation(audio=True, task="transcription", params={"transcription": {"max_tokens": 0}})
    with pytest.raises(OmniError, match="max_tokens") as wrong:
        build_request(DEMO, given, CLIP)
    assert wrong.value.info.status == 400


def test_a_completion_takes_its_prompt_as_it_is() -> None:
    assert build_request(DEMO, Invocation(prompt="Once", task="completion")).params["prompt"] == Prompt(text="Once")


def test_a_section_of_params_overrules_the_options() -> None:
    request = build_request(
        DEMO, Invocation(prompt="Hi", max_tokens=5, seed=1, params={"sampling": {"top_k": 3, "seed": 2}})
    )
    assert request.params["sampling"] == Sampling(max_tokens=5, top_k=3, seed=2)
    assert request.params["prompt"] == Prompt(messages=[{"role": "user", "content": "Hi"}])
    ids = build_request(DEMO, Invocation(task="completion", params={"prompt": {"token_ids": [1, 2]}}))
    assert ids.params["prompt"] == Prompt(token_ids=[1, 2])


def test_sections_of_other_pipelines_go_through() -> None:
    stub = resolve("stub", platform="cpu")
    request = build_request(stub, Invocation(params={"stub": {"text": "hi"}}))
    assert (request.task, request.inputs, request.params) == ("echo", ("text",), {"stub": {"text": "hi"}})


@pytest.mark.parametrize(
    ("invocation", "param"),
    [
        (Invocation(), "prompt"),
        (Invocation(prompt="x", task="dance"), "task"),
        (Invocation(prompt="x", modalities=("video",)), "modalities"),
        (Invocation(prompt="x", voice="heart"), "voice"),
        (Invocation(prompt="x", task="speech", max_tokens=3), "max_tokens"),
        (Invocation(prompt="x", task="speech", system="Be brief."), "system"),
        (Invocation(prompt="x", language="en"), "language"),
        (Invocation(prompt="x", instructions="softly"), "instructions"),
        (Invocation(prompt="x", task="speech", instructions="softly"), "instructions"),
        (Invocation(prompt="x", task="speech", temperature=0.5), "temperature"),
        (Invocation(prompt="x", params={"stub": {}}), "stub"),
        (Invocation(prompt="x", params={"sampling": 3}), "sampling"),
        (Invocation(prompt="x", params={"sampling": {"topk": 3}}), "sampling.topk"),
        (Invocation(prompt="x", params={"sampling": {"top_k": "3"}}), "sampling"),
        (Invocation(prompt="x", params={"prompt": {"text": "y"}}), "prompt"),
    ],
)
def test_what_would_be_ignored_or_cannot_be_is_refused(invocation: Invocation, param: str) -> None:
    with pytest.raises(OmniError) as caught:
        build_request(DEMO, invocation)
    assert (caught.value.info.status, caught.value.info.param) == (400, param)


IMAGE = resolve("stub-image", platform="cpu")


def test_a_picture_to_make_and_one_to_edit() -> None:
    typed = Invocation(prompt="a seven", n=2, size=(64, 32), steps=5, guidance=3.0, seed=1, negative_prompt="an eight")
    request = build_request(IMAGE, typed)
    assert (request.task, request.inputs, request.outputs) == ("image", ("text",), ("image",))
    wanted = ImageGeneration(prompt="a seven", n=2, width=64, height=32, steps=5, guidance=3.0, seed=1, progress=True)
    wanted.negative_prompt = "an eight"
    assert request.params == {"image": wanted}
    refs = (MediaRef(1, "image"), MediaRef(2, "image"))
    request = build_request(IMAGE, Invocation(prompt="night", images=1, mask=True, format="webp"), refs)
    assert (request.task, request.inputs, request.media) == ("image_edit", ("text", "image"), refs)
    edit = ImageGeneration(prompt="night", pictures=1, mask=True, format="webp", progress=True)
    assert request.params == {"image": edit}


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        (Invocation(prompt="x", max_tokens=3), "--max-tokens has no effect"),
        (Invocation(prompt="x", mask=True, images=0), "--mask needs --image"),
        (Invocation(prompt="x", task="chat"), "There is no task 'chat'"),
        (Invocation(prompt="x", task="image", params={"image": {"stepps": 3}}), "no field 'stepps'"),
    ],
)
def test_what_makes_no_picture_is_refused(typed: Invocation, message: str) -> None:
    with pytest.raises(OmniError, match=message):
        build_request(IMAGE, typed)


@pytest.mark.parametrize("option", ["n", "size", "steps", "guidance", "negative_prompt"])
def test_options_of_pictures_are_for_tasks_that_make_some(option: str) -> None:
    given: dict[str, Any] = {option: 1}
    with pytest.raises(OmniError, match=f"--{option.replace('_', '-')} has no effect"):
        build_request(DEMO, Invocation(prompt="x", task="chat", **given))
