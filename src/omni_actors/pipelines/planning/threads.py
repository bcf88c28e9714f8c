"""How CPU threads are shared out among the workers of one deployment."""

from __future__ import annotations

from collections.abc import Mapping

from omni_actors.pipelines.strategy import VLLM


def shared_cores(kind: str, cores: int) -> int:
    """The cores that a stage of this engine has its share of. vLLM's threads wait for one another, so that one that
    waits for a core holds up all of them: one core is left to the server, as vLLM's own server does."""
    return max(1, cores - 1) if kind == VLLM else cores


def share_threads(
    cores: int, weights: Mapping[str, float], replicas: Mapping[str, int], fixed: Mapping[str, int]
) -> dict[str, int]:
    """Threads of each replica, by stage name: at least 1, and together no more than ``cores`` unless that 1 forces it.

    Any of a pipeline's stages may be busy at the same time (one request's speech while the next one thinks), so all of
    them share; more threads than cores cost more than they bring. A stage of weight 0 gets 1 thread and takes no
    share. ``fixed`` counts are kept as they are; the rest is shared by weight, each replica counting.
    """
    free = cores - sum(count * replicas[name] for name, count in fixed.items())
    sharing = {name: weight for name, weight in weights.items() if name not in fixed and weight > 0}
    total = sum(weight * replicas[name] for name, weight in sharing.items())
    threads = {name: max(1, int(free * weight / total + 1e-9)) for name, weight in sharing.items()}
    return {name: fixed.get(name) or threads.get(name, 1) for name in weights}
