"""Encoding, denoising and decoding as stages of their own: the same pictures, bit for bit, as in one stage."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.worker.engines.diffusion.driver import Bench, alone

from omni_actors.connectors.payload import Payload
from omni_actors.protocol.errors import OmniError
from omni_actors.worker.checks import InputError

IMAGES: dict[int, dict[str, Any]] = {
    0: {"steps": 3, "n": 2, "guidance": 3.0},
    1: {"steps": 7},
    2: {"steps": 2, "width": 128},
}


def test_three_stages_make_what_one_makes() -> None:
    encoder, denoiser, decoder = Bench("encode"), Bench("denoise"), Bench("decode")
    for key, image in IMAGES.items():
        encoder.admit(key, **image)
    encoder.run()
    assert {what for what, _ in encoder.toy.units} == {"encode"}
    for key, image in IMAGES.items():
        (payload,) = encoder.payloads(key)
        assert payload.kind == "conditioning"
        denoiser.admit(key, ports=("conditioning",), **image)
        denoiser.engine.feed(key, "conditioning", payload, True)
    denoiser.run()
    assert {what for what, _ in denoiser.toy.units} == {"forward"}
    for key, image in IMAGES.items():
        decoder.admit(key, ports=("latents",), **image)
        payloads = denoiser.payloads(key)
        assert [it.kind for it in payloads] == ["latent"] * image.get("n", 1)
        for place, payload in enumerate(payloads):
            decoder.engine.feed(key, "latents", payload, place + 1 == len(payloads))
    decoder.run()
    for key, image in IMAGES.items():
        whole = alone(key, **image)
        for index in range(image.get("n", 1)):
            assert denoiser.toy.trace[key, index] == whole.toy.trace[key, index]
            assert np.array_equal(decoder.pictures(key)[index], whole.pictures(key)[index])
    for bench in (encoder, denoiser, decoder):
        bench.check_empty()


def test_a_picture_is_decoded_while_the_others_of_its_request_are_denoised() -> None:
    decoder = Bench("decode")
    decoder.admit(0, ports=("latents",), n=2)
    latents = np.zeros((8, 8))
    decoder.engine.feed(0, "latents", Payload("latent", {"index": 1}, {"latents": latents}), False)
    decoder.run()
    assert list(decoder.pictures(0)) == [1]
    assert decoder.out.ended == []
    decoder.engine.feed(0, "latents", Payload("latent", {"index": 0}, {"latents": latents}), False)
    decoder.run()
    assert decoder.out.ended == [], "the port has not ended"
    decoder.engine.feed(0, "latents", None, True)
    decoder.run()
    assert decoder.out.ended == [0]
    decoder.check_empty()


def test_an_input_that_ends_without_a_picture_fails_by_its_producer() -> None:
    decoder = Bench("decode")
    decoder.admit(0, ports=("latents",), n=2)
    decoder.engine.feed(0, "latents", Payload("latent", {"index": 1}, {"latents": np.zeros((8, 8))}), False)
    with pytest.raises(InputError, match="picture 0"):
        decoder.engine.feed(0, "latents", None, True)
    decoder.check_empty()


@pytest.mark.parametrize("latents", [np.zeros(3), np.zeros((8, 8), np.float32)])
def test_an_input_of_another_shape_fails_by_its_producer(latents: Any) -> None:
    decoder = Bench("decode")
    decoder.admit(0, ports=("latents",))
    with pytest.raises(InputError, match="latents"):
        decoder.engine.feed(0, "latents", Payload("latent", {"index": 0}, {"latents": latents}), True)


def test_what_cannot_be_restored_fails_alone() -> None:
    denoiser = Bench("denoise")
    denoiser.toy.plan.faults[0] = "restore"
    for key in range(2):
        denoiser.admit(key, ports=("conditioning",))
        payload = Payload("conditioning", {}, {"prompt": np.array([0.1, 0.2])})
        denoiser.engine.feed(key, "conditioning", payload, True)
    denoiser.run()
    assert denoiser.error(0) is not None
    assert denoiser.error(1) is None
    denoiser.check_empty()


def test_conditioning_that_is_not_finite_does_not_leave() -> None:
    encoder = Bench("encode")
    encoder.admit(0)
    encoder.toy.conditioning_payload = lambda cursor: Payload(  # type: ignore[method-assign]
        "conditioning", {}, {"prompt": np.array([np.nan])}
    )
    encoder.run()
    assert "not finite" in encoder.error(0).message
    encoder.check_empty()


def test_latents_wait_for_a_credit_and_the_memory_is_given_back() -> None:
    denoiser = Bench("denoise")
    denoiser.admit(0, ports=("conditioning",), n=3, steps=2)
    denoiser.out.left[0] = 1
    denoiser.engine.feed(0, "conditioning", Payload("conditioning", {}, {"prompt": np.array([0.1, 0.2])}), True)
    while denoiser.step():
        pass
    assert len(denoiser.payloads(0)) == 1
    assert denoiser.counters()["memory_bytes"] == 0
    denoiser.out.left[0] = 5
    denoiser.run()
    assert len(denoiser.payloads(0)) == 3
    denoiser.check_empty()


def test_work_begins_when_all_ports_have_ended() -> None:
    bench = Bench()
    bench.admit(0, ports=("pictures", "text"))
    bench.engine.feed(0, "pictures", Payload("image", {}, {"pixels": np.zeros((8, 8, 3), np.uint8)}), True)
    assert not bench.engine.runnable
    bench.engine.feed(0, "text", None, True)
    assert bench.engine.runnable
    with pytest.raises(OmniError):
        bench.engine.feed(0, "text", None, True)
    bench.check_empty()
