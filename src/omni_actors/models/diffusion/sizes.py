"""The sizes of pictures that a model can make. Imports no torch."""

from __future__ import annotations

from collections.abc import Sequence

from omni_actors.protocol.errors import OmniError, invalid_request


def check_size(
    width: int,
    height: int,
    *,
    multiple: int,
    max_pixels: int,
    max_side: int | None = None,
    only: Sequence[tuple[int, int]] = (),
) -> None:
    """Raise an error with status 400 that names the nearest possible size, unless the model can make this size.

    Args:
        width: The width in pixels.
        height: The height in pixels.
        multiple: The number that both must divide by.
        max_pixels: The most pixels.
        max_side: The longest side, if there is one beside the most pixels.
        only: The only sizes, if the model has a table of them.
    """
    if only and (width, height) not in only:
        near = min(only, key=lambda size: abs(size[0] - width) + abs(size[1] - height))
        raise refusal(width, height, near)
    near = nearest_size(width, height, multiple=multiple, max_pixels=max_pixels, max_side=max_side)
    if near != (width, height):
        raise refusal(width, height, near)


def nearest_size(
    width: int, height: int, *, multiple: int, max_pixels: int, max_side: int | None = None
) -> tuple[int, int]:
    """Return the nearest possible size, of about the same form.

    Example:
        >>> nearest_size(1021, 1021, multiple=16, max_pixels=1 << 20)
        (1024, 1024)
        >>> nearest_size(100_000, 10_000, multiple=16, max_pixels=1 << 20)
        (3232, 320)
    """
    width, height = max(1, width), max(1, height)
    scale = min(1.0, (max_pixels / (width * height)) ** 0.5, (max_side or max(width, height)) / max(width, height))
    if scale < 1:
        width, height = int(width * scale), int(height * scale)
    sides = [max(multiple, round(side / multiple) * multiple) for side in (width, height)]
    while sides[0] * sides[1] > max_pixels and max(sides) > multiple:
        longer = sides.index(max(sides))
        sides[longer] -= multiple
    return sides[0], sides[1]


def refusal(width: int, height: int, near: tuple[int, int]) -> OmniError:
    """Return the error for a size that the model cannot make."""
    return invalid_request(
        f"The model cannot make pictures of {width}x{height} pixels; the nearest size is {near[0]}x{near[1]}.", "size"
    )
