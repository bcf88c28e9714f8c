"""A worker's device: the runtime of its platform, made once and opened before any computation.

A process opens a device once, whichever part asks first: the worker's main function before the engine is imported, a
replica inside the serving process, a test that makes an engine by itself. Replicas on other devices, or of other
platforms, may live in the same process: each has its own runtime.
"""

from __future__ import annotations

import functools
import pkgutil
import threading
from typing import TYPE_CHECKING, Any

import msgspec

from omni_actors.platforms.platform import OmniPlatform, PlatformError, default_options
from omni_actors.platforms.runtime import DeviceRuntime
from omni_actors.protocol.errors import OmniError
from omni_actors.protocol.frames import Hello

if TYPE_CHECKING:
    from omni_actors.platforms.runtime.kernels import Kernels

_OPENING = threading.Lock()


def runtime_of(hello: Hello) -> DeviceRuntime:
    """Return the worker's runtime, open: the same object for the same platform, device and options in one process.

    Raises :class:`PlatformError`, which names the platform, the device and the remedy, on each call for a device that
    cannot be opened.
    """
    options = msgspec.json.encode(hello.platform_options, order="sorted")
    with _OPENING:
        return _open(hello.platform, hello.device, options)


def kernels_of(hello: Hello) -> Kernels:
    """Return the platform's implementations of operations that depend on hardware. Imports torch."""
    return runtime_of(hello).kernels


@functools.cache  # a runtime belongs to the process and lives as long, as the device does
def _open(platform_class: str, device: str, encoded: bytes) -> DeviceRuntime:
    platform: type[OmniPlatform] = pkgutil.resolve_name(platform_class)
    options: dict[str, Any] = {**default_options(platform), **msgspec.json.decode(encoded)}
    try:
        runtime: DeviceRuntime = pkgutil.resolve_name(platform.runtime)(device, options)
        runtime.open()
    except OmniError as error:
        raise PlatformError(f"platform '{platform.name}' cannot open '{device}': {error.info.message}") from error
    except Exception as error:
        raise PlatformError(
            f"platform '{platform.name}' cannot open '{device}': {type(error).__name__}: {error} "
            f"(`python -m omni_actors doctor --platform {platform.name} --deep` opens the device by itself)"
        ) from error
    return runtime
