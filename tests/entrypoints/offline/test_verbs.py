"""The verbs of the Python API: the same for every way of calling them, and their arguments are checked."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest

from omni_actors import AsyncioOmni, AsyncOmni, Omni, OmniError, Output, Request, Sampling
from omni_actors.entrypoints.offline.asyncio_bridge import AsyncioStreams
from omni_actors.entrypoints.offline.blocking import BlockingStreams, Futures
from omni_actors.entrypoints.offline.calls import SpeechCall, Terms
from omni_actors.entrypoints.offline.deployment import Streams
from omni_actors.media.service.client import MediaService
from omni_actors.pipelines.factory import resolve
from omni_actors.protocol.params import Constraint, Prompt, Speech, Transcription
from omni_actors.protocol.request import Completed, MediaChunk, TextDelta

VERBS = ("chat", "complete", "speak", "transcribe", "images", "run")


@pytest.fixture(scope="module")
def omni() -> Iterator[Omni]:
    with Omni("stub-voice", platform="cpu") as it:
        yield it


def refused(ask: Callable[[], object]) -> tuple[int, str | None]:
    with pytest.raises(OmniError) as error:
        ask()
    return error.value.info.status, error.value.info.param


async def test_a_text_over_the_limit_of_its_stage_is_refused_before_anything_is_done() -> None:
    plan = resolve("demo", platform="cpu")
    call = SpeechCall(Terms(), "a" * 16_385, "default", 1.0, None, {})
    with pytest.raises(OmniError) as error:
        await call.request(plan, cast(MediaService, None), [])
    assert error.value.info.message == "'text' has 16385 characters; at most 16384 are allowed."


@pytest.mark.parametrize("verb", [*VERBS, "generate"])
def test_every_way_of_calling_has_the_same_verbs_with_the_same_signatures(verb: str) -> None:
    ways: list[type] = [Omni, AsyncOmni, AsyncioOmni]
    if verb in VERBS:
        ways += [Futures, Streams, BlockingStreams, AsyncioStreams]
    signatures = {str(inspect.signature(getattr(way, verb)).replace(return_annotation=None)) for way in ways}
    assert len(signatures) == 1


def test_chat_complete_and_speak_return_the_output_of_the_stages(omni: Omni) -> None:
    said = omni.chat("one two", Sampling(max_tokens=3))
    assert len(said.text.split()) == 3
    assert omni.chat([{"role": "user", "content": "one two"}], Sampling(max_tokens=3)).text == said.text
    assert omni.complete("one two", Sampling(max_tokens=5)).choices[0].finish_reason is not None
    spoken = omni.chat("one two", Sampling(max_tokens=3), modalities=("text", "audio"))
    assert (spoken.text, len(spoken.pcm), spoken.sample_rate) == (said.text, 3 * 2400, 24_000)
    assert omni.speak("one two").wav()[:4] == b"RIFF"
    assert set(spoken.usage) == {"writer", "speaker"}


def test_a_future_of_each_verb_comes_at_once_and_gives_the_same(omni: Omni) -> None:
    futures = [omni.submit.chat(text, Sampling(max_tokens=4)) for text in ("a", "b", "c")]
    assert [type(it) for it in futures] == [Future] * 3
    assert [it.result(10).text for it in futures] == [
        omni.chat(text, Sampling(max_tokens=4)).text for text in ("a", "b", "c")
    ]
    request = Request(task="speech", outputs=("audio",), params={"speech": Speech(text="one")})
    assert omni.submit(request).result(10).pcm == omni.speak("one").pcm


def test_a_stream_gives_events_that_make_up_the_whole(omni: Omni) -> None:
    with omni.stream.chat("one two", Sampling(max_tokens=6), modalities=("text", "audio")) as stream:
        events = list(stream)
    assert type(events[-1]) is Completed
    whole = omni.chat("one two", Sampling(max_tokens=6), modalities=("text", "audio"))
    assert "".join(event.text for event in events if type(event) is TextDelta) == whole.text
    assert b"".join(event.data for event in events if type(event) is MediaChunk) == whole.pcm


def test_a_stream_that_is_not_entered_raises(omni: Omni) -> None:
    stream = omni.stream.chat("one")
    for use in (lambda: next(iter(stream)), lambda: next(stream), lambda: stream.feed("text", "text")):
        with pytest.raises(RuntimeError, match="with"):
            use()
    with stream:
        assert type(next(stream)) is TextDelta
    with pytest.raises(StopIteration):
        next(stream)
    with pytest.raises(RuntimeError, match="once"):
        stream.__enter__()


async def test_a_trio_stream_that_is_not_entered_raises() -> None:
    from omni_actors import open_omni

    async with open_omni("stub", platform="cpu") as omni:
        stream = omni.open(Request(task="echo", params={"stub": {"text": "x"}}))
        with pytest.raises(RuntimeError, match="async with"):
            async for _ in stream:
                pass
        async with stream:
            assert [type(event) async for event in stream][-1] is Completed
        with pytest.raises(RuntimeError, match="once"):
            async with stream:
                pass


def test_a_batch_is_in_the_order_of_its_prompts(omni: Omni) -> None:
    done: list[int] = []
    outputs = omni.generate(["a", "b", "c"], Sampling(max_tokens=2), on_done=lambda place, _: done.append(place))
    assert [it.text for it in outputs] == [omni.chat(text, Sampling(max_tokens=2)).text for text in "abc"]
    assert sorted(done) == [0, 1, 2]
    assert omni.generate([]) == []
    alone: list[Any] = [{"role": "user", "content": "a"}]
    assert omni.generate(alone, Sampling(max_tokens=2))[0].text == outputs[0].text


WRONG: dict[str, tuple[Callable[[Any], object], str]] = {
    "messages is a number": (lambda it: it.chat(42), "messages"),
    "messages is one message": (lambda it: it.chat({"role": "user", "content": "x"}), "messages"),
    "no messages": (lambda it: it.chat([]), "messages"),
    "a message is a number": (lambda it: it.chat([42]), "messages[0]"),
    "an unknown role": (lambda it: it.chat([{"role": "king", "content": "x"}]), "messages[0].role"),
    "an unknown part": (
        lambda it: it.chat([{"role": "user", "content": [{"type": "smell", "smell": "x"}]}]),
        "messages[0].content[0].type",
    ),
    "a part of the server's own making": (
        lambda it: it.chat([{"role": "user", "content": [{"type": "image", "index": 0}]}]),
        "messages[0].content[0].type",
    ),
    "a medium that is no source": (
        lambda it: it.chat([{"role": "user", "content": [{"type": "image", "image": 7}]}]),
        "messages[0].content[0].image",
    ),
    "a medium that names a file by text": (
        lambda it: it.chat([{"role": "user", "content": [{"type": "image", "image": "/etc/hostname"}]}]),
        "messages[0].content[0].image",
    ),
    "a medium that the model does not take": (
        lambda it: it.chat([{"role": "user", "content": [{"type": "image", "image": b"x"}]}]),
        "input",
    ),
    "an object in a message": (lambda it: it.chat([{"role": "user", "content": object()}]), "messages"),
    "modalities is a text": (lambda it: it.chat("x", modalities="audio"), "modalities"),
    "an unknown modality": (lambda it: it.chat("x", modalities=("smell",)), "modalities"),
    "a voice without audio": (lambda it: it.chat("x", voice="tone"), "voice"),
    "a voice that is a number": (lambda it: it.speak("x", voice=3), "voice"),
    "sampling is a dictionary": (lambda it: it.chat("x", {"temperature": 0}), "sampling"),
    "a temperature that is a text": (lambda it: it.chat("x", Sampling(temperature="hot")), "temperature"),  # type: ignore[arg-type]
    "a temperature out of range": (lambda it: it.chat("x", Sampling(temperature=3.0)), "temperature"),
    "no tokens": (lambda it: it.chat("x", Sampling(max_tokens=0)), "max_tokens"),
    "an unknown adapter": (lambda it: it.chat("x", Sampling(lora="x")), "lora"),
    "a constraint that nobody holds": (
        lambda it: it.chat("x", Sampling(constraint=Constraint(regex="a"))),
        "constraint",
    ),
    "two constraints": (
        lambda it: it.chat("x", Sampling(constraint=Constraint(regex="a", json_object=True))),
        "constraint",
    ),
    "a deadline of nothing": (lambda it: it.chat("x", deadline_s=0), "deadline_s"),
    "a deadline that is no number": (lambda it: it.speak("x", deadline_s=float("nan")), "deadline_s"),
    "a priority out of range": (lambda it: it.complete("x", priority=1000), "priority"),
    "a priority that is a truth": (lambda it: it.complete("x", priority=True), "priority"),
    "an id that is a number": (lambda it: it.chat("x", id=3), "id"),
    "an empty prompt": (lambda it: it.complete(""), "prompt"),
    "token ids that are texts": (lambda it: it.complete(["a"]), "prompt"),
    "a text that is bytes": (lambda it: it.speak(b"x"), "text"),
    "an unknown field of speech": (lambda it: it.speak("x", volume=3), "volume"),
    "a field that the model does not honour": (lambda it: it.speak("x", instructions="Sadly."), "instructions"),
    "a task that the model has not": (lambda it: it.transcribe(b"x"), "task"),
    "prompts is a number": (lambda it: it.generate(42), "prompts"),
    "a prompt is a number": (lambda it: it.generate([42]), "messages"),
    "a request is a text": (lambda it: it.run("x"), "request"),
    "inputs is a text": (lambda it: it.run(Request(task="chat", inputs="text")), "inputs"),  # type: ignore[arg-type]
    "an unknown section": (lambda it: it.run(Request(task="chat", params={"stubb": {"text": "x"}})), "params.stubb"),
    "a section that no stage reads": (
        lambda it: it.run(Request(task="chat", params={"transcription": Transcription(language="en")})),
        "language",
    ),
    "a section of another type": (
        lambda it: it.run(Request(task="chat", params={"prompt": {"text": "x"}})),
        "params.prompt",
    ),
    "a section's field of another type": (
        lambda it: it.run(Request(task="chat", params={"prompt": Prompt(text=5)})),  # type: ignore[arg-type]
        "text",
    ),
    "a priority of a request": (lambda it: it.run(Request(task="chat", priority=101)), "priority"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_argument_is_refused_by_name(omni: Omni, name: str) -> None:
    ask, param = WRONG[name]
    assert refused(lambda: ask(omni)) == (400, param)


def test_what_was_refused_leaves_nothing_and_the_next_request_works(omni: Omni) -> None:
    assert not omni._omni.orchestrator.inflight
    assert omni.chat("x", Sampling(max_tokens=1)).text


def test_what_the_model_cannot_is_said_before_a_file_is_looked_for(tmp_path: Path, omni: Omni) -> None:
    nothing = tmp_path / "nothing.wav"
    assert refused(lambda: omni.transcribe(nothing)) == (400, "task")
    assert refused(lambda: omni.speak("x", reference=nothing)) == (400, "input")
    part = {"type": "audio", "audio": nothing}
    assert refused(lambda: omni.chat([{"role": "user", "content": [part]}])) == (400, "input")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("overlay", 42),
        ("overlay", {"limits": {}}),
        ("overrides", "limits.max_inflight=2"),
        ("overrides", {"limits.max_inflight": 2}),
        ("overrides", [("limits.max_inflight", 2)]),
        ("platform", 7),
        ("log_level", 10),
        ("model", 42),
        ("model", b"stub"),
    ],
)
def test_open_arguments_of_another_type_are_a_type_error_that_names_them(name: str, value: Any) -> None:
    with pytest.raises(TypeError, match=f"'{name}"):
        Omni(**{"model": "stub", name: value})


def test_sampling_parameters_pass_the_check_as_they_are(omni: Omni) -> None:
    """The check goes by HTTP's schema: no field may get lost on the way."""
    from omni_actors.entrypoints.offline.arguments import sampling_for

    given = Sampling(
        max_tokens=7,
        min_tokens=2,
        temperature=0.5,
        top_p=0.9,
        top_k=5,
        min_p=0.1,
        presence_penalty=0.3,
        frequency_penalty=0.4,
        repetition_penalty=1.1,
        seed=9,
        stop=["a", "b"],
        stop_token_ids=[3],
        include_stop_str_in_output=True,
        ignore_eos=True,
        logprobs=2,
        logit_bias={4: 1.5},
        n=2,
        skip_special_tokens=False,
    )
    unset = {name for name, value in msgspec.structs.asdict(given).items() if value == getattr(Sampling(), name)}
    assert unset == {"echo", "constraint", "lora"}
    assert sampling_for(omni.plan, "chat", given) == given


def test_the_package_exports_the_output_types() -> None:
    import omni_actors

    assert all(getattr(omni_actors, name) is not None for name in omni_actors.__all__)
    assert omni_actors.Output is Output
