"""An adapter without accelerations: the engine refuses what it would leave out."""

from __future__ import annotations

import pytest

from omni_actors.protocol.errors import OmniError
from omni_actors.protocol.options import defaults_of
from omni_actors.protocol.params import ImageGeneration, LoraScale
from omni_actors.worker.engines.diffusion.options import OPTIONS
from omni_actors.worker.engines.diffusion.plain import check_plain_request, check_plain_stage


@pytest.mark.parametrize(
    ("image", "param"),
    [
        (ImageGeneration(cache={"threshold": 0.1}), "cache"),
        (ImageGeneration(cache={"first_blocks": 2}), "cache"),
        (ImageGeneration(loras=[LoraScale("red")]), "lora"),
    ],
)
def test_a_request_for_an_acceleration_is_refused_by_its_field(image: ImageGeneration, param: str) -> None:
    with pytest.raises(OmniError) as refused:
        check_plain_request(image)
    assert (refused.value.info.status, refused.value.info.param) == (400, param)


def test_a_request_without_one_passes() -> None:
    check_plain_request(ImageGeneration(prompt="a"))
    check_plain_request(ImageGeneration(prompt="a", cache={"threshold": 0}))


@pytest.mark.parametrize(
    "options", [{"cache_threshold": 0.1}, {"loras": "red=/red"}, {"offload": "group"}, {"compile": True}]
)
def test_a_stage_with_an_acceleration_does_not_load(options: dict[str, object]) -> None:
    check_plain_stage(defaults_of(OPTIONS))
    (name,) = options
    with pytest.raises(OmniError, match=name):
        check_plain_stage({**defaults_of(OPTIONS), **options})
