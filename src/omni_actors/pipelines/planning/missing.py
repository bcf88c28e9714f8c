"""Checks for what a plan needs and this machine lacks: weights, undamaged files, devices."""

from __future__ import annotations

from pathlib import Path

from omni_actors.pipelines.plan import Plan
from omni_actors.pipelines.weights.hub import missing_shards
from omni_actors.pipelines.weights.intact import Damage, damage_of
from omni_actors.platforms.platform import OmniPlatform
from omni_actors.platforms.select import load


def missing_weights(plan: Plan) -> list[str]:
    """Return the folders and files that stages will load and that do not exist, with the shards that a folder's index
    names."""
    wanted = dict.fromkeys(Path(stage.model) for stage in plan.stages if stage.model)
    absent = [path for path in wanted if not path.exists()]
    absent += [shard for path in wanted if path.is_dir() for shard in missing_shards(path)]
    return list(map(str, absent))


def damaged_weights(plan: Plan) -> dict[Path, list[Damage]]:
    """Return the folders that stages will load and that hold damaged files, as far as a quick check tells
    (:func:`~omni_actors.pipelines.weights.intact.damage_of`)."""
    wanted = {Path(stage.model) for stage in plan.stages if stage.model}
    outermost = sorted(path for path in wanted if not wanted.intersection(path.parents))
    looked = {path: damage_of(path) for path in outermost}
    return {path: found for path, found in looked.items() if found}


def missing_devices(plan: Plan) -> list[str]:
    """Return one sentence for each stage whose platform finds no device here, or whose device has a fault."""
    platforms = platforms_of(plan)
    detections = {name: platform.detect() for name, platform in platforms.items()}
    bad = {
        (name, device.name): device.trouble
        for name, platform in platforms.items()
        if detections[name]
        for device in platform.devices()
        if device.trouble
    }
    missing = []
    for stage in plan.stages:
        runs, found = f"stage '{stage.name}' is to run on ", detections[stage.platform]
        if not found:
            named = ", ".join(stage.devices)
            missing.append(f"{runs}{named}: platform '{stage.platform}' finds none here: {found.reason}")
        missing += [
            f"{runs}{device}, which has a fault: {bad[stage.platform, device]}"
            for device in dict.fromkeys(stage.devices)
            if (stage.platform, device) in bad
        ]
    return missing


def platforms_of(plan: Plan) -> dict[str, OmniPlatform]:
    """Return the platforms of the stages by name, newly made, so that they see the machine as it is now."""
    return {stage.platform: load(stage.platform_class) for stage in plan.stages}
