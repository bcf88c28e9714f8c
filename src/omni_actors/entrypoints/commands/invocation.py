"""Conversion of command-line options to a :class:`Request`: task, modalities and parameter sections."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import msgspec

from omni_actors.pipelines.declaration import Task
from omni_actors.pipelines.plan import Plan
from omni_actors.pipelines.subgraph import subgraph
from omni_actors.protocol.errors import OmniError, invalid_request
from omni_actors.protocol.params import SECTIONS, ImageGeneration, Prompt, Sampling, Speech, Transcription
from omni_actors.protocol.request import MediaRef, Request

SPEECH = "speech"
"""The task that speaks a text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Invocation:
    """One request as typed. ``None`` stands for an option that was not given; ``params`` are sections in plain
    builtins.

    The request's media are its images, the mask of an edit, its videos and its audio, in this order.
    ``use_audio_in_video`` makes the videos' sound part of the prompt. ``n`` to ``negative_prompt`` are of pictures to
    make; ``format`` is the format of their files.
    """

    prompt: str | None = None
    images: int = 0
    videos: int = 0
    audio: bool = False
    use_audio_in_video: bool = False
    task: str | None = None
    modalities: tuple[str, ...] = ()
    system: str | None = None
    voice: str | None = None
    speed: float | None = None
    language: str | None = None
    instructions: str | None = None
    max_tokens: int | None = None
    temperature: float | None = None
    seed: int | None = None
    mask: bool = False
    n: int | None = None
    size: tuple[int, int] | None = None
    steps: int | None = None
    guidance: float | None = None
    negative_prompt: str | None = None
    format: str = "png"
    params: dict[str, Any] = field(default_factory=dict)

    @property
    def media(self) -> tuple[str, ...]:
        """The modalities of the media, in order."""
        return ("image",) * (self.images + self.mask) + ("video",) * self.videos + ("audio",) * self.audio

    @property
    def inputs(self) -> tuple[str, ...]:
        return (("text",) if self.prompt is not None else ()) + tuple(dict.fromkeys(self.media))


def choose_task(plan: Plan, it: Invocation) -> Task:
    """Return the named task, or else the first task with these inputs and outputs."""
    if it.task is not None:
        if it.task not in plan.tasks:
            raise invalid_request(f"There is no task '{it.task}'; there are: {', '.join(plan.tasks)}.", "task")
        return plan.tasks[it.task]
    for task in plan.tasks.values():
        if set(it.inputs) <= task.entries.keys() and set(it.modalities) <= task.outputs.keys():
            return task
    wanted = ", ".join(it.modalities) or "anything"
    raise invalid_request(f"No task of '{plan.name}' makes {wanted} of {', '.join(it.inputs)}.", "modalities")


def build_request(plan: Plan, it: Invocation, media: tuple[MediaRef, ...] = ()) -> Request:
    """Build the request. Raises :class:`OmniError` for anything outside of the plan, and for an option that nothing
    would read."""
    if not it.inputs and not it.params:
        raise invalid_request("Give a prompt or a file.", "prompt")
    task = choose_task(plan, it)
    inputs = it.inputs or tuple(task.entries)[:1]
    outputs = it.modalities or (("text",) if "text" in task.outputs else tuple(task.outputs))
    sections = set(subgraph(plan, task.name, inputs, outputs).sections)
    if says := task.name == SPEECH:
        sections -= {"prompt", "sampling"}  # the text is to be said, not to be answered
    _check_read(it, plan, task, sections)
    params: dict[str, Any] = {}
    if "prompt" in sections:
        params["prompt"] = Prompt(text=it.prompt) if task.name == "completion" else Prompt(messages=_messages(it))
        if it.use_audio_in_video:
            params["prompt"].media_kwargs = {"use_audio_in_video": True}
    if "sampling" in sections:
        params["sampling"] = Sampling(max_tokens=it.max_tokens, temperature=it.temperature, seed=it.seed)
    if "speech" in sections:
        speech = Speech(language=it.language, instructions=it.instructions, seed=it.seed or 0)
        speech.voice = it.voice or speech.voice
        speech.speed = it.speed or speech.speed
        if says:
            speech.text, speech.reference = it.prompt, it.audio
            speech.max_tokens, speech.temperature = it.max_tokens, it.temperature
        params["speech"] = speech
    if "transcription" in sections:
        # Where a stage samples an answer too, it is that answer that the option bounds.
        most = None if "sampling" in sections else it.max_tokens
        params["transcription"] = Transcription(language=it.language, max_tokens=most)
    if "image" in sections:
        params["image"] = _image(it)
    for name, given in it.params.items():
        params[name] = _section(it, name, params.get(name), given)
    return Request(task=task.name, inputs=inputs, outputs=outputs, params=params, media=media)


def _image(it: Invocation) -> ImageGeneration:
    width, height = it.size or (None, None)
    return ImageGeneration(
        prompt=it.prompt,
        negative_prompt=it.negative_prompt,
        n=it.n or 1,
        width=width,
        height=height,
        steps=it.steps,
        guidance=it.guidance,
        seed=it.seed,
        pictures=it.images,
        mask=it.mask,
        progress=True,
        format=it.format,
    )


def _section(it: Invocation, name: str, typed: Any, given: Any) -> Any:
    """Return a section of ``--params``, with priority over the other options. Raises 400 for unknown fields."""
    kind = SECTIONS.get(name)
    if kind is None:
        return given
    if not isinstance(given, dict):
        raise invalid_request(f"Section '{name}' of --params must be a JSON object.", name)
    for field_name in given.keys() - set(kind.__struct_fields__):
        raise invalid_request(f"Section '{name}' of --params has no field '{field_name}'.", f"{name}.{field_name}")
    if name == "prompt" and given.keys() & {"messages", "text", "token_ids"}:
        if it.prompt is not None or it.media or it.system is not None:
            raise invalid_request("Give the prompt once: either in --params or as an argument.", "prompt")
        typed = None
    try:
        return msgspec.convert({**msgspec.to_builtins(typed or kind()), **given}, kind)
    except msgspec.ValidationError as error:
        raise invalid_request(f"Section '{name}' of --params: {error}.", name) from None


def _messages(it: Invocation) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = []
    if it.system is not None:
        messages.append({"role": "system", "content": it.system})
    if not it.media:
        messages.append({"role": "user", "content": it.prompt or ""})
        return messages
    parts: list[dict[str, Any]] = [{"type": modality, "index": index} for index, modality in enumerate(it.media)]
    if it.prompt is not None:
        parts.append({"type": "text", "text": it.prompt})
    messages.append({"role": "user", "content": parts})
    return messages


def keeps_alpha(plan: Plan, it: Invocation) -> bool:
    """Return whether pictures keep their transparency: pictures to edit do, and pictures to look at lie on white."""
    return "image" in choose_task(plan, it).outputs


def clip_rate(plan: Plan, it: Invocation) -> int | None:
    """Return the rate in Hz to which the audio is decoded: the model's own if the voice is to be cloned."""
    return plan.sample_rate if choose_task(plan, it).name == SPEECH else None


def _check_read(it: Invocation, plan: Plan, task: Task, sections: set[str]) -> None:
    """Refuse options without effect: an option must belong to a section that a stage of this request reads, and for the
    section ``speech`` the model must honour it."""
    spoken = set(filter(plan.pipeline.honours, Speech.__struct_fields__)) if "speech" in sections else set()
    chosen = "sampling" in sections
    drawn = "image" in sections
    read = {
        "system": "prompt" in sections,
        "max_tokens": chosen or "max_tokens" in spoken or "transcription" in sections,
        "temperature": chosen or "temperature" in spoken,
        "seed": chosen or drawn or "seed" in spoken,
        **dict.fromkeys(("n", "size", "steps", "guidance", "negative_prompt"), drawn),
        "voice": "voice" in spoken,
        "speed": "speed" in spoken,
        "instructions": "instructions" in spoken,
        "language": "language" in spoken or "transcription" in sections,
    }
    if it.use_audio_in_video and not it.videos:
        raise _unread("--use-audio-in-video", task, "use_audio_in_video")
    if it.mask and not (drawn and it.images):
        raise invalid_request("--mask needs --image, and a task that edits pictures.", "mask")
    for name, is_read in read.items():
        if getattr(it, name) is not None and not is_read:
            raise _unread(f"--{name.replace('_', '-')}", task, name)
    for name in it.params:
        if name not in sections:
            raise _unread(f"section '{name}' of --params", task, name)


def _unread(what: str, task: Task, param: str) -> OmniError:
    return invalid_request(f"{what} has no effect: no stage of this '{task.name}' request reads it.", param)
