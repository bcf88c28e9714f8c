"""The page of limits and their defaults, made of the declarations that the server itself reads."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from tools.reference.markdown import documented, page, table

from omni_actors.entrypoints.server import Limits
from omni_actors.media.stage import STAGE as MEDIA
from omni_actors.pipelines.limits import limits_of, options_of
from omni_actors.pipelines.plan import DeploymentLimits
from omni_actors.protocol.options import Option
from omni_actors.worker.engines.oneshot.options import CODEC_OPTIONS

Declared = Mapping[str, tuple[Any, str, tuple[str, ...]]]
"""Name → default, documentation, further names."""


def make() -> str:
    """Return the page.

    Raises:
        Undocumented: A limit has no sentence about itself.
    """
    return page(
        "Limits and defaults",
        "Every queue, buffer and wait of the server has a limit. `omni-actors explain` shows the limits of a "
        "deployment and the origin of each value; [Deploy keys](deploy-keys.md) lists all other settings. A limit "
        "whose default is none does not hold until it is set, unless its meaning says otherwise.",
        "```sh\n"
        "omni-actors serve --set limits.max_queued=200 --set stages.llm.options.max_batch=16 --limit connections=512\n"
        "```",
        "## The deployment",
        "`limits.NAME` in a deploy file, or `--set limits.NAME=VALUE`:",
        _table(_fields(DeploymentLimits)),
        "## A stage that writes text",
        "These are the limits of each replica of an autoregressive stage, such as a language model, under "
        "`stages.STAGE.limits`:",
        _table(_options(limits_of("autoregressive"))),
        "And under `stages.STAGE.options`:",
        _table(_options(options_of("autoregressive"))),
        "## A one-shot stage",
        "These are the limits of each replica of a stage that computes an output in one go, such as a recogniser, an "
        "acoustic model or a vocoder, under `stages.STAGE.limits`:",
        _table(_options(limits_of("generation"))),
        "## A stage that makes pictures",
        "These are the limits of each replica of a diffusion stage, under `stages.STAGE.limits`:",
        _table(_options(limits_of("diffusion"))),
        "And under `stages.STAGE.options`:",
        _table(_options(options_of("diffusion"))),
        "## A codec",
        "These are the options of each replica of a stage that makes sound of codec frames piece by piece (`code2wav` "
        "of Qwen3-Omni, `codec` of Qwen3-TTS), under `stages.STAGE.options`; see "
        "[Streaming speech](../streaming-speech.md):",
        _table(_options(CODEC_OPTIONS)),
        "## The media process",
        "One process decodes the media that clients send, and encodes the audio that they get. Its options stand under "
        "`stages.media.options`:",
        _table(_options(MEDIA.options)),
        "## Connections",
        "`omni-actors serve --limit NAME=VALUE` sets these limits of the HTTP server:",
        _table(_fields(Limits)),
    )


def shown(name: str, value: Any) -> str:
    """Return a default in words, with its unit."""
    if value is None or value == ():
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value)) or "none"
    if isinstance(value, dict | str):
        return f"`{value}`" if value else "none"
    if name.endswith("_bytes") and value:
        return f"{value >> 20} MiB" if value >= 1 << 20 else f"{value >> 10} KiB"
    if name.endswith("_s"):
        return f"{value:g} s"
    return f"{value:,}" if isinstance(value, int) else f"{value:g}"


def option_rows(options: Mapping[str, Option], prefix: str = "") -> list[tuple[str, str, str]]:
    """Return the cells of a table of options: name, default and meaning."""
    return _rows(_options(options), prefix)


def _options(options: Mapping[str, Option]) -> Declared:
    return {name: (it.default, it.doc, it.aliases) for name, it in options.items()}


def _fields(kind: type) -> Declared:
    return {it.name: (it.default, it.metadata["doc"], ()) for it in dataclasses.fields(kind)}


def _rows(declared: Declared, prefix: str = "") -> list[tuple[str, str, str]]:
    rows = []
    for name, (default, doc, aliases) in declared.items():
        also = f" vLLM's name `{'`, `'.join(aliases)}` is accepted too." if aliases else ""
        rows.append((f"`{prefix}{name}`", shown(name, default), documented(name, doc) + also))
    return rows


def _table(declared: Declared) -> str:
    return table(("name", "default", "meaning"), _rows(declared))
