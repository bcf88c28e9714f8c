"""Checks that are the same for any plug-in, for the scripts that look at plug-ins in processes of their own: see
:mod:`omni_actors.plugins.probe`. Standard library only."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from typing import Any

from omni_actors.plugins.answering import said

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
"""Modules that open devices or take seconds: what the serving process imports of a plug-in imports none of them."""

HARMLESS = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/tty", "/dev/pts", "/dev/shm")


class Broken(Exception):
    """The plug-in must not be imported; the message is a sentence about why."""


def attempt(what: str, function: Any, *arguments: Any) -> Any:
    """Call the plug-in's function and return its result. Raises :class:`Broken` for whatever it raises, ``SystemExit``
    too."""
    try:
        return function(*arguments)
    except BaseException as error:
        raise Broken(f"it {what}: {said(error)}") from error


def check_untouched(value: str, packages: Iterable[str] = ()) -> None:
    """Raise :class:`Broken` if the plug-in has imported or opened what it must leave to workers. ``value`` is its entry
    point's: what it imports of its own is its own affair. ``packages`` are distributions beside the usual ones."""
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
