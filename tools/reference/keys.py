"""The page of the deploy file's keys, made of the schema that reads deploy files."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from tools.reference.limits import option_rows
from tools.reference.markdown import documented, page, table

from omni_actors.media.stage import STAGE as MEDIA
from omni_actors.pipelines.declaration import Pipeline, Stage
from omni_actors.pipelines.deploy.schema import Group, Leaf, settings_schema
from omni_actors.pipelines.limits import options_of, with_engine_options
from omni_actors.pipelines.registry import Registry
from omni_actors.platforms.cpu import CpuPlatform
from omni_actors.platforms.platform import OmniPlatform, platform_options
from omni_actors.platforms.probe import BUILTINS
from omni_actors.platforms.select import load
from omni_actors.protocol.options import Option
from omni_actors.worker.engines.oneshot.options import CODEC_OPTIONS

OF_TESTS = {"stub", "stub-voice"}
"""Pipelines that exist for tests and examples."""


def pipelines() -> list[Pipeline]:
    """Return the pipelines of this package, with the options that their stages have by their engines."""
    registry = Registry.installed([])
    found = [registry.load(name) for name in registry.targets if name not in OF_TESTS]
    return [replace(it, stages=tuple(map(with_engine_options, it.stages))) for it in found]


def platforms() -> list[OmniPlatform]:
    """Return the platforms of this package."""
    return [CpuPlatform(), *map(load, BUILTINS.values())]


def make() -> str:
    """Return the page.

    Raises:
        Undocumented: A key has no sentence about itself.
    """
    model = next(it for it in pipelines() if it.name == "causal-lm")
    demo = next(it for it in pipelines() if it.name == "omni-demo")
    schema = settings_schema(model, platforms(), MEDIA)
    (stage,) = (it.name for it in model.stages)
    edges = settings_schema(demo, [], None).keys["edges"]
    assert isinstance(edges, Group)
    return page(
        "Deploy keys",
        "These are the keys of a deploy file (`--deploy FILE`), and of `--set KEY=VALUE`, which overrules the file. "
        "Unknown keys are refused. Which keys a deployment has depends on its pipeline: `omni-actors explain MODEL "
        "--keys` lists exactly those. [Deploying](../deploying.md) has an example.",
        "## The deployment",
        _table(_leaves(schema, deep=False)),
        "`limits.NAME` are the [limits of the deployment](limits.md#the-deployment).",
        "## A stage",
        "These keys stand under `stages.STAGE`. `stages.media` is the media process; it has no `model`.",
        _table(_leaves(_below(schema, "stages", stage), deep=False)),
        "`limits.NAME` are the stage's [limits](limits.md#a-stage-that-writes-text), and `options.NAME` its options.",
        "### strategy",
        "These are the [parallel degrees](../parallelism.md) of each replica.",
        _table(_leaves(_below(schema, "stages", stage, "strategy")), "strategy."),
        "### sampling",
        "These are the sampling parameters of requests that name none, for stages that sample.",
        _table(_leaves(_below(schema, "stages", stage, "sampling")), "sampling."),
        "### prefill",
        "A stage that can be split takes these keys under `prefill` too, for a "
        "[pool of workers for its prompts](../disaggregation.md): "
        + ", ".join(f"`prefill.{name}`" for name in _below(schema, "stages", stage, "prefill").keys)
        + ".",
        "## Options of vLLM's engine",
        "A stage that [vLLM computes](../vllm.md) has these options under `stages.STAGE.options`.",
        table(("name", "default", "meaning"), option_rows(options_of("vllm"))),
        "## Options of models",
        "Stages have these options under `stages.STAGE.options`, beside those of [their engine](limits.md) or codec. "
        "An option of the engine is listed where the model has another default.",
        *_families(),
        "## An edge",
        "These keys stand under `edges.STAGE.PORT`, for the stage and port where the edge ends.",
        _table(_leaves(next(_edges(edges)))),
        "An edge `edges.STAGE.kv` from a prefill pool takes `connector` alone.",
        "## Platforms",
        "A platform takes its options under its own name. [Platforms](../platforms/index.md) has a page for each.",
        table(
            ("name", "default", "meaning"),
            [row for it in platforms() for row in option_rows(platform_options(it), f"platforms.{it.name}.")],
        ),
    )


def _families() -> Iterator[str]:
    for pipeline in pipelines():
        rows = [row for stage in pipeline.stages for row in option_rows(_own(stage), f"{stage.name}: ")]
        if rows:
            yield f"### {pipeline.name}"
            named = [(*row[0].strip("`").split(": "), *row[1:]) for row in rows]
            yield table(
                ("stage", "name", "default", "meaning"),
                [(f"`{stage}`", f"`{it}`", *rest) for stage, it, *rest in named],
            )


def _own(stage: Stage) -> dict[str, Option]:
    """Return the options that a stage has beside its engine's and a codec's, and those with another default."""
    usual = {**options_of(stage.engine), **CODEC_OPTIONS}
    for kind in stage.runs:
        usual |= options_of(kind)
    return {name: it for name, it in stage.options.items() if name not in usual or usual[name].default != it.default}


def _below(group: Group, *path: str) -> Group:
    for key in path:
        below = group.keys[key]
        assert isinstance(below, Group), key
        group = below
    return group


def _edges(edges: Group) -> Iterator[Group]:
    for ports in edges.keys.values():
        assert isinstance(ports, Group)
        for edge in ports.keys.values():
            if isinstance(edge, Group) and "mode" in edge.keys:
                yield edge


def _leaves(group: Group, *, deep: bool = True) -> list[tuple[str, Leaf]]:
    found = [(name, it) for name, it in group.keys.items() if isinstance(it, Leaf)]
    assert not deep or len(found) == len(group.keys)
    return found


def _table(leaves: list[tuple[str, Leaf]], prefix: str = "") -> str:
    return table(("key", "meaning"), [(f"`{prefix}{name}`", documented(name, it.doc)) for name, it in leaves])
