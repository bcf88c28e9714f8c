"""Stages that make pictures in workers that are killed, as by ``kill -9``, at the place that a request's id names.

Places: ``encode``, ``step K`` (K steps of a picture are done), ``decode I`` (of picture I).
"""

from __future__ import annotations

import os
import signal
from dataclasses import replace

from omni_actors.pipelines.declaration import Pipeline


def fatal_id(life: int, place: str) -> str:
    """The id of a request that ends its worker in this incarnation of the replica."""
    return f"{life}:{place}"


def meet(request_id: str, life: int, place: str) -> None:
    """Die, if it is the place for it."""
    if request_id == fatal_id(life, place):
        os.kill(os.getpid(), signal.SIGKILL)


def mortal(pipeline: Pipeline, *, engine: str | None = None, adapter: str | None = None) -> Pipeline:
    """The pipeline with another engine or adapter in its stage ``image``."""
    stages = tuple(
        replace(it, engine=engine or it.engine, adapter=adapter or it.adapter) if it.name == "image" else it
        for it in pipeline.stages
    )
    return replace(pipeline, name="mortal", stages=stages, architectures=(), checkpoints=())
