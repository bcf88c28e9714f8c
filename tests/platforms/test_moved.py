"""Platform plug-ins name modules by address: the former addresses still work, with a warning."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module

import pytest

from omni_actors.platforms.runtime.device import DeviceRuntime


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("kernels:Kernels", "runtime.kernels:Kernels"),
        ("module_runtime:ModuleRuntime", "runtime.torch_module:ModuleRuntime"),
        ("modules:modules_of", "runtime.modules:modules_of"),
        ("trial:decode", "runtime.kernel_validation:choose_decode"),
    ],
)
def test_a_former_address_gives_the_same_object_with_a_warning(old: str, new: str) -> None:
    (module, name), (home, called) = old.split(":"), new.split(":")
    old_home = import_module(f"omni_actors.platforms.{module}")
    with pytest.warns(DeprecationWarning, match=f"platforms.{module}.{name} is now .*{home}.{called}"):
        found = getattr(old_home, name)
    assert found is getattr(import_module(f"omni_actors.platforms.{home}"), called)


def test_the_runtime_keeps_its_address_and_imports_no_torch() -> None:
    code = "import sys; from omni_actors.platforms.runtime import DeviceRuntime; print('torch' in sys.modules)"
    printed = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert printed == "False\n"
    assert import_module("omni_actors.platforms.runtime").DeviceRuntime is DeviceRuntime
