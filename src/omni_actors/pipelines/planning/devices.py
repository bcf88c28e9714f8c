"""The choice of devices for a stage's replicas and their ranks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from omni_actors.pipelines.deploy.settings import Settings
from omni_actors.pipelines.plan import Origin, PlanError
from omni_actors.pipelines.planning.parallel import widest
from omni_actors.pipelines.strategy import Strategy
from omni_actors.platforms.platform import OmniPlatform

RANKS_ENVIRONMENT = {
    "GLOO_SOCKET_IFNAME": "lo",
    "NCCL_SOCKET_IFNAME": "lo",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # otherwise vLLM wants a NUMA node for each rank
}
"""Environment of the ranks of a replica. All ranks run on one machine, so they meet on an interface that only this
machine reaches."""


def devices_of(
    at: str,
    platform: OmniPlatform,
    strategy: Strategy,
    replicas: int,
    settings: Settings,
    usual: tuple[str, ...],
) -> tuple[str, ...]:
    """Choose a stage's devices: rank ``k`` of replica ``r`` has the ``r * ranks + k``-th device, counted around.

    Args:
        at: The stage's path in settings.
        platform: The stage's platform.
        strategy: The parallel degrees.
        replicas: The number of replicas.
        settings: The deployment's settings.
        usual: The devices when nobody sets them.

    Raises:
        PlanError: The platform does not have a device, or the devices are fewer than the ranks.
    """
    one, many = settings.given.get(f"{at}.device"), settings.given.get(f"{at}.devices")
    if one and many and one.origin.kind == many.origin.kind:
        raise PlanError(f"{many.origin}: '{at}' has both device ({one.origin}) and devices; give one")
    # The command line overrules the deploy file, with either of the two keys.
    setting = next((s for s in (one, many) if s and s.origin.kind == "command line"), one or many)
    if setting is None:
        settings.provenance[f"{at}.devices"] = Origin("platform", platform.name)
        if strategy.ranks > 1 and not platform.shared:
            usual = tuple(device.name for device in platform.devices())
        return _spread(usual, strategy, replicas, platform, at, settings)
    settings.provenance[f"{at}.devices"] = setting.origin
    devices: tuple[str, ...] = (setting.value,) if setting is one else setting.value
    for device in devices:
        try:
            platform.check_device(device)
        except Exception as error:
            raise PlanError(f"{setting.origin}: '{at}': {error}") from None
    return _spread(devices, strategy, replicas, platform, at, settings)


def _spread(
    names: tuple[str, ...], strategy: Strategy, replicas: int, platform: OmniPlatform, at: str, settings: Settings
) -> tuple[str, ...]:
    """Return the devices of the ranks. Ranks of accelerators have a device each; ranks of a processor share its
    cores."""
    ranks = strategy.ranks
    if ranks == 1:
        return names
    asked = settings.where(f"{at}.strategy.{widest(strategy)[0]}")
    if platform.shared:
        if ranks > platform.cores():
            raise PlanError(
                f"{asked}: {ranks} ranks need {ranks} cores; platform '{platform.name}' has {platform.cores()} for them"
            )
        return names
    if twice := [name for name in names if names.count(name) > 1]:
        where = settings.where(f"{at}.devices")
        raise PlanError(f"{where}: '{at}': '{twice[0]}' is named twice; each rank has a device of its own")
    if len(names) < ranks * replicas:
        each = "" if replicas == 1 else f" ({ranks} for each of {replicas} replicas)"
        raise PlanError(
            f"{asked}: {ranks * replicas} ranks{each} need a device each, and '{at}' has {len(names)}: "
            f"{', '.join(names)}"
        )
    return names[: ranks * replicas]


def environments_of(
    devices: tuple[str, ...], ranks: int, visibility: tuple[str, ...], make: Callable[[str], Mapping[str, str]]
) -> tuple[Mapping[str, str], ...]:
    """Make the environment of the process on each device.

    Args:
        devices: The stage's devices.
        ranks: The ranks of a replica.
        visibility: The variables that hide devices, for an engine that starts its ranks itself: the first process of
            each replica then sees all devices of the replica. Empty for other engines.
        make: A function from a device to its environment.

    Returns:
        One environment per device.
    """
    found: list[Mapping[str, str]] = [make(device) for device in devices]
    if ranks == 1 or not visibility:
        return tuple(found)
    for first in range(0, len(found), ranks):
        own: list[Mapping[str, Any]] = found[first : first + ranks]
        names = [name for name in visibility if all(name in it for it in own)]
        # A value that all ranks share names the kind of the devices, not single devices.
        shown = {name: ",".join(dict.fromkeys(it[name] for it in own)) for name in names}
        found[first] = {**found[first], **shown}
    return tuple(found)
