"""Addresses that engines and adapters had before the engines were packages: plug-ins may still use these."""

import importlib
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

import omni_actors.worker.engines as engines

MOVED = sorted(path.stem for path in Path(engines.__file__).with_name("_moved").glob("[a-z]*.py"))


@pytest.mark.parametrize("module", MOVED)
def test_a_moved_module_still_gives_the_object_that_lives_elsewhere_now(module: str) -> None:
    old = importlib.import_module(f"omni_actors.worker.engines.{module}")
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = old.no_such_name
    homes = old.__getattr__.__closure__
    assert homes is not None
    names = next(cell.cell_contents for cell in homes if isinstance(cell.cell_contents, dict))
    assert names
    for name, home in names.items():
        with pytest.warns(DeprecationWarning, match=home.replace(":", ".")):
            found = getattr(old, name)
        assert found is pkgutil.resolve_name(home)


@pytest.mark.parametrize(
    "dotted",
    [
        "omni_actors.worker.engines.generation:GenerationEngine",
        "omni_actors.worker.engines.generation:GenerationAdapter",
        "omni_actors.worker.engines.codec:CodecAdapter",
        "omni_actors.worker.engines.decoder:AutoregressiveAdapter",
        "omni_actors.worker.engines.decoder:Decoder",
        "omni_actors.worker.engines.outputs:Result",
        "omni_actors.worker.engines.ar_options:EngineOptions",
    ],
)
def test_a_dotted_name_of_a_plug_in_resolves_with_a_warning(dotted: str) -> None:
    with pytest.warns(DeprecationWarning, match="is now"):
        assert pkgutil.resolve_name(dotted) is not None


@pytest.mark.parametrize(
    "dotted",
    [
        "omni_actors.worker.engines.autoregressive:AutoregressiveEngine",
        "omni_actors.worker.engines.oneshot:GenerationEngine",
        "omni_actors.worker.engines.chained:ChainedEngine",
        "omni_actors.worker.engines.stub:StubEngine",
    ],
)
def test_an_engines_own_address_resolves_silently(dotted: str) -> None:
    assert pkgutil.resolve_name(dotted).__name__ == dotted.partition(":")[2]


def test_the_options_of_engines_are_read_without_torch() -> None:
    names = "autoregressive", "vllm", "oneshot"
    code = "import sys\n" + "".join(f"import omni_actors.worker.engines.{name}.options\n" for name in names)
    code += "assert not {'torch', 'vllm'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
