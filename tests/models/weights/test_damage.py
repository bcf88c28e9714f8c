"""Damaged weights in the cache, caches of earlier versions, and full disks."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import pytest
from click.testing import CliRunner
from tests.models.weights.shelf import CONTENT, only_from, put_on_shelf

from omni_actors.models.weights import cache
from omni_actors.models.weights import cli as commands
from omni_actors.models.weights.catalogue import Weights
from omni_actors.models.weights.cli import models_group
from omni_actors.models.weights.pull import bring, ensure_demo
from omni_actors.pipelines.weights.intact import RECORD
from omni_actors.protocol.errors import OmniError

pull = import_module("omni_actors.models.weights.pull")  # the package has a function of that name

NET = "silero_vad.onnx"


@pytest.fixture
def shelf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Weights:
    """The demo of this version: one set of weights, which are in the cache already."""
    only_from(tmp_path / "shelf", tmp_path / "cache", monkeypatch)
    weights = put_on_shelf(tmp_path / "shelf", "tiny-weights", CONTENT)
    for module in (cache, pull, commands):
        monkeypatch.setattr(module, "DEMO", (weights,))
    folder = cache.folder_of(weights)
    folder.mkdir(parents=True)
    for name, content in CONTENT.items():
        (folder / name.rpartition("/")[2]).write_bytes(content)
    shutil.copytree(folder, tmp_path / "whole")
    cache.install(weights, tmp_path / "whole")
    return weights


def net(weights: Weights) -> Path:
    return cache.folder_of(weights) / NET


def truncate(path: Path) -> None:
    os.truncate(path, 100)


def touch_a_byte(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(b"N" + content[1:])


def silently(path: Path) -> None:
    known = path.stat()
    touch_a_byte(path)
    os.utime(path, ns=(known.st_atime_ns, known.st_mtime_ns))


@pytest.mark.parametrize("damage", [truncate, touch_a_byte, Path.unlink])
@pytest.mark.process
def test_damage_is_found_and_made_anew(shelf: Weights, damage: Callable[[Path], None]) -> None:
    assert cache.state(shelf) == "ready"
    damage(net(shelf))
    assert cache.state(shelf) == "damaged"
    listed = CliRunner().invoke(models_group, ["list"]).output
    assert "damaged" in listed
    assert NET in listed
    assert "models pull demo/tiny" in listed
    said: list[str] = []
    ensure_demo(said.append)
    assert cache.state(shelf) == "ready"
    assert net(shelf).read_bytes() == b"net" * 1000
    assert any(str(net(shelf)) in text for text in said)


@pytest.mark.process
def test_what_only_each_byte_tells_is_found_by_a_check(shelf: Weights) -> None:
    silently(net(shelf))
    assert cache.state(shelf) == "ready"
    ran = CliRunner().invoke(models_group, ["pull", "demo", "--check"])
    assert ran.exit_code == 0, ran.output
    assert "demo/tiny is damaged and is made anew" in ran.output
    assert NET in ran.output
    assert net(shelf).read_bytes() == b"net" * 1000
    again = CliRunner().invoke(models_group, ["pull", "demo", "--check"])
    assert again.exit_code == 0
    assert "damaged" not in again.output


@pytest.mark.process
def test_what_is_whole_is_left_alone(shelf: Weights, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = replace(put_on_shelf(tmp_path / "shelf", "other-weights", CONTENT), name="demo/other", folder="other")
    for module in (cache, pull, commands):
        monkeypatch.setattr(module, "DEMO", (shelf, other))
    ensure_demo(print)
    before = cache.folder_of(other).stat().st_ino
    truncate(net(shelf))
    (tmp_path / "shelf" / "other_weights-1.0-py3-none-any.whl").unlink()
    ensure_demo(print)
    assert [cache.state(shelf), cache.state(other)] == ["ready", "ready"]
    assert cache.folder_of(other).stat().st_ino == before


def test_offline_damage_is_named_and_nothing_is_fetched(shelf: Weights) -> None:
    truncate(net(shelf))
    with pytest.raises(OmniError, match=r"models pull demo/tiny") as caught:
        ensure_demo(print, offline=True)
    assert str(net(shelf)) in caught.value.info.message
    assert cache.state(shelf) == "damaged"


def test_a_cache_of_an_earlier_version_gets_a_record(shelf: Weights) -> None:
    record = cache.folder_of(shelf) / RECORD
    before = record.read_text()
    record.unlink()
    ensure_demo(print)
    assert record.read_text() == before
    record.unlink()
    os.truncate(cache.folder_of(shelf) / "silero_vad_16k.safetensors", 5)  # and none over damage
    assert cache.state(shelf) == "damaged"
    assert not record.exists()


def leftovers() -> list[str]:
    return sorted(path.name for path in cache.cache_root().iterdir())


def test_too_little_room_is_said_before_anything_is_fetched(shelf: Weights, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.rmtree(cache.demo_folder())
    large = replace(shelf, download=10**15, size=3 * 10**15)
    with pytest.raises(OmniError, match=r"needs 5000000\.0 GB, and .* free in") as caught:
        bring([large])
    assert "models pull demo/tiny" in caught.value.info.message
    assert leftovers() == ["lock"]


@pytest.mark.parametrize("step", ["fetch", "_convert", "install"])
@pytest.mark.process
def test_a_disk_that_fills_up_on_the_way_is_said_and_cleaned(
    shelf: Weights, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    shutil.rmtree(cache.demo_folder())
    really = getattr(pull, step)

    def full(*arguments: object, **named: object) -> object:
        really(*arguments, **named)
        if step == "install":
            shutil.rmtree(cache.folder_of(shelf))
        raise OSError(errno.ENOSPC, "No space left on device", "x")

    monkeypatch.setattr(pull, step, full)
    with pytest.raises(OmniError, match=r"The disk is too full for demo/tiny: that needs .* are free in") as caught:
        bring([shelf])
    assert "Make room" in caught.value.info.message
    assert set(leftovers()) <= {"lock", cache.demo_folder().name}
    assert cache.state(shelf) == "missing"


SMALL_DISK = """
import sys
from dataclasses import replace
from omni_actors.models.weights import cache
from omni_actors.models.weights.catalogue import Weights
from omni_actors.models.weights.pull import bring
from omni_actors.protocol.errors import OmniError
try:
    bring([{weights!r}])
except OmniError as error:
    print(error.info.message)
print(sorted(path.name for path in cache.cache_root().iterdir()))
"""


def may_mount(folder: Path) -> bool:
    """Whether this user can have a small disk of their own, in a mount namespace."""
    command = ["unshare", "-rm", "mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(folder)]
    return shutil.which("unshare") is not None and subprocess.run(command, capture_output=True).returncode == 0


def test_a_disk_that_really_is_full(shelf: Weights, tmp_path: Path) -> None:
    """pip, the conversion and everything else run on a disk of 400 kB; the weights need 600, and claim to need less."""
    disk = tmp_path / "disk"
    disk.mkdir()
    if not may_mount(disk):
        pytest.skip("this user may not mount a small disk")
    content = {name: content + os.urandom(300_000) for name, content in CONTENT.items() if name.endswith("onnx")}
    large = replace(put_on_shelf(tmp_path / "shelf", "large-weights", content), download=1000, size=1000)
    mounted = f'mount -t tmpfs -o size=400k tmpfs "{disk}" && exec "$@"'
    command = ["unshare", "-rm", "sh", "-c", mounted, "sh", sys.executable, "-c", SMALL_DISK.format(weights=large)]
    environment = {**os.environ, "OMNI_ACTORS_CACHE": str(disk)}
    ran = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert "The disk is too full for demo/tiny: that needs" in ran.stdout, ran.stdout + ran.stderr
    assert ran.stdout.splitlines()[-1] == "['lock']"
