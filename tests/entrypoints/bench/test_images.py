"""What bench measures of pictures, against a server that is told what to answer."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from typing import Any

import pytest
from tests.entrypoints.bench.test_command import bench
from tests.entrypoints.bench.test_measuring import ask

PNG = base64.b64encode(b"\x89PNG\r\n\x1a\n" + bytes(40)).decode()


def whole(pictures: int, **usage: int) -> bytes:
    return json.dumps({"created": 1, "data": [{"b64_json": PNG, "seed": 1}] * pictures, "usage": usage}).encode()


def picture(sse: Any, end: str, **more: Any) -> bytes:
    event: bytes = sse.event({"type": f"image_generation.{end}", "b64_json": PNG, **more})
    return event


async def test_pictures_and_steps_are_counted(serve: Callable[..., Any]) -> None:
    server = serve([(0.1, whole(2, steps=40))], content_type=b"application/json")
    sample = await ask(server, "images", extra={"n": 2})
    assert (sample.error, sample.pictures, sample.steps) == (None, 2, 40)
    assert sample.ttfi is not None
    assert 0.1 <= sample.ttfi <= sample.e2el
    assert server.bodies == [{"model": "m", "prompt": "one", "response_format": "b64_json", "n": 2}]


async def test_a_stream_begins_with_its_first_preview(serve: Callable[..., Any], sse: Any) -> None:
    end = picture(sse, "completed", usage={"steps": 20})
    server = serve([(0.0, picture(sse, "partial_image")), (0.2, end + sse.done)])
    sample = await ask(server, "images-sse")
    assert (sample.error, sample.pictures, sample.steps) == (None, 1, 20)
    assert sample.ttfi is not None
    assert sample.ttfi <= sample.e2el - 0.19
    assert server.bodies[0]["partial_images"] == 2


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (whole(1, steps=20), "1 pictures came instead of 2"),
        (json.dumps({"data": [{"b64_json": "AAAA"}] * 2, "usage": {}}).encode(), "no PNG"),
        (json.dumps({"data": [{"b64_json": PNG}] * 2}).encode(), "no usage"),
        (b"[", "not JSON"),
    ],
)
async def test_a_reply_that_is_not_what_was_asked_for_is_a_failure(
    serve: Callable[..., Any], answer: bytes, message: str
) -> None:
    sample = await ask(serve([(0.0, answer)], content_type=b"application/json"), "images", extra={"n": 2})
    assert sample.error is not None
    assert message in sample.error


def test_the_report_has_rates_of_pictures_and_steps(serve: Callable[..., Any]) -> None:
    server = serve([(0.01, whole(1, steps=20))], content_type=b"application/json")
    result = bench("images", "--url", server.url, "--requests", "2", "--repeats", "1", "--warmup", "0")
    assert result.exit_code == 0, result.output
    for heading in ("TTFI ms", "images/s", "steps/s"):
        assert heading in result.stdout
    assert "tokens/s" not in result.stdout
    assert {body["prompt"] for body in server.bodies} == {"a seven", "the digit three"}
