"""The sections of a request's parameters.

A request carries a mapping of *section name → struct*. A stage declares the sections that it reads (``Stage.sections``)
and receives only those. Entrypoints build sections from wire formats; workers decode sections by type. Field defaults
are those of OpenAI's API where the field exists there, and of vLLM where only vLLM has the field.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta


class Prompt(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Section ``prompt``. Exactly one of ``messages``, ``text`` and ``token_ids`` is set.

    ``messages`` follow the chat format; a content is a string or a list of parts ``{"type": "text", "text": …}`` and
    ``{"type": "audio" | "image" | "video", "index": i}``, where ``i`` counts the request's media of all kinds in order.
    ``media_kwargs`` are settings for the media: ``{"use_audio_in_video": True}`` when a video's audio track (delivered
    with the video, if there is one) belongs to the prompt.
    """

    messages: list[dict[str, Any]] | None = None
    text: str | None = None
    token_ids: list[int] | None = None
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    chat_template_kwargs: dict[str, Any] = {}
    media_kwargs: dict[str, Any] = {}


class Constraint(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A constraint on the whole of an answer. Exactly one field is set: ``json``, a JSON schema as text;
    ``json_object``, any JSON object; ``regex``; ``choice``, one of these texts; ``grammar``, in GBNF."""

    json: str | None = None
    json_object: bool = False
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None


class Sampling(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Section ``sampling``: how an autoregressive stage chooses tokens and when it stops.

    ``None`` for ``max_tokens`` means up to the model's context. For ``temperature``, ``top_p``, ``top_k``, ``min_p``
    and ``repetition_penalty`` ``None`` means the stage's default from the deploy overlay, else the model's generation
    config, else the neutral value. ``seed=None`` draws a fresh seed per request. ``logprobs`` is the number of
    alternatives per token (0: only the chosen one, ``None``: off). ``lora`` names an adapter of the stage.
    """

    max_tokens: int | None = None
    min_tokens: int = 0
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float | None = None
    seed: int | None = None
    stop: list[str] = []
    stop_token_ids: list[int] = []
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    logprobs: int | None = None
    logit_bias: dict[int, float] = {}
    n: int = 1
    echo: bool = False
    skip_special_tokens: bool = True
    constraint: Constraint | None = None
    lora: str | None = None


class Speech(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Section ``speech``: the text that a speech stage speaks (``text`` is ``None`` when it comes by an edge), and the
    manner.

    ``voice`` is one of the model's own, or ``default``. ``task_type`` is the source of the voice: ``custom_voice`` (the
    named voice), ``voice_design`` (made after ``instructions``), ``clone`` (after a reference clip), ``None`` for
    families without the distinction. ``reference`` is true when a clip comes on the stage's audio port; ``ref_text`` is
    the transcript of the clip, and ``x_vector_only`` takes only the speaker's likeness from the clip. ``max_tokens``
    bounds the frames of speech, ``initial_chunk_frames`` is the size of the first piece of output in frames. ``None``
    in the last fields means the stage's own default.
    """

    text: str | None = None
    voice: str = "default"
    speed: float = 1.0
    instructions: str | None = None
    language: str | None = None
    seed: int = 0
    task_type: str | None = None
    reference: bool = False
    ref_text: str | None = None
    x_vector_only: bool = False
    max_tokens: int | None = None
    initial_chunk_frames: int | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    repetition_penalty: float | None = None


class Transcription(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Section ``transcription``.

    ``timestamps``: ``none``, ``segment`` or ``word``; ``task``: ``transcribe`` or ``translate``. ``clips`` is the
    number of audio clips that will arrive on the audio port. ``max_tokens`` is the most tokens of a clip's transcript,
    counted as the stage's usage counts them; ``None`` means the stage's own bound, and a bound beyond the model's
    capacity has no effect.
    """

    language: str | None = None
    prompt: str | None = None
    temperature: float = 0.0
    timestamps: str = "none"
    task: str = "transcribe"
    clips: int = 1
    max_tokens: Annotated[int, Meta(ge=1, le=2**53)] | None = None


class LoraScale(msgspec.Struct, frozen=True, omit_defaults=True):
    """A LoRA adapter of the stage by name, and the factor of its weights."""

    name: str
    scale: float = 1.0


class ImageGeneration(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Section ``image``: the pictures that a diffusion stage makes, and the manner.

    ``prompt`` is ``None`` when the text comes by an edge. ``n`` pictures are made, each from a seed of its own: picture
    ``i`` from ``seed + i``, and the orchestrator draws ``seed`` if the client leaves it open. ``width`` and ``height``
    are in pixels; ``None`` is the model's own size. ``steps`` is the number of denoising steps, ``guidance`` the
    family's ``guidance_scale`` and ``true_guidance`` the ``true_cfg_scale`` of families that have both, ``strength``
    (0 to 1) the part of the schedule that an edit goes through, ``layers`` the number of layers of a layered picture;
    ``None`` means the model's own.

    ``pictures`` counts the client's pictures that come on the stage's port, in order; with ``mask`` one more follows,
    whose transparent pixels are to be changed. ``loras`` are the adapters of this request. ``cache`` are settings of
    the step cache by name; empty for none.

    ``previews`` asks for a preview after every so many steps (0: none), ``progress`` for an event after each step.
    ``format`` (``png``, ``webp`` or ``jpeg``), ``compression`` (0 to 100, the quality for lossy formats) and
    ``background`` (``transparent`` or ``opaque``) are for the stage that writes the files.
    """

    prompt: str | None = None
    negative_prompt: str | None = None
    n: int = 1
    width: int | None = None
    height: int | None = None
    steps: int | None = None
    guidance: float | None = None
    true_guidance: float | None = None
    seed: int | None = None
    strength: float | None = None
    layers: int | None = None
    pictures: int = 0
    mask: bool = False
    loras: list[LoraScale] = []
    cache: dict[str, float] = {}
    previews: int = 0
    progress: bool = False
    format: str = "png"
    compression: int | None = None
    background: str | None = None


SECTIONS: dict[str, type[msgspec.Struct]] = {
    "image": ImageGeneration,
    "prompt": Prompt,
    "sampling": Sampling,
    "speech": Speech,
    "transcription": Transcription,
}
"""Section name → struct. An unknown section travels as plain builtins (a family's own parameters)."""
