"""Conversion of a body's fields to the section ``image``; all that can be known of a mistake is said here."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Collection, Sequence
from typing import Any, TypeVar

import msgspec

from omni_actors.entrypoints.openai.fields import decode, refuse_unserved
from omni_actors.entrypoints.openai.images.facts import PictureFacts
from omni_actors.entrypoints.openai.images.schemas import LoraChoice, PictureFields
from omni_actors.models.diffusion.sizes import check_size
from omni_actors.protocol.errors import OmniError, invalid_request
from omni_actors.protocol.params import ImageGeneration, LoraScale

MAX_SIDE = 1 << 16
"""Most pixels of a side, for any model."""

_SIZE = re.compile(r"([0-9]{1,9})[xX]([0-9]{1,9})")

_NAMES = {
    "steps": ("num_inference_steps", "steps"),
    "guidance": ("guidance_scale",),
    "true_guidance": ("true_cfg_scale", "cfg_scale"),
    "true_cfg_scale": ("true_cfg_scale", "cfg_scale"),
    "loras": ("loras", "lora", "model"),
    "pictures": ("image", "messages"),
    "image": ("image", "messages"),
    "size": ("size", "width"),
    "format": ("output_format",),
    "compression": ("output_compression",),
    "prompt": ("prompt", "messages"),
}
"""Fields of bodies by the name under which a stage's error names them."""

V = TypeVar("V")


def image_section(
    body: PictureFields,
    facts: PictureFacts,
    prompt: str,
    *,
    adapters: Collection[str] = (),
    adapter: str | None = None,
    pictures: int = 0,
    mask: bool = False,
) -> ImageGeneration:
    """Return the section ``image`` of a body.

    Args:
        body: The body.
        facts: What is known of the model.
        prompt: The prompt.
        adapters: Names of the LoRA adapters that a request may use.
        adapter: The adapter that the body names as its model, if it names one.
        pictures: How many pictures to edit come with the request.
        mask: Whether a mask comes behind the pictures.

    Raises:
        OmniError: 400 with the field in ``param``: a contradiction, or something that the model is certain not to do.
    """
    _check_numbers(body)
    width, height = size_of(body, facts)
    steps = _same(body, "num_inference_steps", "steps")
    if steps is not None and facts.max_steps is not None and steps > facts.max_steps:
        name = _given(body, "steps")
        raise invalid_request(f"'{name}' must be from 1 to {facts.max_steps}.", name, "invalid_value")
    n = body.n or 1
    if body.seed is not None and body.seed + n > 2**63:
        raise invalid_request(f"'seed' leaves no room for {n} pictures with a seed each.", "seed", "invalid_value")
    format = _format(body)
    if body.background == "transparent" and facts.alpha is False:
        raise invalid_request("This model makes opaque pictures.", "background", "unsupported_parameter")
    return ImageGeneration(
        prompt=prompt,
        negative_prompt=body.negative_prompt,
        n=n,
        width=width,
        height=height,
        steps=steps,
        guidance=body.guidance_scale,
        true_guidance=_same(body, "true_cfg_scale", "cfg_scale"),
        seed=body.seed,
        strength=body.strength,
        layers=body.layers,
        pictures=pictures,
        mask=mask,
        loras=_loras(body, {*adapters, *facts.loras}, adapter),
        cache=_cache(body),
        format=format,
        compression=body.output_compression,
        background=None if body.background in (None, "auto") else body.background,
    )


def size_of(body: PictureFields, facts: PictureFacts) -> tuple[int | None, int | None]:
    """Return width and height as the body names them; ``None`` leaves them to the model.

    Raises:
        OmniError: 400 for a size that is none, is given twice, or is certain not to be possible; then the message
            names the nearest one.
    """
    named = None if body.size in (None, "auto") else body.size
    if named is not None and (body.width is not None or body.height is not None):
        raise invalid_request("Give 'size', or 'width' and 'height', not both.", "size", "invalid_value")
    width, height, param = body.width, body.height, "width"
    if named is not None:
        found = _SIZE.fullmatch(named)
        if found is None:
            raise invalid_request("'size' is 'auto' or WIDTHxHEIGHT in pixels, as in 512x512.", "size", "invalid_value")
        width, height, param = int(found[1]), int(found[2]), "size"
    if width is None and height is None:
        return None, None
    if width is None or height is None:
        missing = "width" if width is None else "height"
        raise invalid_request("'width' and 'height' belong together: give both.", missing, "invalid_value")
    try:
        if facts.multiple is not None and facts.max_pixels is not None:
            check_size(
                width,
                height,
                multiple=facts.multiple,
                max_pixels=facts.max_pixels,
                max_side=facts.max_side,
                only=facts.sizes,
            )
        elif not (1 <= width <= MAX_SIDE and 1 <= height <= MAX_SIDE):
            raise invalid_request(f"A picture's sides are from 1 to {MAX_SIDE} pixels.", param, "invalid_value")
    except OmniError as error:
        raise OmniError(msgspec.structs.replace(error.info, param=param, code="invalid_value")) from None
    return width, height


def in_words_of(body: msgspec.Struct, error: OmniError) -> OmniError:
    """Return a stage's error with the name under which the body has the field that the error is about."""
    names = _NAMES.get(error.info.param or "")
    if names is None:
        return error
    known = [name for name in names if name in body.__struct_fields__]
    given = next((name for name in known if getattr(body, name) is not None), None) or next(iter(known), None)
    return OmniError(msgspec.structs.replace(error.info, param=given or error.info.param))


def _format(body: PictureFields) -> str:
    format = "jpeg" if body.output_format == "jpg" else body.output_format or "png"
    if format == "jpeg" and body.background == "transparent":
        raise invalid_request("A transparent background needs png or webp.", "background", "invalid_value")
    return format


def _check_numbers(body: PictureFields) -> None:
    """Refuse a number that is none: a form can spell one, which JSON cannot."""
    for name in ("guidance_scale", "true_cfg_scale", "cfg_scale", "strength"):
        value = getattr(body, name)
        if value is not None and not math.isfinite(value):
            raise invalid_request(f"'{name}' must be a number.", name, "invalid_value")


def _given(body: PictureFields, field: str) -> str:
    return next(name for name in _NAMES[field] if getattr(body, name) is not None)


def _same(body: PictureFields, first: str, second: str) -> Any:
    """Return the value of a field with two names. Raises 400 if they contradict each other."""
    one, other = getattr(body, first), getattr(body, second)
    if one is not None and other is not None and one != other:
        raise invalid_request(f"'{first}' and '{second}' are the same field, and differ.", second, "invalid_value")
    return other if one is None else one


def _loras(body: PictureFields, known: Collection[str], adapter: str | None) -> list[LoraScale]:
    if body.lora is not None and body.loras is not None:
        raise invalid_request("'lora' and 'loras' are the same field: give one.", "lora", "invalid_value")
    given: Sequence[tuple[str, LoraChoice | str]] = []
    if body.lora is not None:
        given = [("lora", body.lora)]
    elif body.loras is not None:
        given = [(f"loras[{place}]", it) for place, it in enumerate(body.loras)]
    chosen = [] if adapter is None else [("model", LoraScale(adapter))]
    chosen += [(param, _lora(param, it)) for param, it in given]
    for place, (param, it) in enumerate(chosen):
        if it.name not in known:
            near = difflib.get_close_matches(it.name, known, 1)
            has = f"this server has: {', '.join(sorted(known))}." if known else "this server has none."
            hint = f" Did you mean '{near[0]}'?" if near else ""
            raise invalid_request(f"There is no LoRA adapter '{it.name[:100]}'; {has}{hint}", param, "lora_not_found")
        if any(it.name == other.name for _, other in chosen[:place]):
            raise invalid_request(f"The LoRA adapter '{it.name}' is named twice.", param, "invalid_value")
    return [it for _, it in chosen]


def _lora(param: str, given: LoraChoice | str) -> LoraScale:
    """Return an adapter and its factor: an object, a name, or an object as text (in a form)."""
    if isinstance(given, str):
        if not given.lstrip().startswith("{"):
            return LoraScale(given)
        given = _parsed(given, LoraChoice, param)
    refuse_unserved(given, f"{param}.")
    names = {it for it in (given.name, given.lora_name, given.adapter) if it is not None}
    scales = {it for it in (given.scale, given.lora_scale) if it is not None}
    if len(names) != 1:
        problem = "needs the adapter's 'name'" if not names else "names two adapters"
        raise invalid_request(f"'{param}' {problem}.", f"{param}.name", "invalid_value")
    if len(scales) > 1:
        raise invalid_request(f"'{param}' has two factors.", f"{param}.scale", "invalid_value")
    scale = scales.pop() if scales else 1.0
    if not math.isfinite(scale):
        raise invalid_request(f"'{param}.scale' must be a number.", f"{param}.scale", "invalid_value")
    return LoraScale(names.pop(), scale)


def _cache(body: PictureFields) -> dict[str, float]:
    if not isinstance(body.cache, str):
        return body.cache or {}
    try:
        return msgspec.json.decode(body.cache, type=dict[str, float])
    except msgspec.DecodeError:
        message = "'cache' is an object of numbers, in a form as JSON."
        raise invalid_request(message, "cache", "invalid_value") from None


S = TypeVar("S", bound=msgspec.Struct)


def _parsed(text: str, kind: type[S], param: str) -> S:
    try:
        return decode(text.encode(), kind)
    except OmniError as error:
        inner = f"{param}.{error.info.param}" if error.info.param else param
        raise OmniError(msgspec.structs.replace(error.info, param=inner)) from None
