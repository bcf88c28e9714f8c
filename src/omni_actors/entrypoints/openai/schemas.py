"""The bodies of chat and text completions, field by field.

A field without a mark is honoured. Ranges are OpenAI's, or vLLM's for fields that only vLLM has.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from omni_actors.entrypoints.openai.fields import NoOp, Refused
from omni_actors.protocol.request import MAX_PRIORITY

AudioFormat = Literal["wav", "mp3", "flac", "opus", "aac", "pcm16"]
Count = Annotated[int, Meta(ge=1, le=2**53)]
Seconds = Annotated[float, Meta(gt=0, le=86400)]
Priority = Annotated[int, Meta(ge=-MAX_PRIORITY, le=MAX_PRIORITY)]
"""vLLM's priority: a lower number is more urgent."""
Penalty = Annotated[float, Meta(ge=-2, le=2)]
StopString = Annotated[str, Meta(min_length=1, max_length=1024)]
Bias = Annotated[float, Meta(ge=-100, le=100)]
TokenId = Annotated[int, Meta(ge=0, le=2**31 - 1)]

MAX_MESSAGES = 10_000
"""Most messages of a chat. Each is checked in the serving process: 4 MiB of the shortest messages would block it for
0.1 s."""
_STORED = "Nothing is stored."
_CACHE = "Prefixes are reused wherever they match, for all clients."
_TOOLS = "tools are not served yet."


class StreamOptions(msgspec.Struct, forbid_unknown_fields=True):
    """Options of a stream. ``include_usage`` adds a last chunk with the usage. ``continuous_usage_stats`` (vLLM's) puts
    the usage so far into each chunk; the last chunk then comes unless ``include_usage`` is false."""

    include_usage: bool | None = None
    continuous_usage_stats: bool = False
    include_obfuscation: Annotated[bool | None, Refused("events are not padded.", (False,))] = None


class SamplingFields(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """The fields that chat and text completions share."""

    model: str | None = None
    stream: bool = False
    stream_options: StreamOptions | None = None
    n: Annotated[int, Meta(ge=1, le=128)] | None = None
    max_tokens: Count | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    logit_bias: Annotated[dict[TokenId, Bias], Meta(max_length=1024)] | None = None
    seed: Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)] | None = None
    stop: StopString | Annotated[list[StopString], Meta(max_length=16)] | None = None

    # vLLM's
    top_k: Annotated[int, Meta(ge=-1, le=2**53)] | None = None
    min_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    repetition_penalty: Annotated[float, Meta(ge=0.01, le=100)] | None = None
    min_tokens: Annotated[int, Meta(ge=0, le=2**53)] = 0
    ignore_eos: bool = False
    stop_token_ids: Annotated[list[TokenId], Meta(max_length=64)] | None = None
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True
    structured_outputs: StructuredOutputs | None = None

    priority: Priority | None = None

    # ours
    timeout: Seconds | None = None
    model_parameters: dict[str, Any] | None = None
    """Parameters of the model's own, which its pipeline declares."""
    vllm_xargs: dict[str, Any] | None = None
    """vLLM's name for the same."""

    user: Annotated[str | None, NoOp("Clients are distinguished by their API key alone.")] = None

    @property
    def usage_last(self) -> bool:
        """Whether a stream ends with the usage."""
        options = self.stream_options
        return options is not None and (self.usage_always if options.include_usage is None else options.include_usage)

    @property
    def usage_always(self) -> bool:
        """Whether each chunk of a stream has the usage so far."""
        return self.stream_options is not None and self.stream_options.continuous_usage_stats


class AudioOutput(msgspec.Struct, forbid_unknown_fields=True):
    format: AudioFormat | None = None
    voice: str | VoiceId | None = None


class VoiceId(msgspec.Struct, forbid_unknown_fields=True):
    id: str


class JsonSchema(msgspec.Struct, forbid_unknown_fields=True):
    """A JSON schema. ``strict`` makes no difference: answers always follow the schema."""

    name: str
    schema: dict[str, Any] | None = None
    description: str | None = None
    strict: bool | None = None


class ResponseFormat(msgspec.Struct, forbid_unknown_fields=True):
    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None


class StructuredOutputs(msgspec.Struct, forbid_unknown_fields=True):
    """vLLM's constraints, of which exactly one is set. ``json`` is a schema, as an object or as text."""

    json: dict[str, Any] | str | None = None
    json_object: bool | None = None
    regex: str | None = None
    choice: Annotated[list[str], Meta(min_length=1, max_length=1024)] | None = None
    grammar: str | None = None


class TextPart(msgspec.Struct, tag="text", tag_field="type", forbid_unknown_fields=True):
    text: str


class RefusalPart(msgspec.Struct, tag="refusal", tag_field="type", forbid_unknown_fields=True):
    refusal: str


class InputAudio(msgspec.Struct, forbid_unknown_fields=True):
    data: str
    format: str | None = None


class InputAudioPart(msgspec.Struct, tag="input_audio", tag_field="type", forbid_unknown_fields=True):
    """Audio in a message. Parts with media occur only in bodies that the media process has not handled yet."""

    input_audio: InputAudio


class Url(msgspec.Struct, forbid_unknown_fields=True):
    url: str


class ImageUrl(msgspec.Struct, forbid_unknown_fields=True):
    url: str
    detail: Literal["auto", "low", "high"] | None = None


class ImageUrlPart(msgspec.Struct, tag="image_url", tag_field="type", forbid_unknown_fields=True):
    image_url: ImageUrl


class AudioUrlPart(msgspec.Struct, tag="audio_url", tag_field="type", forbid_unknown_fields=True):
    """Audio by URL (vLLM's)."""

    audio_url: Url


class VideoUrlPart(msgspec.Struct, tag="video_url", tag_field="type", forbid_unknown_fields=True):
    """Video by URL (vLLM's)."""

    video_url: Url


class ClipPart(msgspec.Struct, tag="audio", tag_field="type", forbid_unknown_fields=True):
    """The media process' replacement of a part with audio; ``index`` counts all media of the body."""

    index: int


class ImagePart(msgspec.Struct, tag="image", tag_field="type", forbid_unknown_fields=True):
    index: int


class VideoPart(msgspec.Struct, tag="video", tag_field="type", forbid_unknown_fields=True):
    index: int


MediaPart = InputAudioPart | ImageUrlPart | AudioUrlPart | VideoUrlPart
"""A part with a medium, in the form that clients send."""
TakenPart = ClipPart | ImagePart | VideoPart
"""A part with a medium, in the form that the media process leaves."""


class SystemMessage(msgspec.Struct, tag="system", tag_field="role", forbid_unknown_fields=True):
    content: str | list[TextPart]
    name: str | None = None


class DeveloperMessage(msgspec.Struct, tag="developer", tag_field="role", forbid_unknown_fields=True):
    content: str | list[TextPart]
    name: str | None = None


class UserMessage(msgspec.Struct, tag="user", tag_field="role", forbid_unknown_fields=True):
    content: str | list[TextPart | MediaPart | TakenPart]
    name: str | None = None


class AudioId(msgspec.Struct):
    """A spoken answer of an earlier turn. Clients may send back a whole ``message.audio``: only the id counts."""

    id: str
    data: Any = None
    expires_at: Any = None
    transcript: Any = None


class AssistantMessage(msgspec.Struct, tag="assistant", tag_field="role", forbid_unknown_fields=True):
    content: str | list[TextPart | RefusalPart] | None = None
    name: str | None = None
    audio: AudioId | None = None
    refusal: str | None = None
    images: Annotated[Any, NoOp("Pictures of an earlier answer are not read: send them as image_url.")] = None
    parsed: Annotated[Any, NoOp("The SDK's parsed copy of the content; the content itself is read.")] = None
    annotations: Annotated[Any, NoOp("Citations of an earlier answer are not part of its text.")] = None
    tool_calls: Annotated[Any, Refused(_TOOLS, ([],))] = None
    function_call: Annotated[Any, Refused(_TOOLS)] = None


class ToolMessage(msgspec.Struct, tag="tool", tag_field="role"):
    """A tool's message, declared so that its refusal can be clear."""


class FunctionMessage(msgspec.Struct, tag="function", tag_field="role"):
    """A function's message, declared so that its refusal can be clear."""


Message = SystemMessage | DeveloperMessage | UserMessage | AssistantMessage | ToolMessage | FunctionMessage


class MediaKwargs(msgspec.Struct, forbid_unknown_fields=True):
    """vLLM's per-request options of media; here they concern videos."""

    use_audio_in_video: bool | None = None
    fps: Annotated[float, Meta(gt=0, le=240)] | None = None
    max_frames: Count | None = None


class ChatRequest(SamplingFields, forbid_unknown_fields=True, kw_only=True):
    """The body of ``POST /v1/chat/completions``."""

    messages: Annotated[list[Message], Meta(min_length=1, max_length=MAX_MESSAGES)]
    modalities: list[Literal["text", "audio"]] | None = None
    audio: AudioOutput | None = None
    max_completion_tokens: Count | None = None
    logprobs: bool = False
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    response_format: ResponseFormat | None = None

    # vLLM-Omni's, of a spoken answer
    voice: str | VoiceId | None = None
    speaker: str | None = None
    language: str | None = None
    instructions: str | None = None

    # vLLM's
    add_generation_prompt: bool | None = None
    continue_final_message: bool = False
    chat_template_kwargs: dict[str, Any] | None = None
    mm_processor_kwargs: MediaKwargs | None = None
    use_audio_in_video: bool | None = None

    store: Annotated[bool | None, NoOp(_STORED)] = None
    metadata: Annotated[dict[str, str | None] | None, NoOp(_STORED)] = None
    service_tier: Annotated[str | None, NoOp("There is only one tier.")] = None
    parallel_tool_calls: Annotated[bool | None, NoOp("Without tools there are no calls.")] = None
    prediction: Annotated[Any, NoOp("A hint for speed; the answer is the same without it.")] = None
    prompt_cache_key: Annotated[str | None, NoOp(_CACHE)] = None
    prompt_cache_options: Annotated[Any, NoOp(_CACHE)] = None
    prompt_cache_retention: Annotated[str | None, NoOp(_CACHE)] = None
    safety_identifier: Annotated[str | None, NoOp("Clients are distinguished by their API key alone.")] = None

    tools: Annotated[Any, Refused(_TOOLS, ([],))] = None
    tool_choice: Annotated[Any, Refused(_TOOLS, ("none", "auto"))] = None
    functions: Annotated[Any, Refused(_TOOLS, ([],))] = None
    function_call: Annotated[Any, Refused(_TOOLS, ("none", "auto"))] = None
    moderation: Annotated[Any, Refused("there is no moderation model.")] = None
    reasoning_effort: Annotated[Any, Refused("this model does not reason before it answers.", ("none",))] = None
    verbosity: Annotated[Any, Refused("ask for a length in the prompt.", ("medium",))] = None
    web_search_options: Annotated[Any, Refused("there is no web search.")] = None


class CompletionRequest(SamplingFields, forbid_unknown_fields=True, kw_only=True):
    """The body of ``POST /v1/completions``."""

    prompt: str | list[str | TokenId | list[TokenId]]
    max_tokens: Annotated[int, Meta(ge=0, le=2**53)] | None = None
    echo: bool = False
    logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None

    best_of: Annotated[Any, Refused("ask for n answers and choose.", (1,))] = None
    suffix: Annotated[Any, Refused("this model does not fill in the middle.", ("",))] = None
