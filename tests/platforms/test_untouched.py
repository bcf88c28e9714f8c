"""The serving process touches no device: not by a vendor's library, not by torch, not by a node.

A real server on a machine with the devices of every vendor. Each process of it has a witness (an import hook and an
audit hook) that writes down who imports torch or a vendor's package, who opens a device node and who loads a driver;
the fake driver library is compiled and writes down by itself who loaded it.
"""

from __future__ import annotations

import http.client
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from tests.platforms import machines
from tests.platforms.fake_vendors import HERE

WITNESS = '''
import os, sys
from importlib.machinery import PathFinder

LOG, DEV = os.environ["WITNESS"], os.environ["WITNESS_DEV"]
PACKAGES = {"torch", "torch_npu", "torch_musa", "pynvml", "amdsmi", "pymtml", "transformers", "vllm"}


def note(event, what):
    file = os.open(LOG, os.O_WRONLY | os.O_APPEND)
    os.write(file, f"{os.getpid()} {event} {what}\\n".encode())
    os.close(file)


class Imports:
    """Looking for a package is not importing it: noted is whose code is run."""

    @staticmethod
    def find_spec(name, path=None, target=None):
        if name not in PACKAGES or (spec := PathFinder.find_spec(name, path, target)) is None:
            return None
        run = spec.loader.exec_module

        def exec_module(module):
            note("import", name)
            run(module)

        spec.loader.exec_module = exec_module
        return spec


def witness(event, arguments):
    if event == "open" and str(arguments[0]).startswith(DEV):
        note(event, os.path.basename(str(arguments[0])))
    elif event == "ctypes.dlopen" and arguments[0] and "cuda" in str(arguments[0]):
        note(event, arguments[0])


sys.meta_path.insert(0, Imports)
sys.addaudithook(witness)
'''

DRIVER = """
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

__attribute__((constructor)) static void loaded(void) {
    FILE *file = fopen(getenv("WITNESS"), "a");
    fprintf(file, "%d driver libcuda.so.1\\n", getpid());
    fclose(file);
}
"""

OPENS = "open('{node}').close()\n"
"""What a management library does first."""

SERVE = """
import sys
from pathlib import Path
from omni_actors.platforms import accelerator, machine
from omni_actors.entrypoints.cli import main

accelerator.Accelerator.root = Path(sys.argv[1])
# Whatever torch is installed where this test runs.
machine.torch_build = accelerator.torch_build = lambda: machine.TorchBuild("2.13.0+cpu")
main(["serve", "stub", "--port", "0", *sys.argv[2:]])
"""


@pytest.fixture
def witnessed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file that the witness writes. The machine is below ``machine``, libraries below ``site``."""
    machine, site, log = tmp_path / "machine", tmp_path / "site", tmp_path / "witness"
    log.touch()
    for name in machines.NO_DEVICES:
        monkeypatch.delenv(name, raising=False)
    machines.nvidia(machine)
    machines.amd(machine)
    machines.intel(machine)
    machines.moore(machine)
    machines.write(site, "sitecustomize.py", WITNESS)
    machines.write(site, "pynvml.py", OPENS.format(node=machine / "dev/nvidia0"))
    machines.write(site, "amdsmi.py", OPENS.format(node=machine / "dev/kfd"))
    machines.write(site, "pymtml.py", OPENS.format(node=machine / "dev/mtgpu.0"))
    smi = machines.write(tmp_path, "bin/npu-smi", f"#!{sys.executable}\n{OPENS.format(node=machine / 'dev/davinci0')}")
    smi.chmod(0o755)
    library = machines.write(tmp_path, "lib/libcuda.c", DRIVER).with_name("libcuda.so.1")
    if compiler := shutil.which("cc"):
        subprocess.run([compiler, "-shared", "-fPIC", "-o", library, library.with_name("libcuda.c")], check=True)
    else:
        machines.driver(monkeypatch, tmp_path / "lib", library.name)
    monkeypatch.setenv("WITNESS", str(log))
    monkeypatch.setenv("WITNESS_DEV", str(machine / "dev"))
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path / "lib"))
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(map(str, (site, Path(__file__).parents[2]))))
    return log


def served(machine: Path, *arguments: str) -> tuple[int, str, list[str], str]:
    """Serve till it is ready: the server's pid, what it said on stderr, what it had open and mapped."""
    command = [sys.executable, "-c", SERVE, str(machine), *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            said = server.stdout.readline()
            found = re.match(r"Serving stub on (http://\S+)", said)
            assert found is not None, server.communicate()
            connection = http.client.HTTPConnection(urlsplit(found[1]).netloc, timeout=20)
            connection.request("GET", "/ready")
            assert connection.getresponse().status == 200
            connection.close()
            folder = Path(f"/proc/{server.pid}")
            opened = [os.readlink(it) for it in (folder / "fd").iterdir() if it.is_symlink()]
            mapped = (folder / "maps").read_text()
            server.send_signal(signal.SIGTERM)
            _, errors = server.communicate(timeout=30)
            assert server.returncode == 0, errors
        finally:
            server.kill()
    return server.pid, errors, opened, mapped


def check(log: Path, machine: Path, pid: int, opened: list[str], mapped: str) -> dict[str, set[int]]:
    """The server is not among those that touched anything. Who did what, by what was touched."""
    lines = [line.split() for line in log.read_text().splitlines()]
    assert [line for line in lines if line[0] == str(pid)] == []
    assert not [path for path in opened if path.startswith(str(machine / "dev")) or "nvidia" in path]
    assert "libcuda" not in mapped
    assert "libtorch" not in mapped
    who: dict[str, set[int]] = {}
    for one, _, what in lines:
        who.setdefault(what, set()).add(int(one))
    return who


def test_the_witness_sees_who_touches_something(witnessed: Path, tmp_path: Path) -> None:
    code = "import ctypes, importlib; importlib.import_module('pynvml'); ctypes.CDLL('libcuda.so.1')"
    with subprocess.Popen([sys.executable, "-c", code]) as process:
        assert process.wait(timeout=20) == 0
    who = {tuple(line.split()[:2]) for line in witnessed.read_text().splitlines()}
    events = ("import", "open", "ctypes.dlopen", *(["driver"] if shutil.which("cc") else []))
    assert who == {(str(process.pid), event) for event in events}


@pytest.mark.deadline(120)
def test_devices_that_cannot_be_used_are_looked_at_and_not_touched(witnessed: Path, tmp_path: Path) -> None:
    """torch is built for the processor. Every vendor is looked at in turn."""
    pid, errors, opened, mapped = served(tmp_path / "machine")
    who = check(witnessed, tmp_path / "machine", pid, opened, mapped)
    assert who.keys() >= {"pynvml", "nvidia0", "libcuda.so.1", "amdsmi", "kfd", "pymtml", "mtgpu.0"}
    assert len(who["nvidia0"]) == len(who["kfd"]) == 1
    for name in ("cuda", "rocm", "xpu", "musa"):
        assert len(re.findall(f"platform '{name}' cannot be used: ", errors)) == 1, errors
    assert (
        "no accelerator can be used (cuda, rocm, xpu, musa cannot): every stage that names no platform runs" in errors
    )


@pytest.mark.slow
@pytest.mark.deadline(180)
def test_a_device_that_is_used_is_opened_by_workers_alone(
    witnessed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machines.ascend(tmp_path / "machine")
    monkeypatch.setenv("ASCEND_HOME_PATH", "/usr/local/Ascend/ascend-toolkit/latest")
    monkeypatch.setenv("PYTHONPATH", f"{os.environ['PYTHONPATH']}{os.pathsep}{HERE / 'ascend'}")
    elsewhere = ("--set", "stages.b.platform=cpu", "--set", "stages.c.platform=cpu")
    pid, errors, opened, mapped = served(tmp_path / "machine", *elsewhere)
    who = check(witnessed, tmp_path / "machine", pid, opened, mapped)
    assert len(who["davinci0"]) == 2  # when the plan was made, and before workers were started on it
    assert len(who["torch_npu"]) == 1
    assert who["torch_npu"] <= who["torch"]
    assert "the cpu" not in errors
