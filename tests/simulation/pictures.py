"""What has to hold of the pictures that a client got, whether its request completed or not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from omni_actors.protocol.request import Event, MediaChunk, StepProgress

from .outputs import latents_of, opened, pixels_of
from .schedule import Load
from .world import World


def check_pictures(world: World, id: str, events: Sequence[Event], load: Load) -> list[bytes]:
    """Look at each picture, preview and progress in the order in which they came. Returns the pictures by index."""
    found: dict[int, bytes] = {}
    previews: Counter[int] = Counter()
    steps: Counter[int] = Counter()
    first_seed: int | None = None
    for event in events:
        if type(event) is StepProgress:
            if event.index in found:
                world.violate(f"{id}: progress of picture {event.index} behind that picture")
            if not steps[event.index] < event.step <= event.steps == load.tokens:
                world.violate(f"{id}: step {event.step} of {event.steps} behind step {steps[event.index]}")
            steps[event.index] = event.step
            continue
        if type(event) is not MediaChunk or event.modality != "image":
            continue
        index, preview = event.meta["index"], event.meta.get("preview")
        content = opened(event.data)
        if content is None or "pieces" in event.meta:
            world.violate(f"{id}: a broken file of picture {index}")
            continue
        if index in found:
            world.violate(f"{id}: picture {index} {'is followed by a preview' if preview else 'comes twice'}")
        if load.task == "draw":
            seed = event.meta["seed"] - index
            first_seed = seed if first_seed is None else first_seed
            if seed != first_seed or seed != world.image_seeds.get(id):
                world.violate(f"{id}: picture {index} is made from seed {seed + index}")
            if content != pixels_of(latents_of(event.meta["seed"], preview or load.tokens)):
                world.violate(f"{id}: picture {index} is another one at step {preview or load.tokens}")
        if preview:
            if preview <= previews[index]:
                world.violate(f"{id}: a preview of step {preview} behind that of step {previews[index]}")
            previews[index] = preview
        else:
            found[index] = content
    return [found[index] for index in sorted(found)]
