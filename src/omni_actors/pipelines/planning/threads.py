"""The sharing of CPU threads among the workers of a deployment."""

from __future__ import annotations

from collections.abc import Mapping

from omni_actors.pipelines.strategy import VLLM


def shared_cores(kind: str, cores: int) -> int:
    """Return the number of cores that a stage with this engine shares. vLLM's threads wait for one another, so that a
    thread without a core holds up all of them: one core is left to the server, as in vLLM's own server."""
    return max(1, cores - 1) if kind == VLLM else cores


def share_threads(
    cores: int, weights: Mapping[str, float], replicas: Mapping[str, int], fixed: Mapping[str, int]
) -> dict[str, int]:
    """Return the threads of each replica, by stage name.

    Any stages may be busy at the same time (one request's speech while the next request thinks), so all stages share
    the cores; more threads than cores cost more than they bring. Each replica gets at least 1 thread. Together the
    replicas get no more than ``cores`` unless that minimum forces it.

    Args:
        cores: The cores to share.
        weights: Each stage's share. A stage of weight 0 gets 1 thread and takes no share.
        replicas: Each stage's number of processes, all of which count.
        fixed: Counts that are kept as they are.

    Example:
        >>> share_threads(8, weights={"llm": 3.0, "codec": 1.0}, replicas={"llm": 1, "codec": 1}, fixed={})
        {'llm': 6, 'codec': 2}
    """
    free = cores - sum(count * replicas[name] for name, count in fixed.items())
    sharing = {name: weight for name, weight in weights.items() if name not in fixed and weight > 0}
    total = sum(weight * replicas[name] for name, weight in sharing.items())
    threads = {name: max(1, int(free * weight / total + 1e-9)) for name, weight in sharing.items()}
    return {name: fixed.get(name) or threads.get(name, 1) for name in weights}
