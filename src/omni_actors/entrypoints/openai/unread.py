"""Fields of a body that no stage of the request reads, such as ``temperature`` where nothing is sampled."""

from __future__ import annotations

import msgspec

from omni_actors.entrypoints.services import Services
from omni_actors.pipelines.sections import unread
from omni_actors.protocol.errors import invalid_request
from omni_actors.protocol.request import Request

_SENT_AS: dict[tuple[str, str], tuple[str, ...]] = {
    ("prompt", "text"): ("prompt",),
    ("prompt", "token_ids"): ("prompt",),
    ("prompt", "media_kwargs"): ("use_audio_in_video", "mm_processor_kwargs"),
    ("sampling", "max_tokens"): ("max_completion_tokens", "max_tokens"),
    ("sampling", "constraint"): ("response_format", "structured_outputs"),
    ("sampling", "lora"): ("model",),
    ("speech", "text"): ("input",),
    ("speech", "voice"): ("voice", "speaker", "audio"),
    ("speech", "max_tokens"): ("max_new_tokens",),
    ("speech", "reference"): ("ref_audio",),
    ("speech", "x_vector_only"): ("x_vector_only_mode",),
    ("speech", "initial_chunk_frames"): ("initial_codec_chunk_frames",),
    ("transcription", "max_tokens"): ("max_completion_tokens",),
    ("transcription", "timestamps"): ("timestamp_granularities", "response_format"),
}
"""Fields of bodies that set a section's field under another name, by section and field."""


def keep_read(services: Services, request: Request, body: msgspec.Struct) -> None:
    """Keep only the sections that the request's stages read.

    Raises 400 for a body's field that only sets an unread section. Values that the route itself put into an unread
    section are dropped.
    """
    needed = services.needed(request.task, request.inputs, request.outputs)
    params = request.params
    read = {name: section for name, section in params.items() if name in needed.sections}
    for section, field in unread(needed, params):
        value = getattr(params[section], field)
        if any(getattr(it, field, None) == value for it in read.values()):
            continue
        for name in _SENT_AS.get((section, field), (field,)):
            if getattr(body, name, None) is not None:
                raise invalid_request(
                    f"'{name}' has no effect: no stage of this request reads it.",
                    name,
                    "unsupported_parameter",
                )
    request.params = read
