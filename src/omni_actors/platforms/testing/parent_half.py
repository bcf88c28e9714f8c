"""The checks of a platform's half in the serving process, run in a process that notices forbidden imports and opened
devices.

:mod:`omni_actors.platforms.testing.kit` runs this file as a subprocess probe.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from importlib.abc import MetaPathFinder
from importlib.util import find_spec
from pkgutil import resolve_name
from types import FrameType, ModuleType
from typing import Any

from omni_actors.platforms.inspection import HARMLESS, HEAVY
from omni_actors.platforms.platform import (
    CONTRACT,
    Detection,
    Device,
    Finding,
    OmniPlatform,
    PlatformError,
    Verdict,
    default_options,
    platform_options,
)
from omni_actors.platforms.testing.checking import Skip, expect, run

DTYPES = ("float32", "bfloat16", "float16", "float64", "float8_e4m3fn", "float8_e5m2")
SETTABLE = (bool, int, float, str, tuple, list, dict)
"""Types of values that a deploy file can write."""

LIBRARIES = ("libc.", "libm.", "libdl.", "libpthread.", "librt.")
"""Beginnings of the names of the system's shared libraries."""


@dataclass(slots=True)
class Watch(MetaPathFinder):
    """A record of actions that only workers may do: attempted imports, successful or not, and opened files of devices
    and shared libraries."""

    heavy: frozenset[str]
    imported: list[str] = field(default_factory=list)
    opened: list[str] = field(default_factory=list)

    def find_spec(self, name: str, path: Any = None, target: ModuleType | None = None) -> None:
        if name in self.heavy and not _looked_up():
            self.imported.append(name)
            raise ModuleNotFoundError(f"{name} is for workers", name=name)

    def audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open" and isinstance(arguments[0], str):
            path = arguments[0]
            if path.startswith("/dev/") and not path.startswith(HARMLESS):
                self.opened.append(path)
        elif event == "ctypes.dlopen" and isinstance(arguments[0], str):
            library = os.path.basename(arguments[0])
            if library and not library.startswith(LIBRARIES):
                self.opened.append(arguments[0])


def answer(argument: dict[str, Any]) -> dict[str, Any]:
    """Examine a platform.

    Args:
        argument: ``platform``, the class's dotted name.

    Returns:
        ``results``, and for the other halves ``usable``, ``reason``, ``devices`` (each with the environment of its
        worker) and ``dtypes``.
    """
    own = argument["platform"].partition(":")[0].partition(".")[0]
    watch = Watch(frozenset(HEAVY) - {own})
    sys.meta_path.insert(0, watch)
    sys.addaudithook(watch.audit)
    kind = resolve_name(argument["platform"])
    half = ParentHalf(kind, watch)
    results = run(half.checks())
    return {"results": results, **half.facts()}


class ParentHalf:
    """The checks of a class, one method each. ``watch`` records since before the class was imported."""

    def __init__(self, kind: Any, watch: Watch) -> None:
        self.kind = kind
        self.watch = watch

    def checks(self) -> Mapping[str, Callable[[], None]]:
        names = (
            "contract", "identity", "dtypes", "engine_names", "options", "requirements", "quantization_reasons",
            "detection", "devices", "cores", "environment", "diagnosis", "refusals", "nothing_imported",
            "nothing_opened",
        )  # fmt: skip
        return {name: partial(getattr(self, name)) for name in names}

    def facts(self) -> dict[str, Any]:
        """Return the facts by which workers are started; nothing for a platform that cannot state them."""
        try:
            platform: OmniPlatform = self.kind()
            detection = platform.detect()
            options = default_options(platform)
            devices = [
                {
                    "name": device.name,
                    "worker": platform.worker_device(device.name),
                    "environment": platform.worker_environment(device.name, 1, options),
                }
                for device in (platform.devices() if detection else ())
            ]
            return {
                "usable": bool(detection),
                "reason": detection.reason,
                "devices": devices,
                "dtypes": list(platform.dtypes),
                "default_dtype": platform.default_dtype,
                "options": options,
                "engine": platform.engines.get("autoregressive", ""),
                "transports": list(platform.transports),
            }
        except Exception as error:
            return {"usable": False, "reason": f"its first half fails: {type(error).__name__}: {error}"}

    def contract(self) -> None:
        expect(isinstance(self.kind, type) and issubclass(self.kind, OmniPlatform), "it is no class of OmniPlatform")
        ours = self.kind.__module__.partition(".")[0] == "omni_actors"
        # A built-in class states this version, whatever version a derived platform was written for.
        own = (vars(it) for it in self.kind.__mro__ if ours or it.__module__.partition(".")[0] != "omni_actors")
        stated = next((it["contract"] for it in own if "contract" in it), None)
        expect(stated is not None, f"it does not say which contract it was written for (contract = {CONTRACT})")
        expect(stated == CONTRACT, f"it was written for version {stated!r} of the contract; this is {CONTRACT}")
        self.kind()

    def identity(self) -> None:
        name = self.kind.name
        expect(isinstance(name, str) and re.fullmatch(r"[a-z][a-z0-9_-]*", name), f"its name {name!r} is no plain word")
        runtime = self.kind.runtime
        expect(_dotted(runtime), f"its runtime {runtime!r} is no dotted name (module:Class)")

    def dtypes(self) -> None:
        expect(isinstance(self.kind.dtypes, tuple) and self.kind.dtypes, "its dtypes are no tuple of names")
        unknown = [it for it in self.kind.dtypes if it not in DTYPES]
        expect(not unknown, f"its dtypes {unknown} are none of torch's: {', '.join(DTYPES)}")
        expect(
            self.kind.default_dtype in self.kind.dtypes, f"default_dtype {self.kind.default_dtype!r} is not in dtypes"
        )

    def engine_names(self) -> None:
        for needed in ("autoregressive", "generation"):
            expect(needed in self.kind.engines, f"it has no engine of kind '{needed}'")
        for kind, engine in self.kind.engines.items():
            expect(_dotted(engine), f"its engine of kind '{kind}' {engine!r} is no dotted name (module:Class)")
            expect(self.kind().engine_for(kind) == engine, f"engine_for('{kind}') is another than engines['{kind}']")

    def options(self) -> None:
        options = platform_options(self.kind)
        undocumented = sorted(name for name, option in options.items() if not option.doc)
        expect(not undocumented, f"its options {undocumented} have no documentation")
        for name, option in options.items():
            expect(name.isidentifier(), f"its option {name!r} is no name")
            expect(option.doc.strip().endswith("."), f"the documentation of its option '{name}' is no sentence")
            if option.choices:
                known = option.default in option.choices
                expect(known, f"the default {option.default!r} of its option '{name}' is none of its choices")
            if option.default is None:
                expect(option.type is not None, f"its option '{name}' is None by default and has no type")
            else:
                settable = isinstance(option.default, SETTABLE)
                expect(settable, f"no deploy file can set its option '{name}', as {option.default!r} cannot be written")

    def requirements(self) -> None:
        for name in ("visibility", "transports", "vllm_builds"):
            found = getattr(self.kind, name)
            texts = isinstance(found, tuple) and all(isinstance(it, str) for it in found)
            expect(texts and (all(found) or name == "vllm_builds"), f"{name} is no tuple of names")
        expect(isinstance(self.kind.collectives, str), "collectives is no text")
        for package, asks in self.kind.distributions.items():
            expect(isinstance(package, str) and isinstance(asks, str), "distributions are no texts")

    def quantization_reasons(self) -> None:
        for method, reason in self.kind.quantization.items():
            expect(isinstance(method, str) and isinstance(reason, str), f"quantization[{method!r}] is no text")
            expect("\n" not in reason, f"the reason against quantization '{method}' is not one line")

    def detection(self) -> None:
        first, second = self.kind().detect(), self.kind().detect()
        expect(isinstance(first, Detection), f"detect() returns {type(first).__name__}, not a Detection")
        expect(first == second, f"detect() says two things: {first.reason!r}, then {second.reason!r}")
        expect(first.reason and "\n" not in first.reason, "detect() gives no reason, or one of several lines")
        expect(first.present or not first.usable, "detect() says that what is not present can be used")

    def devices(self) -> None:
        platform = self.kind()
        if not platform.detect():
            raise Skip(platform.detect().reason)
        found = platform.devices()
        expect(isinstance(found, tuple) and found, "devices() is no tuple, or empty though detect() is true")
        expect(found == self.kind().devices(), "devices() says two things when it is asked twice")
        names = [device.name for device in found]
        expect(len(set(names)) == len(names), f"devices() has a name twice: {names}")
        for device in found:
            expect(isinstance(device, Device), f"devices() has a {type(device).__name__} among it")
            expect(isinstance(device.name, str) and device.name, "a device has no name")
            expect(device.memory is None or (type(device.memory) is int and device.memory > 0), "memory is no bytes")
            expect(isinstance(device.description, str) and isinstance(device.trouble, str), "description is no text")
            expect(device.id is None or isinstance(device.id, str), "a device's id is no text")

    def cores(self) -> None:
        cores = self.kind().cores()
        expect(type(cores) is int and cores >= 1, f"cores() is {cores!r}, not a number of at least 1")

    def environment(self) -> None:
        platform = self.kind()
        if not platform.detect():
            raise Skip(platform.detect().reason)
        before = dict(os.environ)
        options = default_options(platform)
        seen: dict[tuple[str, tuple[tuple[str, str], ...]], list[str]] = {}
        for device in platform.devices():
            found = platform.worker_environment(device.name, 2, options)
            texts = isinstance(found, dict) and all(isinstance(k, str) and isinstance(v, str) for k, v in found.items())
            expect(texts, f"worker_environment('{device.name}') is no dict of texts")
            again = platform.worker_environment(device.name, 2, options)
            expect(found == again, f"worker_environment('{device.name}') says two things when it is asked twice")
            called = platform.worker_device(device.name)
            expect(isinstance(called, str) and called, f"worker_device('{device.name}') is no name")
            seen.setdefault((called, tuple(sorted(found.items()))), []).append(device.name)
        same = [names for names in seen.values() if len(names) > 1]
        expect(not same, f"workers on {same} would see the same device: neither its name nor the environment differs")
        expect(dict(os.environ) == before, "worker_environment() changes the environment of the process that asks")

    def diagnosis(self) -> None:
        found = self.kind().diagnose()
        expect(isinstance(found, tuple) and found, "diagnose() is no tuple, or empty")
        for finding in found:
            expect(isinstance(finding, Finding), f"diagnose() has a {type(finding).__name__} among it")
            expect(isinstance(finding.verdict, Verdict), f"the verdict on '{finding.subject}' is no Verdict")
            expect(finding.subject, "a finding has no subject")
            expect(
                "\n" not in f"{finding.found}{finding.remedy}", f"the finding on '{finding.subject}' is not one line"
            )

    def refusals(self) -> None:
        platform = self.kind()
        if platform.detect():
            for device in platform.devices():
                platform.check_device(device.name)
        for what, refused in (("device", platform.check_device), ("engine of kind", platform.engine_for)):
            try:
                refused("no such thing")
            except PlatformError:
                continue
            raise AssertionError(f"a {what} that there is not is not refused by PlatformError")

    def nothing_imported(self) -> None:
        found = sorted(set(self.watch.imported))
        expect(not found, f"it tries to import {', '.join(found)} in the serving process, which only its workers may")

    def nothing_opened(self) -> None:
        found = sorted(set(self.watch.opened))
        expect(not found, f"it opens {', '.join(found)} in the serving process, which only its workers may")


def _looked_up() -> bool:
    """Return whether the caller only asks if a module exists (``importlib.util.find_spec``)."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and (
        "importlib._bootstrap" in frame.f_code.co_filename or frame.f_code.co_filename == __file__
    ):
        frame = frame.f_back
    return frame is not None and frame.f_code is find_spec.__code__


def _dotted(name: object) -> bool:
    return isinstance(name, str) and re.fullmatch(r"[\w.]+:[\w.]+", name) is not None
