"""The choice of the steps after which a picture's previews are made."""

from __future__ import annotations

from omni_actors.entrypoints.openai.images.facts import PictureFacts
from omni_actors.entrypoints.openai.images.schemas import ImageRequest
from omni_actors.protocol.errors import invalid_request
from omni_actors.protocol.params import ImageGeneration

USUAL_STEPS = 28
"""Steps of a model whose default is not known."""


def check_previews(body: ImageRequest) -> None:
    """Raise 400 for previews that are asked for twice, or without a stream."""
    if body.partial_images and body.preview_interval is not None:
        raise invalid_request("Give 'partial_images' or 'preview_interval'.", "preview_interval", "invalid_value")
    for name in ("partial_images", "preview_interval"):
        if getattr(body, name) and not body.stream:
            raise invalid_request(f"'{name}' needs 'stream': true.", name, "invalid_value")


def set_previews(image: ImageGeneration, body: ImageRequest, facts: PictureFacts) -> int | None:
    """Ask for previews and progress in the section of a streamed request.

    Returns:
        The most previews of one picture; ``None`` for no bound.
    """
    image.progress = True
    if body.preview_interval is not None:
        image.previews = body.preview_interval
        return None
    if count := body.partial_images:
        steps = image.steps or facts.steps or USUAL_STEPS
        image.previews = interval_of(count, max(1, int(steps * (image.strength or 1.0))))
    return body.partial_images or 0


def interval_of(count: int, steps: int) -> int:
    """Return after how many steps each preview follows, so that ``count`` of them, if there are as many steps, spread
    over a picture. The last step has no preview.

    Example:
        >>> interval_of(3, 20), interval_of(3, 10), interval_of(3, 4), interval_of(3, 5), interval_of(1, 1)
        (5, 3, 1, 1, 1)
    """
    wide = -(-steps // (count + 1))
    return wide if (steps - 1) // max(1, wide) >= count else max(1, steps // (count + 1))
