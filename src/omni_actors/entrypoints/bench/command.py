"""The command ``bench``."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import rich.console
import rich.progress
import trio

from omni_actors.entrypoints.bench.client import Client, ShortReply
from omni_actors.entrypoints.bench.load import Level, Run, run_level
from omni_actors.entrypoints.bench.report import require_plotting, table, write_json, write_plot
from omni_actors.entrypoints.bench.statistics import aggregate
from omni_actors.entrypoints.bench.workloads import WORKLOADS, Workload, prompts_of
from omni_actors.entrypoints.commands.files import OutputFile
from omni_actors.entrypoints.commands.target import Target, target_options
from omni_actors.version import __version__


def _numbers(kind: type[float]) -> Callable[[click.Context, click.Parameter, str | None], tuple[float, ...]]:
    def parse(context: click.Context, parameter: click.Parameter, value: str | None) -> tuple[float, ...]:
        try:
            numbers = tuple(kind(part) for part in value.split(",")) if value else ()
        except ValueError:
            numbers = (0,)
        if any(not number > 0 for number in numbers):
            raise click.BadParameter(f"{value!r} is not a list of positive numbers like 1,4,16")
        return numbers

    return parse


def _json_object(context: click.Context, parameter: click.Parameter, value: str) -> dict[str, Any]:
    try:
        parsed = json.loads(value)
    except ValueError as error:
        raise click.BadParameter(f"not JSON: {error}") from None
    if not isinstance(parsed, dict):
        raise click.BadParameter("not a JSON object")
    return parsed


class _Bench(click.Command):
    """The command's class. ``bench transport`` is a command of its own without these options, because it loads no
    server."""

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        if args[:1] != ["transport"]:
            return super().make_context(info_name, args, parent, **extra)
        from omni_actors.entrypoints.bench.transport import transport_command

        return transport_command.make_context(f"{info_name} transport", args[1:], parent, **extra)


@click.command("bench", cls=_Bench, context_settings={"show_default": True, "max_content_width": 110})
@click.argument("workload", type=click.Choice(list(WORKLOADS)), default="chat")
@target_options("http://127.0.0.1:8000/v1", "Base URL of the API; without a path it is /v1.")
@click.option("--model", help="Model name to send.  [default: the first of /v1/models]")
@click.option("--api-key", envvar="OPENAI_API_KEY", help="Bearer token.  [env: OPENAI_API_KEY]", show_default=False)
@click.option(
    "--concurrency",
    callback=_numbers(int),
    help="Requests in flight at once; a list measures each value.  [default: 1]",
)
@click.option(
    "--rate",
    callback=_numbers(float),
    help="Requests started per second (Poisson arrivals); a list measures each value.",
)
@click.option("--requests", type=click.IntRange(min=1), default=16, help="Requests per load level and repeat.")
@click.option("--warmup", type=click.IntRange(min=0), default=2, help="Requests before the first level, not counted.")
@click.option(
    "--repeats", type=click.IntRange(min=1), default=3, help="Repeats of each load level; the report has the medians."
)
@click.option("--max-tokens", type=click.IntRange(min=1), default=64, help="Tokens per answer (chat workloads).")
@click.option(
    "--prompts", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="File with one prompt per line."
)
@click.option("--voice", default="alloy", help="Voice of the answers (workloads with audio).")
@click.option("--body", "extra", callback=_json_object, default="{}", help="JSON object that is merged into each body.")
@click.option("--no-usage", is_flag=True, help="Do not ask for usage; count text deltas as tokens.")
@click.option(
    "--sample-rate",
    type=click.IntRange(min=1),
    default=24000,
    help="Sample rate in Hz, if the reply does not state it.",
)
@click.option("--timeout", type=click.FloatRange(min=0, min_open=True), default=600.0, help="Seconds per request.")
@click.option("--seed", default=0, help="Seed of the arrival times.")
@click.option("--json", "json_path", type=OutputFile(), help="File to write all numbers to, as JSON.")
@click.option("--plot", type=OutputFile(), help="File to write a plot to (png, svg or pdf).")
def bench_command(
    workload: str,
    target: Target,
    model: str | None,
    api_key: str | None,
    concurrency: tuple[int, ...],
    rate: tuple[float, ...],
    requests: int,
    warmup: int,
    repeats: int,
    max_tokens: int,
    prompts: Path | None,
    voice: str,
    extra: dict[str, Any],
    no_usage: bool,
    sample_rate: int,
    timeout: float,
    seed: int,
    json_path: Path | None,
    plot: Path | None,
) -> None:
    """Load a server with OpenAI's API, and measure latency and throughput as clients see them.

    WORKLOAD is chat (streamed text), chat-audio (streamed text and speech), speech (chunked samples), speech-sse,
    images (JSON) or images-sse (with previews). --body sets more fields of each body, such as the size of images.
    "bench transport" measures the transport of payloads between workers, without a server; see its --help.

    \b
    TTFT  time to first text              E2EL      end-to-end latency
    TTFP  time to first packet of audio   RTF       E2EL per second of audio
    TPOT  time per token after the first  underrun  silence in a player that starts at the first packet
    TTFI  time to first image (a preview, in a stream)

    A reply counts only if it is complete and its usage adds up. An error event or a short stream is a failure, and any
    failure makes the exit status 1.

    \b
      omni-actors bench chat --concurrency 1,8,32 --json chat.json --plot chat.png
      omni-actors bench chat-audio --rate 0.2,0.5,1 --requests 20
      omni-actors bench images --concurrency 1,8 --body '{"size": "512x512", "num_inference_steps": 20}'
      omni-actors bench speech --url https://api.example.com/v1 --model tts-1 --no-usage
    """
    if concurrency and rate:
        raise click.UsageError("--concurrency and --rate exclude each other")
    if plot:
        try:
            require_plotting()
        except ImportError as error:
            raise click.UsageError(str(error)) from None
    try:
        lines = [line for line in prompts.read_text("utf-8").splitlines() if line.strip()] if prompts else None
    except UnicodeDecodeError:
        raise click.UsageError(f"{prompts} is not UTF-8") from None
    if lines == []:
        raise click.UsageError(f"{prompts} holds no prompt")
    levels = [Level(rate=value) for value in rate] or [Level(concurrency=value) for value in concurrency or (1,)]
    target = replace(target, base=target.base or "/v1")
    client = Client(target, {"authorization": f"Bearer {api_key}"} if api_key else {})

    async def main() -> tuple[Workload, list[dict[str, Any]]]:
        try:
            measured = WORKLOADS[workload](
                model=model or await _first_model(client),
                prompts=lines or prompts_of(workload),
                extra=extra,
                max_tokens=max_tokens,
                voice=voice,
                usage=not no_usage,
                sample_rate=sample_rate,
            )
            return measured, await _sweep(client, measured, levels, requests, warmup, repeats, timeout, seed)
        finally:
            await client.aclose()

    measured, results = trio.run(main)
    settings = {
        "workload": workload,
        "url": str(target),
        "model": measured.model,
        "requests": requests,
        "warmup": warmup,
        "repeats": repeats,
        "max_tokens": max_tokens,
        "prompts": list(measured.prompts),
        "extra": extra,
        "seed": seed,
        "version": __version__,
    }
    title = f"{workload} · {measured.model} · {requests} requests a level, median of {repeats}"
    click.echo(title)
    rich.console.Console().print(table(results))
    for result in results:
        for reason, count in result["errors"].items():
            click.echo(f"{result['level']}: {count} failed: {reason}", err=True)
    if json_path:
        write_json(json_path, settings, results)
    if plot:
        write_plot(plot, title, results)
    if any(result["errors"] for result in results):
        raise SystemExit(1)


async def _first_model(client: Client) -> str:
    try:
        with trio.fail_after(30):
            connection, reply = await client.open("GET", "/models")
            body = await reply.read()
            await client.done(connection)
            return str(json.loads(body)["data"][0]["id"])
    except (OSError, trio.TooSlowError, trio.BrokenResourceError, ShortReply) as error:
        raise click.ClickException(f"cannot reach {client.target}: {str(error) or 'no answer'}") from None
    except (ValueError, KeyError, IndexError, TypeError):
        raise click.ClickException(f"GET {client.target.base}/models names no model: give --model") from None


async def _sweep(
    client: Client,
    workload: Workload,
    levels: Sequence[Level],
    requests: int,
    warmup: int,
    repeats: int,
    limit_s: float,
    seed: int,
) -> list[dict[str, Any]]:
    """Run every level ``repeats`` times. Prompts continue from pass to pass, so that no pass repeats another one's."""
    results = []
    console = rich.console.Console(stderr=True)
    with rich.progress.Progress(console=console, transient=True) as progress:
        total = warmup + len(levels) * repeats * requests
        bar = progress.add_task("warm-up", total=total)

        def advance() -> None:
            progress.advance(bar)

        if warmup:
            await run_level(client, workload, Level(concurrency=1), warmup, limit_s=limit_s, progress=advance)
        first = warmup
        for level in levels:
            runs: list[Run] = []
            for repeat in range(repeats):
                progress.update(bar, description=f"{level.label} {repeat + 1}/{repeats}")
                run = await run_level(
                    client,
                    workload,
                    level,
                    requests,
                    first=first,
                    limit_s=limit_s,
                    seed=seed + repeat,
                    progress=advance,
                )
                runs.append(run)
                first += requests
            results.append(aggregate(runs))
    return results
