"""``/v1/models``, ``/v1/audio/models`` and ``/v1/audio/voices``: the served models and voices by name."""

from __future__ import annotations

from typing import Any

import msgspec

from omni_actors.entrypoints.http import Call, Reply
from omni_actors.entrypoints.openai.images.encoding import CONTENT_TYPES
from omni_actors.entrypoints.openai.images.facts import TASKS, picture_facts
from omni_actors.entrypoints.services import Services


async def list_models(services: Services, call: Call) -> Reply:
    return Reply(msgspec.json.encode({"object": "list", "data": [_card(services, it) for it in services.model_names]}))


async def one_model(services: Services, call: Call, name: str) -> Reply:
    return Reply(msgspec.json.encode(_card(services, services.model(name))))


async def audio_models(services: Services, call: Call) -> Reply:
    """List the models that speak, for clients that look for them on a route of their own; empty if no model speaks."""
    names = services.model_names if "speech" in services.plan.tasks else ()
    return Reply(msgspec.json.encode({"models": [{"id": it, "name": it} for it in names]}))


async def voices(services: Services, call: Call) -> Reply:
    """List the model's own voices, then the names that stand for one of them."""
    return Reply(msgspec.json.encode({"voices": _voices(services)}))


def _voices(services: Services) -> list[dict[str, str]]:
    speaks = any("audio" in task.outputs for task in services.plan.tasks.values())
    return [{"id": voice, "name": voice} for voice in services.voices.by_name] if speaks else []


def _card(services: Services, name: str) -> dict[str, Any]:
    """Return OpenAI's model object plus ``capabilities``, which OpenAI does not have."""
    plan = services.plan
    return {
        "id": name,
        "object": "model",
        "created": services.started,
        "owned_by": "omni-actors",
        "capabilities": {
            "pipeline": plan.pipeline.name,
            "tasks": {
                task.name: {"inputs": list(task.entries), "outputs": list(task.outputs)} for task in plan.tasks.values()
            },
            "voices": _voices(services),
            "task_types": list(plan.pipeline.task_types),
            "sample_rate": plan.sample_rate,
            "languages": list(plan.languages),
            **_pictures(services),
        },
    }


def _pictures(services: Services) -> dict[str, Any]:
    """Return what the model can do with pictures; nothing for a model that makes none."""
    if not set(TASKS) & services.plan.tasks.keys():
        return {}
    facts = picture_facts(services)
    return {
        "images": {
            "default_size": None if facts.size is None else "{}x{}".format(*facts.size),
            "sizes": [f"{width}x{height}" for width, height in facts.sizes],
            "multiple": facts.multiple,
            "max_pixels": facts.max_pixels,
            "max_side": facts.max_side,
            "formats": list(CONTENT_TYPES),
            "steps": facts.steps,
            "max_steps": facts.max_steps,
            "guidance_scale": facts.guidance,
            "step_batched": facts.step_batched,
            "loras": sorted({*services.adapters, *facts.loras}),
        }
    }
