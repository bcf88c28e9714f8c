"""The verb ``images``: pictures made and edited, in every way of calling."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from tests.entrypoints.offline.test_verbs import refused

from omni_actors import Omni, open_omni, open_omni_asyncio
from omni_actors.protocol.request import Completed, MediaChunk, StepProgress


@pytest.fixture(scope="module")
def omni() -> Iterator[Omni]:
    with Omni("stub-image", platform="cpu") as it:
        yield it


@pytest.fixture(scope="module")
def unhurried() -> Iterator[Omni]:
    """A model with half a second for each step, so that events are received before newer ones replace them."""
    with Omni("stub-image", platform="cpu", overrides=["stages.image.options.step_s=0.5"]) as it:
        yield it


def pixels(data: bytes) -> Image.Image:
    return Image.open(io.BytesIO(data))


def png(side: int, colour: tuple[int, ...]) -> bytes:
    file = io.BytesIO()
    Image.new("RGBA" if len(colour) == 4 else "RGB", (side, side), colour).save(file, "PNG")
    return file.getvalue()


def test_pictures_come_in_order_with_the_seeds_that_make_them_again(omni: Omni) -> None:
    made = omni.images("a seven", n=3, seed=7, size=(64, 32), steps=4)
    assert [(it.index, it.seed, it.format) for it in made.images] == [(0, 7, "png"), (1, 8, "png"), (2, 9, "png")]
    assert {(it.width, it.height) for it in made.images} == {(64, 32)}
    assert {pixels(it.data).size for it in made.images} == {(64, 32)}
    assert len({it.data for it in made.images}) == 3
    assert made.usage["image"].steps == 12
    assert omni.images("a seven", seed=8, size="64x32", steps=4).images[0].data == made.images[1].data


def test_without_a_seed_one_is_drawn_and_told(omni: Omni) -> None:
    one, two = (omni.images("a seven", steps=2).images[0] for _ in range(2))
    assert one.seed != two.seed
    assert omni.images("a seven", steps=2, seed=one.seed).images[0].data == one.data


@pytest.mark.parametrize(("format", "start"), [("png", b"\x89PNG"), ("webp", b"RIFF"), ("jpeg", b"\xff\xd8")])
def test_the_format_is_that_of_the_file(omni: Omni, format: str, start: bytes) -> None:
    (made,) = omni.images("a seven", steps=1, format=format).images
    assert (made.format, made.data[: len(start)]) == (format, start)


def test_a_call_that_waits_can_be_told_of_steps_and_previews(unhurried: Omni) -> None:
    seen: list[StepProgress | MediaChunk] = []
    unhurried.images("a seven", steps=6, previews=2, on_event=seen.append)
    steps = [event.step for event in seen if isinstance(event, StepProgress)]
    assert steps == sorted(set(steps))  # some may be missing: a newer one replaces one that is not received yet
    assert steps
    assert steps[-1] <= 6
    previews = [event.meta["preview"] for event in seen if isinstance(event, MediaChunk)]
    assert set(previews) <= {2, 4}
    assert previews == sorted(previews)


def test_a_stream_gives_steps_previews_and_the_picture(omni: Omni, unhurried: Omni) -> None:
    with unhurried.stream.images("a seven", steps=4, previews=2, seed=3) as stream:
        events = list(stream)
    assert type(events[-1]) is Completed
    assert any(isinstance(event, StepProgress) and 1 <= event.step <= 4 for event in events)
    (whole,) = [event for event in events if isinstance(event, MediaChunk) and not event.meta.get("preview")]
    assert whole.data == omni.images("a seven", steps=4, seed=3).images[0].data


def test_a_future_gives_the_same(omni: Omni) -> None:
    futures = [omni.submit.images("a seven", seed=seed, steps=2) for seed in (1, 2)]
    assert [it.result(10).images[0].seed for it in futures] == [1, 2]


async def test_trio_and_asyncio_have_the_same_verb(omni: Omni) -> None:
    import asyncio

    import trio

    wanted = omni.images("a seven", seed=1, steps=2).images[0].data
    async with open_omni("stub-image", platform="cpu") as it:
        assert (await it.images("a seven", seed=1, steps=2)).images[0].data == wanted

    async def under_asyncio() -> bytes:
        async with open_omni_asyncio("stub-image", platform="cpu") as it:
            return (await it.images("a seven", seed=1, steps=2)).images[0].data

    assert await trio.to_thread.run_sync(asyncio.run, under_asyncio()) == wanted


def test_a_picture_is_edited_and_stays_as_it_was_outside_the_mask(omni: Omni, tmp_path: Path) -> None:
    file = tmp_path / "grey.png"
    file.write_bytes(png(64, (90, 90, 90)))
    half = Image.new("RGBA", (64, 64), (0, 0, 0, 255))
    half.paste((0, 0, 0, 0), (0, 0, 32, 64))
    mask = io.BytesIO()
    half.save(mask, "PNG")
    (made,) = omni.images("night", pictures=file, mask=mask.getvalue(), steps=2, seed=1).images
    found = pixels(made.data).convert("RGB")
    assert found.crop((32, 0, 64, 64)).getcolors() == [(32 * 64, (90, 90, 90))]
    assert found.crop((0, 0, 32, 64)).getcolors() != [(32 * 64, (90, 90, 90))]
    (whole,) = omni.images("night", pictures=[file.read_bytes()], steps=2, seed=1).images
    assert whole.data != made.data


WRONG: dict[str, tuple[Callable[[Any], object], str]] = {
    "a prompt that is a number": (lambda it: it.images(3), "prompt"),
    "a blank prompt": (lambda it: it.images("  "), "prompt"),
    "no pictures": (lambda it: it.images("x", n=0), "n"),
    "n is a text": (lambda it: it.images("x", n="2"), "n"),
    "a size that is no size": (lambda it: it.images("x", size="big"), "size"),
    "a size of three": (lambda it: it.images("x", size=(1, 2, 3)), "size"),
    "a size of nothing": (lambda it: it.images("x", size=(0, 64)), "size"),
    "a size between": (lambda it: it.images("x", size="61x64"), "size"),
    "no steps": (lambda it: it.images("x", steps=0), "steps"),
    "guidance is a text": (lambda it: it.images("x", guidance="much"), "guidance"),
    "guidance is no number": (lambda it: it.images("x", guidance=float("nan")), "guidance"),
    "a negative seed": (lambda it: it.images("x", seed=-1), "seed"),
    "an unknown format": (lambda it: it.images("x", format="bmp"), "format"),
    "too much compression": (lambda it: it.images("x", compression=500), "compression"),
    "an unknown field": (lambda it: it.images("x", style="vivid"), "style"),
    "an unknown adapter": (lambda it: it.images("x", loras=["none"]), "loras[0]"),
    "previews that nobody sees": (lambda it: it.images("x", previews=2), "previews"),
    "previews is a text": (lambda it: it.images("x", previews="2", on_event=print), "previews"),
    "a watcher that is no function": (lambda it: it.images("x", on_event=3), "on_event"),
    "a watcher of a stream": (lambda it: it.stream.images("x", on_event=print).__enter__(), "on_event"),
    "a mask without a picture": (lambda it: it.images("x", mask=b"x"), "mask"),
    "a picture that is a name": (lambda it: it.images("x", pictures="cat.png"), "pictures"),
    "a picture that is no picture": (lambda it: it.images("x", pictures=[b"x"]), "pictures[0]"),
    "a mask that is a number": (lambda it: it.images("x", pictures=png(64, (1, 2, 3)), mask=3), "mask"),
    "a deadline of nothing": (lambda it: it.images("x", deadline_s=0), "deadline_s"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_argument_is_refused_by_name(omni: Omni, name: str) -> None:
    ask, param = WRONG[name]
    assert refused(lambda: ask(omni)) == (400, param)


def test_what_was_refused_leaves_nothing_and_the_next_request_works(omni: Omni) -> None:
    assert not omni._omni.orchestrator.inflight
    assert omni.images("x", steps=1).images


def test_a_model_without_pictures_says_so() -> None:
    with Omni("stub-voice", platform="cpu") as voice:
        assert refused(lambda: voice.images("a seven")) == (400, "task")
