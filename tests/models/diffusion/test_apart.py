"""Encoder, denoiser and decoder as three engines make the same latents and pixels as one engine, bit for bit."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.models.diffusion.cases import all_cases
from tests.models.diffusion.orders import Order
from tests.models.diffusion.parity import Case, Driven, picture_payload

from omni_actors.connectors.payload import Payload
from omni_actors.testing.driving import Job, drive
from omni_actors.worker.engine import Work

pytestmark = [pytest.mark.slow, pytest.mark.torch]

CASES = [case for case in all_cases() if case.step_batched]


def jobs(
    orders: Sequence[Order], n: int, port: str = "", inputs: dict[int, list[Payload]] | None = None
) -> Iterator[Job]:
    """Yield a request for ``n`` pictures of each order, with the pictures of an edit or another stage's payloads."""
    for key, order in enumerate(orders):
        image = order.section()
        image.n = n
        payloads = [picture_payload(picture, index) for index, picture in enumerate(order.pictures)]
        name, fed = (port, inputs[key]) if inputs is not None else ("pictures", payloads)
        ports = frozenset({name} if fed else ())
        yield Job(Work(key, f"order-{key}", {"image": image}, ports, routed=True), {name: fed} if fed else {})


class Latents:
    """The final latents of a denoising engine, by (key, index)."""

    def __init__(self, driven: Driven) -> None:
        self.found: dict[tuple[int, int], torch.Tensor] = {}
        advance = driven.adapter.advance

        def recorded(cursor: Any, prediction: Any) -> None:
            advance(cursor, prediction)
            self.found[cursor.key, cursor.index] = cursor.latents.clone()

        driven.adapter.advance = recorded


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_three_stages_make_the_same_pictures_as_one(case: Case, tiny_model: Callable[[str], Path]) -> None:
    folder = tiny_model(case.checkpoint)
    orders, n = case.orders[:1], 3  # pictures of one request: the same batches however the stages lie
    whole = Driven(case, folder)
    fused = Latents(whole)
    made = drive(whole.engine, list(jobs(orders, n)))

    encoder = Driven(case, folder, parts="encode")
    told = drive(encoder.engine, list(jobs(orders, n)))
    denoiser = Driven(case, folder, parts="denoise")
    apart = Latents(denoiser)
    conditioning = {key: outcome.payloads for key, outcome in told.items()}
    latents = drive(denoiser.engine, list(jobs(orders, n, "conditioning", conditioning)))
    decoder = Driven(case, folder, parts="decode")
    payloads = {key: outcome.payloads for key, outcome in latents.items()}
    pixels = drive(decoder.engine, list(jobs(orders, n, "latents", payloads)))

    assert whole.batches == denoiser.batches
    assert len(fused.found) == n
    for place, tensor in fused.found.items():
        assert torch.equal(apart.found[place], tensor)
    for key, outcome in made.items():
        assert outcome.error is None
        assert len(outcome.payloads) == len(pixels[key].payloads) > 0
        for one, other in zip(outcome.payloads, pixels[key].payloads, strict=True):
            assert one.meta == other.meta
            assert np.array_equal(one.tensors["pixels"], other.tensors["pixels"])


def test_a_stage_holds_its_own_weights_alone(tiny_model: Callable[[str], Path]) -> None:
    (case,) = [case for case in CASES if case.checkpoint == "sd3"]
    folder = tiny_model("sd3")
    held = {}
    for parts in ("encode", "denoise", "decode"):
        pipe = Driven(case, folder, parts=parts).adapter.pipe
        modules = [part for part in pipe.components.values() if isinstance(part, torch.nn.Module)]
        held[parts] = sum(weight.numel() for part in modules for weight in part.parameters() if not weight.is_meta)
    whole = Driven(case, folder).adapter.pipe
    modules = [part for part in whole.components.values() if isinstance(part, torch.nn.Module)]
    assert sum(held.values()) == sum(weight.numel() for part in modules for weight in part.parameters())
