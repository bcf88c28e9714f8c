"""Checks that are the same for plug-ins of any kind, for the scripts that examine plug-ins in subprocess probes.

Standard library only. See :mod:`omni_actors.plugins.probe`.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Mapping
from typing import Any

from omni_actors.plugins.probe_child import said

HEAVY = (
    "torch",
    "torch_npu",
    "torch_musa",
    "torchada",
    "intel_extension_for_pytorch",
    "tensorflow",
    "jax",
    "cupy",
    "numba",
    "transformers",
    "diffusers",
    "vllm",
    "onnxruntime",
    "pynvml",
    "amdsmi",
    "pymtml",
    "acl",
    "dpctl",
)
"""Modules that open devices or take seconds to import. The part of a plug-in that the serving process imports must
import none of them."""

HARMLESS = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/tty", "/dev/pts", "/dev/shm")


class Broken(Exception):
    """A fault for which a plug-in must not be imported; the message is a sentence."""


def attempt(what: str, function: Any, *arguments: Any) -> Any:
    """Call a function of the plug-in and return its result. Raises :class:`Broken` for any exception, ``SystemExit``
    too."""
    try:
        return function(*arguments)
    except BaseException as error:
        raise Broken(f"it {what}: {said(error)}") from error


def check_options(whose: str, options: Any) -> None:
    """Raise :class:`Broken` unless ``options`` maps names to options that a worker can be told.

    Args:
        whose: The beginning of the message, such as ``its`` or ``stage 'talker': its``.
        options: What the plug-in states.
    """
    from omni_actors.protocol.options import Option

    if not isinstance(options, Mapping) or not all(isinstance(name, str) for name in options):
        raise Broken(f"{whose} options are {_kind(options)}, not a dict of names to Option")
    for name, option in options.items():
        if not isinstance(option, Option):
            raise Broken(f"{whose} option '{name}' is {_kind(option)}, not an Option")
        if not isinstance(option.doc, str):
            raise Broken(f"{whose} option '{name}' has {_kind(option.doc)} as its documentation, not a text")
        for field in ("choices", "aliases"):
            found = getattr(option, field)
            if not isinstance(found, tuple) or not all(isinstance(text, str) for text in found):
                raise Broken(f"{whose} option '{name}' has {field} that are no tuple of texts: {found!r}")
    defaults = {name: option.default for name, option in options.items()}
    attempt(f"has options that no worker can be told ({whose.removesuffix(' its')})", json.dumps, defaults)


def _kind(value: Any) -> str:
    return "None" if value is None else type(value).__name__


def check_untouched(value: str, packages: Iterable[str] = ()) -> None:
    """Raise :class:`Broken` if the plug-in has imported a module or opened a device that only workers may.

    Args:
        value: The plug-in's entry point; the plug-in's own package is not counted.
        packages: Distributions whose import is forbidden, beside :data:`HEAVY`.
    """
    own = value.partition(":")[0].partition(".")[0]
    wanted = {*HEAVY, *(package.replace("-", "_") for package in packages)} - {own}
    if heavy := sorted(wanted & sys.modules.keys()):
        raise Broken(f"it imports {', '.join(heavy)} in the serving process, which only its workers may")
    opened = []
    for descriptor in os.listdir("/proc/self/fd"):
        try:
            opened.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        except OSError:  # the directory's own descriptor is closed already
            continue
    if devices := sorted({it for it in opened if it.startswith("/dev/") and not it.startswith(HARMLESS)}):
        raise Broken(f"it opens {', '.join(devices)} in the serving process, which only its workers may")
