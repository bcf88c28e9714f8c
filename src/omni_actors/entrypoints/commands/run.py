"""The command ``run``."""

from __future__ import annotations

import json
import re
import sys
import time
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click
import msgspec
import trio
from rich.console import Console

from omni_actors.entrypoints.commands.deployment import (
    LOG_LEVELS,
    Deployment,
    deployment_options,
    offline_option,
    ready_plan,
)
from omni_actors.entrypoints.commands.files import OutputFile
from omni_actors.entrypoints.commands.invocation import Invocation, build_request, clip_rate, keeps_alpha
from omni_actors.entrypoints.commands.steps_bar import steps_bar
from omni_actors.media.questions import How
from omni_actors.pipelines.plan import Plan
from omni_actors.pipelines.subgraph import restricted, subgraph
from omni_actors.protocol.errors import invalid_request
from omni_actors.protocol.request import Completed, MediaChunk, MediaRef, Request, StepProgress, TextDelta
from omni_actors.telemetry import logs

_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)

_PICTURES = {".png": "png", ".webp": "webp", ".jpg": "jpeg", ".jpeg": "jpeg"}
"""Suffix → format of a picture's file."""


@dataclass(slots=True)
class Outcome:
    """The result of a request. Times are seconds since the request was sent."""

    started: float = field(default_factory=time.monotonic)
    text: list[str] = field(default_factory=list)
    finish_reason: str | None = None
    audio_file: str | None = None
    audio_s: float = 0.0
    images: list[dict[str, Any]] = field(default_factory=list)
    first_text_s: float | None = None
    first_audio_s: float | None = None
    total_s: float = 0.0
    usage: dict[str, Any] = field(default_factory=dict)

    def since(self) -> float:
        return round(time.monotonic() - self.started, 4)

    def as_builtins(self) -> dict[str, Any]:
        found = {name: getattr(self, name) for name in self.__slots__ if name not in ("started", "text")}
        return {"text": "".join(self.text), **found}


def _size(context: click.Context, parameter: click.Parameter, value: str | None) -> tuple[int, int] | None:
    if value is None:
        return None
    found = re.fullmatch(r"([0-9]{1,6})x([0-9]{1,6})", value)
    if found is None:
        raise click.BadParameter(f"{value!r} is not WIDTHxHEIGHT, such as 512x768")
    return int(found[1]), int(found[2])


@click.command("run", context_settings={"show_default": True})
@click.argument("prompt", required=False)
@click.option("--model", help="Pipeline, folder or public name of the model.  [default: the demo]", show_default=False)
@click.option("--image", "images", type=_FILE, multiple=True, help="Image for the prompt, or to edit. Repeatable.")
@click.option("--mask", type=_FILE, help="Image whose transparent pixels are the part of --image to be edited.")
@click.option("--video", "videos", type=_FILE, multiple=True, help="Video for the prompt. Repeatable.")
@click.option("--use-audio-in-video", is_flag=True, help="Use the sound of the videos too.")
@click.option(
    "--audio",
    type=_FILE,
    help="Audio for the prompt, in any format. For the task speech, a clip of the voice to speak with.",
)
@click.option(
    "--task",
    help="Task: chat, completion, speech, transcription, image, …  [default: the first that fits the input]",
)
@click.option(
    "--modalities",
    help="Modalities of the answer: text, audio, or text,audio.  [default: text, if the task gives text]",
)
@click.option(
    "--output",
    "-o",
    type=OutputFile(),
    help="Audio or image file to write; its suffix names the format. Several images are numbered.",
)
@click.option("-n", "n", type=click.IntRange(1, 64), help="How many images to make.  [default: 1]", show_default=False)
@click.option("--size", callback=_size, metavar="WIDTHxHEIGHT", help="Size of the image in pixels.")
@click.option("--steps", type=click.IntRange(min=1), help="Denoising steps of the image.")
@click.option("--guidance", type=click.FloatRange(0.0, 1000.0), help="Guidance scale of the image.")
@click.option("--negative-prompt", help="What the image is not to show.")
@click.option("--system", help="System message.")
@click.option("--voice", help="Voice of the answer.")
@click.option("--speed", type=click.FloatRange(0.25, 4.0), help="Speed of the spoken answer; 1 is normal.")
@click.option("--language", help="Language of the speech: a code (ISO 639) or an English name.")
@click.option("--instructions", help="How to speak, or a description of the voice.")
@click.option("--max-tokens", type=click.IntRange(min=1), help="Most tokens of the answer.")
@click.option(
    "--temperature", type=click.FloatRange(0.0, 2.0), help="Sampling temperature; 0 takes the likeliest token."
)
@click.option("--seed", type=int, help="The same seed gives the same answer.")
@click.option(
    "--params",
    default="{}",
    metavar="JSON",
    help="Parameter sections of the request, for tasks that have no options here.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object at the end, with text, usage and times.")
@click.option(
    "--log-level", type=click.Choice(LOG_LEVELS, case_sensitive=False), default="warning", help="Level of the log."
)
@offline_option
@deployment_options
def run(
    deployment: Deployment,
    prompt: str | None,
    images: tuple[Path, ...],
    mask: Path | None,
    videos: tuple[Path, ...],
    audio: Path | None,
    modalities: str | None,
    output: Path | None,
    params: str,
    as_json: bool,
    log_level: str,
    **others: Any,
) -> None:
    """Run one request, without a server, and print or write what comes back.

    Only the stages that the request needs are started.

    PROMPT is the text to answer, to speak or to draw; '-' reads the text from standard input. Text is printed as it
    comes; audio goes to a file, 'answer.wav' by default, and an image to 'image.png'.

    \b
    omni-actors run "What is the capital of France?"
    omni-actors run "What is the capital of France?" --modalities text,audio --output paris.mp3
    omni-actors run --audio question.wav
    omni-actors run --model ./Qwen2.5-Omni-3B "What happens here?" --image cat.jpg --video street.mp4
    omni-actors run --audio meeting.mp3 --task transcription
    omni-actors run "Good morning." --task speech --output morning.flac
    omni-actors run "a seven" --task image -o seven.png
    omni-actors run --model ./SmolLM2-135M-Instruct "Hello" --max-tokens 40 --json
    """
    logs.configure(log_level)
    invocation = Invocation(
        prompt=sys.stdin.read() if prompt == "-" else prompt,
        images=len(images),
        videos=len(videos),
        audio=audio is not None,
        mask=mask is not None,
        format=_PICTURES.get(output.suffix.lower(), "png") if output is not None else "png",
        modalities=tuple(part.strip() for part in modalities.split(",")) if modalities else (),
        params=_sections(params),
        **others,
    )
    plan = ready_plan(deployment)
    request = build_request(plan, invocation)
    target = _target(output, request)
    plan = restricted(plan, subgraph(plan, request.task, request.inputs, request.outputs))
    files = (*images, *([mask] if mask is not None else []), *videos, *([audio] if audio is not None else []))
    outcome = trio.run(_answer, plan, invocation, files, target, not as_json, log_level.upper())
    if as_json:
        click.echo(json.dumps(outcome.as_builtins()))
    elif outcome.audio_file:
        click.echo(f"{outcome.audio_file}: {outcome.audio_s:.2f} s of audio", err=True)
    else:
        for image in outcome.images:
            click.echo(f"{image['file']}: {image['width']}x{image['height']}, seed {image['seed']}", err=True)


def _target(output: Path | None, request: Request) -> Path:
    """Return the file to write. Raises 400 for a file that nothing would be written to, or not in its format."""
    if output is None:
        return Path("image.png" if "image" in request.outputs else "answer.wav")
    if not {"audio", "image"} & set(request.outputs):
        raise invalid_request("--output has no effect: this request answers in text only.", "modalities")
    if "image" in request.outputs and output.suffix.lower() not in _PICTURES:
        raise invalid_request(f"--output: images are {', '.join(_PICTURES)} files; not '{output.name}'.", "output")
    return output


async def _answer(
    plan: Plan, invocation: Invocation, files: tuple[Path, ...], target: Path, show: bool, log_level: str
) -> Outcome:
    from omni_actors import open_omni

    console = Console(stderr=True)
    with console.status(f"starting {plan.served_model_name}") as status:
        async with open_omni(plan, log_level=log_level) as omni:
            media: list[MediaRef] = []
            usual = How(
                sound=invocation.use_audio_in_video,
                rate=clip_rate(plan, invocation),
                alpha=keeps_alpha(plan, invocation),
            )
            for place, (file, modality) in enumerate(zip(files, invocation.media, strict=True)):
                status.update(f"decoding {file}")
                data = await trio.Path(file).read_bytes()
                masks = invocation.mask and place == invocation.images
                how = How(mask_of=(media[0].width, media[0].height)) if masks else usual
                ref = await omni.media.decode(data, modality=modality, filename=file.name, how=how, param=file.name)
                media.append(ref)
            status.stop()
            return await _receive(omni, build_request(plan, invocation, tuple(media)), target, show)


async def _receive(omni: Any, request: Request, target: Path, show: bool) -> Outcome:
    outcome = Outcome()
    encoded: list[bytes] = []
    pictures: dict[int, MediaChunk] = {}
    async with AsyncExitStack() as stack:
        bar = stack.enter_context(steps_bar(request, show))
        stream = await stack.enter_async_context(omni.open(request))
        encoder: Any = None
        async for event in stream:
            if isinstance(event, TextDelta):
                outcome.first_text_s = outcome.first_text_s or outcome.since()
                outcome.text.append(event.text)
                outcome.finish_reason = event.finish_reason or outcome.finish_reason
                if show:
                    click.echo(event.text, nl=False)
            elif isinstance(event, StepProgress):
                bar.done(event)
            elif isinstance(event, MediaChunk) and event.modality == "image":
                if not event.meta.get("preview"):
                    pictures[event.meta["index"]] = event
            elif isinstance(event, MediaChunk):
                rate, channels = event.meta["sample_rate"], event.meta["channels"]
                if encoder is None:
                    outcome.first_audio_s = outcome.since()
                    encoder = await stack.enter_async_context(_encoder(omni, target, rate, channels))
                outcome.audio_s += len(event.data) / (2 * channels * rate)
                encoded.append(await encoder.feed(event.data))
            elif isinstance(event, Completed):
                outcome.usage = msgspec.to_builtins(event.usage)
        if show and outcome.text:
            click.echo()
        if encoder is not None:
            encoded.append(await encoder.finish())
        outcome.total_s = outcome.since()
    if encoded:
        # Written when the request is complete: the file is whole or absent.
        await trio.Path(target).write_bytes(b"".join(encoded))
        outcome.audio_file = str(target)
    for index, picture in sorted(pictures.items()):
        file = target if len(pictures) == 1 else target.with_stem(f"{target.stem}-{index}")
        await trio.Path(file).write_bytes(picture.data)
        meta = picture.meta
        outcome.images.append({"file": str(file), **{name: meta[name] for name in ("width", "height", "seed")}})
    return outcome


def _encoder(omni: Any, target: Path, rate: int, channels: int) -> Any:
    return omni.media.encoder(target.suffix.lstrip(".").lower() or "wav", rate, channels, streaming=False)


def _sections(source: str) -> dict[str, Any]:
    try:
        sections = json.loads(source)
    except ValueError as error:
        raise click.UsageError(f"--params is no JSON: {error}") from None
    if not isinstance(sections, dict):
        raise click.UsageError("--params takes a JSON object: section name → its fields")
    return sections
