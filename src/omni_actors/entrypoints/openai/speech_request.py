"""The fields of a request for speech, and the subset that this model honours."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from omni_actors.entrypoints.openai.fields import Refused
from omni_actors.entrypoints.openai.schemas import ClipPart, Count, Priority, Seconds, VoiceId
from omni_actors.entrypoints.services import Services
from omni_actors.protocol.errors import invalid_request
from omni_actors.protocol.languages import chosen_language
from omni_actors.protocol.params import Speech

TASK = "speech"

TASK_TYPES = {"CustomVoice": "custom_voice", "VoiceDesign": "voice_design", "Base": "clone"}
"""Names of vLLM-Omni's task types, mapped to this server's names, which are accepted as well."""

_FIELDS = {
    "speed": "speed",
    "instructions": "instructions",
    "language": "language",
    "task_type": "task_type",
    "ref_text": "ref_text",
    "x_vector_only_mode": "x_vector_only",
    "max_new_tokens": "max_tokens",
    "initial_codec_chunk_frames": "initial_chunk_frames",
    "temperature": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "repetition_penalty": "repetition_penalty",
}
"""Fields of the section ``speech`` by the fields of a body."""

_NEUTRAL = Speech()

_NOTHING = {"initial_codec_chunk_frames": 0}
"""Values that leave a field to the deployment, besides null and the empty text."""


class SpeechRequest(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """The body of ``POST /v1/audio/speech``. ``stream`` sends bytes as they are produced (the default except for WAV);
    without it the file is sent whole, with its length in its head (the default for WAV)."""

    input: str
    model: str | None = None
    voice: str | VoiceId | None = None
    instructions: str | None = None
    response_format: Literal["mp3", "opus", "aac", "flac", "wav", "pcm"] | None = None
    speed: Annotated[float, Meta(ge=0.25, le=4.0)] | None = None
    stream_format: Literal["audio", "sse"] | None = None

    # vLLM-Omni's
    stream: bool | None = None
    speaker: str | None = None
    language: str | None = None
    seed: Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)] | None = None
    task_type: Literal["CustomVoice", "VoiceDesign", "Base", "custom_voice", "voice_design", "clone"] | None = None
    ref_audio: ClipPart | str | None = None
    """The clip; the media process leaves a :class:`ClipPart`."""
    ref_text: str | None = None
    x_vector_only_mode: bool | None = None
    max_new_tokens: Count | None = None
    initial_codec_chunk_frames: Annotated[int, Meta(ge=0, le=2**31 - 1)] | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_k: Annotated[int, Meta(ge=-1, le=2**53)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    repetition_penalty: Annotated[float, Meta(ge=0.01, le=100)] | None = None

    # ours
    timeout: Seconds | None = None
    model_parameters: dict[str, Any] | None = None
    """Parameters of the model's own, which its pipeline declares."""
    vllm_xargs: dict[str, Any] | None = None
    """vLLM's name for the same."""
    priority: Priority | None = None

    extra_params: Annotated[Any, Refused("give its fields as fields of the body.", ({},))] = None
    sample_rate: Annotated[Any, Refused("audio has the model's own rate, which the header x-sample-rate states.")] = (
        None
    )
    speaker_embedding: Annotated[Any, Refused("give the clip that the embedding was made from, as ref_audio.")] = None
    word_timestamps: Annotated[Any, Refused("transcribe the audio to get the times of words.", (False,))] = None


def may_clone(services: Services) -> bool:
    """Return whether this model can speak with the voice of a clip."""
    task = services.plan.tasks.get(TASK)
    return task is not None and "audio" in task.entries


def has_reference(services: Services, body: SpeechRequest, modalities: tuple[str, ...]) -> bool:
    """Return whether a body brings a clip of a voice; ``modalities`` are those of the body's media. Raises 400 if this
    model takes none."""
    if body.ref_audio is None:
        return False
    if not may_clone(services):
        raise invalid_request("This model cannot clone a voice.", "ref_audio", "unsupported_parameter")
    if not isinstance(body.ref_audio, ClipPart) or modalities != ("audio",):
        raise invalid_request("'ref_audio' must be a string: base64, or a data, https or http URL.", "ref_audio")
    return True


def speech_section(services: Services, body: SpeechRequest) -> Speech:
    """Return the section ``speech``. Raises 400 for fields that this model does not honour, and for contradictions."""
    speech = Speech(
        text=body.input,
        voice=resolve_voice(
            services, {"voice": body.voice, "speaker": body.speaker}, cloned=body.ref_audio is not None
        ),
        seed=body.seed or 0,
        reference=body.ref_audio is not None,
    )
    set_fields(services, speech, {name: getattr(body, name) for name in _FIELDS})
    _settle_type(services, speech)
    return speech


def resolve_voice(services: Services, given: dict[str, str | VoiceId | None], *, cloned: bool = False) -> str:
    """Return the model's own voice; ``given`` are the fields that may name it, by path. Raises 400 for an unknown voice
    and for two different voices.

    With ``cloned``, the clip determines the sound: some clients have to name a voice and name any, so an unknown voice
    counts as none. (A known voice still reaches the model: there are models that number the speakers of a clip.)
    """
    named = {param: it.id if isinstance(it, VoiceId) else it for param, it in given.items() if it is not None}
    if cloned:
        named = {param: name for param, name in named.items() if services.voices.find(name) is not None}
    found = {param: services.voices.resolve(name, param) for param, name in named.items()}
    if len(set(found.values())) > 1:
        raise invalid_request(f"{' and '.join(map(repr, found))} name different voices.", next(reversed(found)))
    return next(iter(found.values()), None) or services.voices.resolve(None, "voice")


def set_fields(services: Services, speech: Speech, given: dict[str, Any]) -> None:
    """Put a body's fields into ``speech``. Raises 400 for a field that this model does not honour; a neutral value asks
    for nothing. Languages get the model's own names."""
    for name, value in given.items():
        field = _FIELDS[name]
        if field == "language":
            value = chosen_language(value, services.plan.languages, name)
        if value is None or value in ("", _NOTHING.get(name)) or value == getattr(_NEUTRAL, field):
            continue
        if field == "task_type":
            value = TASK_TYPES.get(value, value)
        elif not services.plan.pipeline.honours(field):
            raise invalid_request(f"This model does not honour '{name}'.", name, "unsupported_parameter")
        setattr(speech, field, value)


def _settle_type(services: Services, speech: Speech) -> None:
    """Decide the source of the voice: as asked, else a clone if there is something to clone, else the model's usual
    source."""
    possible = services.plan.pipeline.task_types
    cloned = speech.reference or speech.ref_text is not None or speech.x_vector_only
    if possible or speech.task_type is not None:
        kind = speech.task_type or ("clone" if cloned else possible[0])
        if kind not in possible:
            does = ", ".join(possible) or "none"
            param = "task_type" if speech.task_type or not speech.reference else "ref_audio"
            raise invalid_request(f"This model does not do '{kind}'; it has: {does}.", param, "unsupported_task_type")
        if cloned and kind != "clone":
            param = "ref_audio" if speech.reference else "ref_text" if speech.ref_text else "x_vector_only_mode"
            raise invalid_request(f"'{param}' belongs to task_type 'clone' (Base), not '{kind}'.", param)
        if kind == "voice_design" and not speech.instructions:
            raise invalid_request("'voice_design' needs 'instructions' that describe the voice.", "instructions")
        if kind == "clone" and speech.reference and not (speech.ref_text or speech.x_vector_only):
            raise invalid_request("Cloning needs 'ref_text', or 'x_vector_only_mode': true without it.", "ref_text")
        cloned = kind == "clone"
        speech.task_type = kind
    if cloned and not speech.reference:
        raise invalid_request("Cloning needs a clip: give 'ref_audio'.", "ref_audio", "missing_required_parameter")
