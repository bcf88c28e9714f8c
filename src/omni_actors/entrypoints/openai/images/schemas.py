"""The bodies of requests for pictures, field by field. A field without a mark is honoured."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from omni_actors.entrypoints.openai.fields import NoOp, Refused
from omni_actors.entrypoints.openai.schemas import ImagePart, Priority, Seconds

MAX_PICTURES = 10
"""Most pictures of one request, as in OpenAI's API."""

MAX_INPUTS = 16
"""Most pictures to edit of one request, as in OpenAI's API."""

MAX_PARTIAL = 3
"""Most previews of one picture that ``partial_images`` asks for, as in OpenAI's API."""

Side = Annotated[int, Meta(ge=1, le=1 << 16)]
Steps = Annotated[int, Meta(ge=1, le=1 << 16)]
Scale = Annotated[float, Meta(ge=0, le=1000)]
LoraFactor = Annotated[float, Meta(ge=-100, le=100)]
PromptText = Annotated[str, Meta(max_length=32_000)]
"""A prompt. The bound is OpenAI's."""

_EFFORT = "Effort is the number of steps: num_inference_steps."
_NO_FILTER = "There is no moderation model."
_SVG = "pictures are png, webp or jpeg."
_ANIMATION = "pictures do not move."


class LoraChoice(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A LoRA adapter by name, and the factor of its weights. ``lora_name``, ``adapter`` and ``lora_scale`` are
    vLLM-Omni's names of the same."""

    name: str | None = None
    scale: LoraFactor | None = None
    lora_name: str | None = None
    adapter: str | None = None
    lora_scale: LoraFactor | None = None

    path: Annotated[Any, Refused("load the adapter by POST /v1/load_lora_adapter, and give its name.")] = None
    local_path: Annotated[Any, Refused("load the adapter by POST /v1/load_lora_adapter, and give its name.")] = None
    lora_path: Annotated[Any, Refused("load the adapter by POST /v1/load_lora_adapter, and give its name.")] = None
    lora_local_path: Annotated[Any, Refused("load the adapter by POST /v1/load_lora_adapter, and give its name.")] = (
        None
    )
    int_id: Annotated[Any, NoOp("Adapters are told apart by their names.")] = None
    lora_int_id: Annotated[Any, NoOp("Adapters are told apart by their names.")] = None


class PictureFields(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """The fields that every request for pictures has: OpenAI's first, then the usual knobs of diffusion models."""

    model: str | None = None
    n: Annotated[int, Meta(ge=1, le=MAX_PICTURES)] | None = None
    size: Annotated[str, Meta(max_length=32)] | None = None
    """``WIDTHxHEIGHT`` in pixels; ``auto`` is the model's own size."""
    width: Side | None = None
    height: Side | None = None

    negative_prompt: PromptText | None = None
    num_inference_steps: Steps | None = None
    steps: Steps | None = None
    """Another name of ``num_inference_steps``."""
    guidance_scale: Scale | None = None
    true_cfg_scale: Scale | None = None
    cfg_scale: Scale | None = None
    """vLLM-Omni's other name of ``true_cfg_scale``."""
    seed: Annotated[int, Meta(ge=0, le=2**63 - 1)] | None = None
    strength: Annotated[float, Meta(gt=0, le=1)] | None = None
    """The part of the schedule that an edit goes through."""
    layers: Annotated[int, Meta(ge=1, le=64)] | None = None
    lora: LoraChoice | str | None = None
    """One adapter: its name, or an object (in a form: JSON)."""
    loras: Annotated[list[LoraChoice | str], Meta(max_length=16)] | None = None
    cache: Annotated[dict[str, float], Meta(max_length=16)] | str | None = None
    """Settings of the step cache by name; in a form: JSON."""

    output_format: Literal["png", "webp", "jpeg", "jpg"] | None = None
    output_compression: Annotated[int, Meta(ge=0, le=100)] | None = None
    background: Literal["transparent", "opaque", "auto"] | None = None

    timeout: Seconds | None = None
    priority: Priority | None = None

    user: Annotated[str | None, NoOp("Clients are distinguished by their API key alone.")] = None
    safety_identifier: Annotated[str | None, NoOp("Clients are distinguished by their API key alone.")] = None
    generator_device: Annotated[Any, Refused("noise is drawn on the host, the same for every device.", ("cpu",))] = None
    extra_params: Annotated[Any, Refused("give its fields as fields of the body.", ({},))] = None
    return_stage_metrics: Annotated[Any, Refused("timings are in /metrics.", (False,))] = None


class ImageRequest(PictureFields, forbid_unknown_fields=True, kw_only=True):
    """The fields that ``/v1/images/generations`` and ``/v1/images/edits`` share."""

    prompt: Annotated[str, Meta(min_length=1, max_length=32_000)]
    response_format: Literal["b64_json", "url"] | None = None
    stream: bool | None = None
    partial_images: Annotated[int, Meta(ge=0, le=MAX_PARTIAL)] | None = None
    preview_interval: Annotated[int, Meta(ge=1, le=1 << 16)] | None = None
    """A preview after every so many steps of a streamed picture, in place of ``partial_images``."""

    quality: Annotated[
        Literal["low", "medium", "high", "xhigh", "max", "auto", "standard", "hd"] | None, NoOp(_EFFORT)
    ] = None
    moderation: Annotated[Literal["low", "auto"] | None, NoOp(_NO_FILTER)] = None
    complexity: Annotated[Any, Refused("effort is the number of steps: num_inference_steps.")] = None
    frame_count: Annotated[Any, Refused(_ANIMATION)] = None
    frame_duration_ms: Annotated[Any, Refused(_ANIMATION)] = None
    svg: Annotated[Any, Refused(_SVG)] = None


class GenerationRequest(ImageRequest, forbid_unknown_fields=True, kw_only=True):
    """The body of ``POST /v1/images/generations``."""

    style: Annotated[Any, Refused("put the style into the prompt.")] = None


class EditFields(ImageRequest, forbid_unknown_fields=True, kw_only=True):
    """The fields of ``POST /v1/images/edits``, beside its pictures."""

    input_fidelity: Annotated[Literal["high", "low"] | None, NoOp("Pictures are always read in full.")] = None
    resolution: Annotated[Any, Refused("give the size.")] = None
    guidance_scale_2: Annotated[Any, Refused("this model has one denoiser.")] = None


class EditForm(EditFields, forbid_unknown_fields=True, kw_only=True):
    """The fields of an edit that comes as a form; the files of ``image`` and ``mask`` are taken out before."""

    url: list[str] | None = None
    """vLLM-Omni's: further pictures by URL."""


class EditRequest(EditFields, forbid_unknown_fields=True, kw_only=True):
    """The body of an edit that comes as JSON, with its pictures in the form that the media process leaves."""

    images: list[ImagePart] | None = None
    mask: ImagePart | None = None
