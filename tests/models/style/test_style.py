"""Style transfer: real pictures in numbered styles and in another picture's style, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sklearn.datasets import load_sample_images

from omni_actors.connectors.payload import Payload
from omni_actors.models.style.adapter import Style, styles_of
from omni_actors.models.style.pipeline import PIPELINE
from omni_actors.models.weights import pull
from omni_actors.models.weights.cache import style_folder
from omni_actors.protocol.errors import OmniError
from omni_actors.protocol.frames import PROTOCOL_VERSION, Hello
from omni_actors.protocol.options import filled
from omni_actors.protocol.params import ImageGeneration
from omni_actors.worker.engine import Work
from omni_actors.worker.engines.diffusion.cursor import Cursor

pytestmark = [pytest.mark.slow, pytest.mark.deadline(90)]


@pytest.fixture(scope="module")
def adapter() -> Style:
    pull(("style",))
    stage = PIPELINE.stages[0]
    hello = Hello(
        version=PROTOCOL_VERSION,
        stage="image",
        replica=0,
        incarnation=1,
        engine="diffusion",
        adapter=stage.adapter,
        model=str(style_folder()),
        options=filled(stage.options, {}),
    )
    made = Style(hello)
    made.load(lambda text, fraction: None)
    return made


@pytest.fixture(scope="module")
def photos() -> list[np.ndarray[Any, Any]]:
    """A palace and a flower, 159 x 107 pixels."""
    return [np.ascontiguousarray(image[::4, ::4]) for image in load_sample_images().images]


def edited(adapter: Style, pictures: list[np.ndarray[Any, Any]], **image: Any) -> np.ndarray[Any, Any]:
    mask = bool(image.get("mask"))
    asked = ImageGeneration(pictures=len(pictures) - mask, **image)
    (cursor,) = adapter.open(Work(1, "r", {}), asked)
    feed(adapter, cursor, pictures)
    *_, (cursor.conditioning,) = adapter.encode([cursor])  # type: ignore[misc]
    adapter.begin(cursor)
    adapter.advance(cursor, adapter.predict([cursor])[0])
    *_, made = adapter.decode([cursor])
    assert made is not None
    found: np.ndarray[Any, Any] = made[0]
    return found


def feed(adapter: Style, cursor: Cursor, pictures: list[np.ndarray[Any, Any]]) -> None:
    for place, pixels in enumerate(pictures):
        payload = Payload("image", {"index": place}, {"pixels": pixels})
        adapter.feed([cursor], "pictures", payload, place == len(pictures) - 1)


def distance(one: np.ndarray[Any, Any], other: np.ndarray[Any, Any]) -> float:
    return float(np.abs(one.astype(float) - other.astype(float)).mean())


def test_a_photo_gets_the_style_that_the_prompt_names(adapter: Style, photos: list[np.ndarray[Any, Any]]) -> None:
    photo = photos[0]
    seven, twelve, both = (edited(adapter, [photo], prompt=text) for text in ("style 7", "12", "styles 7 and 12"))
    assert seven.shape == photo.shape
    assert seven.dtype == np.uint8
    assert min(distance(seven, photo), distance(seven, twelve)) > 10
    assert max(distance(both, seven), distance(both, twelve)) < 2 * distance(seven, twelve)
    # The photo can be told by the edges that its edit keeps.
    other = edited(adapter, [photos[1]], prompt="style 7")
    assert likeness(seven, photo) > likeness(other, photo) + 0.3


def likeness(one: np.ndarray[Any, Any], other: np.ndarray[Any, Any]) -> float:
    """Return the correlation of the brightness of two pictures."""
    return float(np.corrcoef(one.mean(-1).ravel(), other.mean(-1).ravel())[0, 1])


def test_a_photo_gets_the_style_of_another_one(adapter: Style, photos: list[np.ndarray[Any, Any]]) -> None:
    palace, flower = photos
    made = edited(adapter, [palace, flower], prompt="as this")
    assert made.shape == palace.shape
    assert distance(made, palace) > 10
    weaker = edited(adapter, [palace, flower], prompt="as this", strength=0.2)
    assert distance(made, weaker) > 3


def test_strength_mixes_the_photo_in(adapter: Style, photos: list[np.ndarray[Any, Any]]) -> None:
    whole, half = (edited(adapter, [photos[0]], prompt="7", strength=strength) for strength in (None, 0.5))
    assert distance(half, (whole.astype(float) + photos[0]) / 2) < 1


def test_pixels_outside_the_mask_stay(adapter: Style, photos: list[np.ndarray[Any, Any]]) -> None:
    photo = photos[0]
    mask = np.full((*photo.shape[:2], 4), 255, np.uint8)
    mask[:40, :, 3] = 0
    made = edited(adapter, [photo, mask], prompt="7", mask=True)
    assert (made[40:] == photo[40:]).all()
    assert distance(made[:40], photo[:40]) > 5


@pytest.mark.parametrize(
    ("image", "param"),
    [
        ({"prompt": "make it nice"}, "prompt"),
        ({"prompt": "style 26"}, "prompt"),
        ({"prompt": "7", "n": 2}, "n"),
        ({"prompt": "7", "steps": 2}, "steps"),
        ({"prompt": "7", "guidance": 2.0}, "guidance_scale"),
        ({"prompt": "7", "negative_prompt": "x"}, "negative_prompt"),
        ({"prompt": "7", "width": 64, "height": 64}, "size"),
        ({"prompt": "7", "pictures": 3}, "image"),
    ],
)
def test_what_the_model_cannot_do_is_refused(
    adapter: Style, photos: list[np.ndarray[Any, Any]], image: dict[str, Any], param: str
) -> None:
    with pytest.raises(OmniError) as caught:
        (cursor,) = adapter.open(Work(1, "r", {}), ImageGeneration(**{"pictures": 1, **image}))
        feed(adapter, cursor, photos[:1])
    assert (caught.value.info.status, caught.value.info.param) == (400, param)


def test_a_picture_that_is_too_small_is_refused(adapter: Style) -> None:
    (cursor,) = adapter.open(Work(1, "r", {}), ImageGeneration(prompt="7", pictures=1))
    with pytest.raises(OmniError, match="at least 32 pixels"):
        feed(adapter, cursor, [np.zeros((16, 64, 3), np.uint8)])


def test_styles_of_a_prompt() -> None:
    assert styles_of("3, 3 and 12")[[3, 12]].tolist() == pytest.approx([2 / 3, 1 / 3])
