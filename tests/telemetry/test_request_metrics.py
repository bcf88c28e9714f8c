"""What is counted of one request's events and usage."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from omni_actors.protocol.request import Completed, Event, MediaChunk, StepProgress, Usage
from omni_actors.telemetry.metrics import Metrics


def counted(*events: Event) -> dict[tuple[str, str], float]:
    """The metrics of one request of task ``image``, by name and the value of the one label."""
    metrics = Metrics()
    request = metrics.request("image")
    request.admitted()
    for event in events:
        request.received(event)
    request.left()
    text = metrics.render({}, {}).decode()
    return {
        (
            sample.name.removeprefix("omni_actors_"),
            sample.labels.get("stage") or sample.labels.get("task", ""),
        ): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if len(sample.labels) == 1
    }


def picture(**meta: object) -> MediaChunk:
    return MediaChunk(0, "image", {"index": 0, **meta}, b"file")


def test_pictures_and_steps_are_counted_by_stage() -> None:
    usage = {"image": Usage(images=2, steps=40, skipped_steps=13), "pictures": Usage(), "llm": Usage(prompt_tokens=5)}
    found = counted(StepProgress(0, 0, 1, 20), picture(preview=1), picture(), Completed(usage))
    assert found["images_total", "image"] == 2
    assert found["denoising_steps_total", "image"] == 40
    assert found["skipped_denoising_steps_total", "image"] == 13
    assert not {key for key in found if key[0].endswith("steps_total") and key[1] in ("pictures", "llm")}
    assert found["prompt_tokens_total", "llm"] == 5


def test_the_first_picture_is_no_preview_no_progress_and_no_sound() -> None:
    early = counted(StepProgress(0, 0, 1, 20), picture(preview=1))
    assert not {key for key in early if key[0].startswith("time_to_first")}
    found = counted(
        StepProgress(0, 0, 1, 20), picture(preview=1), picture(), picture(), MediaChunk(0, "audio", {}, b"")
    )
    assert found["time_to_first_image_seconds_count", "image"] == 1
    assert found["time_to_first_audio_seconds_count", "image"] == 1


def test_a_request_without_an_end_has_no_usage_and_is_cancelled() -> None:
    found = counted(StepProgress(0, 0, 1, 20))
    assert not {key for key in found if key[0] in ("images_total", "denoising_steps_total")}
