"""Public checkpoints are fetched from a hub (one on loopback), by the hub's own client."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.models.weights.hub_server import LARGE, Hub, Repo, blob_of

from omni_actors.entrypoints.weights import DeploymentSpec, FetchProgress, by_log, ready_to_start
from omni_actors.models.weights.hub import download as module
from omni_actors.models.weights.hub.download import download
from omni_actors.models.weights.hub.progress import Lines
from omni_actors.models.weights.hub.pull import bring_public
from omni_actors.models.weights.hub.records import is_whole
from omni_actors.models.weights.hub.wanted import needed_of
from omni_actors.pipelines.plan import PlanError
from omni_actors.pipelines.weights.hub import repository_folder, snapshot_folder
from omni_actors.protocol.errors import OmniError

pytestmark = pytest.mark.process

NAME = "someone/small-llm"


def safetensors(size: int, first: int = 0) -> bytes:
    header = json.dumps({"a": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}}).encode()
    repeated = bytes(range(first, 251)) * (size // (251 - first) + 1)
    return len(header).to_bytes(8, "little") + header + repeated[:size]


NEEDED = {
    "config.json": b'{"architectures": ["LlamaForCausalLM"]}',
    "generation_config.json": b"{}",
    "tokenizer.json": json.dumps({"x": "y" * 2000}).encode(),
    "chat_template.jinja": b"{{ messages }}",
    "LICENSE": b"free",
    "model.safetensors.index.json": b'{"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}',
    "model-1.safetensors": safetensors(300_000),
    "model-2.safetensors": safetensors(200_000, 7),
}

NOT_NEEDED = {
    ".gitattributes": b"*",
    "README.md": b"read me",
    "pytorch_model.bin": bytes(5000),
    "model.gguf": bytes(5000),
    "consolidated.safetensors": safetensors(9000),
    "original/model.safetensors": safetensors(9000),
    "onnx/model.onnx": bytes(5000),
    "spk_dict.pt": bytes(100),
    "figure.png": bytes(5000),
}


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """A hub with one repository; this machine has fetched nothing, and has no token."""
    for name in [name for name in os.environ if name.startswith(("HF_", "TRANSFORMERS_", "HUGGING"))]:
        monkeypatch.delenv(name)
    hub = Hub({NAME: Repo({"main": NEEDED | NOT_NEEDED, "v1": NEEDED | {"config.json": b'{"v": 1}'}})})
    monkeypatch.setenv("HF_ENDPOINT", hub.url)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.setenv("OMNI_ACTORS_CACHE", str(tmp_path / "own"))
    for name in ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    yield hub
    hub.close()


class Kept(Lines):
    """Keeps what is told of a download."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        super().__init__(self.lines.append)


def files(snapshot: Path) -> dict[str, bytes]:
    return {path.relative_to(snapshot).as_posix(): path.read_bytes() for path in snapshot.rglob("*") if path.is_file()}


def leftovers() -> list[str]:
    return [path.name for path in repository_folder(NAME).rglob("*.incomplete")]


def test_only_what_is_needed_is_fetched_and_lies_as_the_hubs_client_has_it(hub: Hub) -> None:
    told = Kept()
    folder = download(NAME, told)
    assert folder == snapshot_folder(NAME)
    assert files(folder) == NEEDED
    assert hub.fetched() == set(NEEDED)
    assert is_whole(folder)
    assert (folder / "model-1.safetensors").is_symlink()
    found = subprocess.run(
        [sys.executable, "-c", f"from huggingface_hub import snapshot_download as s; print(s('{NAME}'))"],
        env={**os.environ, "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
    )
    assert found.stdout.strip() == str(folder), found.stderr
    assert told.lines[0] == f"{NAME}: fetching 500 kB in 2 files"
    assert f"{NAME}: model-1.safetensors (300 kB) is here" in told.lines
    assert all("omni-actors" in agent for agent in hub.agents)


def test_what_is_here_is_not_fetched_again(hub: Hub) -> None:
    download(NAME, Kept())
    hub.asked.clear()
    told = Kept()
    download(NAME, told)
    assert hub.fetched() == set()
    assert told.lines == []


def test_a_revision_lies_beside_the_others(hub: Hub) -> None:
    main = download(NAME, Kept())
    hub.asked.clear()
    folder = download(NAME, Kept(), revision="v1")
    assert folder == snapshot_folder(NAME, revision="v1") != main
    assert files(folder)["config.json"] == b'{"v": 1}'
    assert hub.fetched() == {"config.json"}  # the rest has the same content
    with pytest.raises(OmniError, match="has no branch, tag or commit 'v2'"):
        download(NAME, Kept(), revision="v2")


def test_a_connection_that_breaks_is_taken_up_where_it_was(hub: Hub) -> None:
    hub.cut["model-1.safetensors"] = [100_000]
    folder = download(NAME, Kept())
    assert files(folder) == NEEDED
    assert hub.ranges["model-1.safetensors"] == ["bytes=100000-"]


def test_a_process_that_was_killed_goes_on_where_it_was(hub: Hub) -> None:
    hub.cut["model-1.safetensors"] = [120_000]
    stuck = hub.hold["model-1.safetensors"] = threading.Event()
    program = f"""
from omni_actors.models.weights.hub.download import download
from omni_actors.models.weights.hub.progress import Lines
download({NAME!r}, Lines(lambda text: print(text, flush=True)))
"""
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as killed:
        assert killed.stdout is not None
        for line in killed.stdout:
            if "model-2.safetensors" in line:
                break
        partial = repository_folder(NAME) / "blobs" / f"{blob_name('model-1.safetensors')}.incomplete"
        deadline = time.monotonic() + 60
        while not (partial.exists() and partial.stat().st_size == 120_000):
            assert time.monotonic() < deadline, "what has come is not on the disk"
            time.sleep(0.01)
        killed.send_signal(signal.SIGKILL)  # its child ends with it
    stuck.set()
    assert not is_whole(snapshot_folder(NAME))
    assert leftovers() == [partial.name]
    hub.asked.clear()
    folder = download(NAME, Kept())
    assert files(folder) == NEEDED
    assert hub.ranges["model-1.safetensors"] == ["bytes=120000-"]
    assert hub.fetched() == {"model-1.safetensors"}
    assert leftovers() == []


def blob_name(name: str) -> str:
    content = NEEDED[name]
    return hashlib.sha256(content).hexdigest() if len(content) >= LARGE else blob_of(content)


@pytest.mark.parametrize("name", ["model-1.safetensors", "config.json"])
def test_content_with_another_digest_is_refused_and_removed(hub: Hub, name: str) -> None:
    hub.wrong[name] = bytes(len(NEEDED[name]))
    with pytest.raises(OmniError, match=rf"'{name}' .* is damaged: its digest is .* It was removed"):
        download(NAME, Kept())
    assert f"{blob_name(name)}.incomplete" not in leftovers()
    assert not (repository_folder(NAME) / "blobs" / blob_name(name)).exists()
    assert not is_whole(snapshot_folder(NAME))
    hub.wrong.clear()
    assert files(download(NAME, Kept())) == NEEDED


def test_a_partial_file_that_was_damaged_is_fetched_whole(hub: Hub) -> None:
    blobs = repository_folder(NAME) / "blobs"
    blobs.mkdir(parents=True)
    (blobs / f"{blob_name('model-1.safetensors')}.incomplete").write_bytes(b"x" * 1000)
    assert files(download(NAME, Kept())) == NEEDED


def test_what_was_damaged_on_the_disk_is_fetched_anew(hub: Hub) -> None:
    folder = download(NAME, Kept())
    blob = (folder / "model-1.safetensors").resolve()
    blob.write_bytes(bytes([NEEDED["model-1.safetensors"][0]]) + bytes(blob.stat().st_size - 1))
    assert not is_whole(folder)
    told = Kept()
    download(NAME, told)
    assert files(folder) == NEEDED
    assert any("damaged" in line and "model-1.safetensors" in line for line in told.lines)


@pytest.mark.deadline(60)
def test_a_hub_that_lies_reaches_no_file_outside_of_its_folder(hub: Hub, tmp_path: Path) -> None:
    """What it calls digests and commits become names of files and folders."""
    mine = tmp_path / "mine"
    mine.write_text("mine")
    digest = os.path.relpath(mine, repository_folder(NAME) / "blobs")
    hub.digests["model-1.safetensors"] = digest
    with pytest.raises(OmniError, match="which is none"):
        download(NAME, Kept())
    hub.digests.clear()
    hub.commit = os.path.relpath(tmp_path / "elsewhere", repository_folder(NAME) / "snapshots")
    with pytest.raises(OmniError, match="which is no commit"):
        download(NAME, Kept())
    assert mine.read_text() == "mine"
    assert not (tmp_path / "elsewhere").exists()


def test_a_file_that_does_not_end_fills_no_disk(hub: Hub) -> None:
    hub.wrong["model-1.safetensors"] = NEEDED["model-1.safetensors"] + bytes(4 << 20)
    with pytest.raises(OmniError, match="came with more than its"):
        download(NAME, Kept())
    assert sum(path.stat().st_size for path in repository_folder(NAME).rglob("*.incomplete")) < 600_000
    hub.wrong.clear()
    download(NAME, Kept())
    assert is_whole(snapshot_folder(NAME))


def test_a_damaged_file_that_a_link_leads_to_elsewhere_is_left_there(hub: Hub, tmp_path: Path) -> None:
    pointer = download(NAME, Kept()) / "model-1.safetensors"
    mine = tmp_path / "mine.safetensors"
    mine.write_bytes(b"mine")
    pointer.unlink()
    pointer.symlink_to(mine)
    download(NAME, Kept())
    assert mine.read_bytes() == b"mine"
    assert pointer.read_bytes() == NEEDED["model-1.safetensors"]


def test_a_hub_that_breaks_off_for_good_is_said_and_what_came_is_kept(hub: Hub) -> None:
    hub.cut["model-1.safetensors"] = [100_000, 0, 0, 0, 0, 0, 0, 0]
    with pytest.raises(OmniError, match="cannot be reached, or broke off") as caught:
        download(NAME, Kept())
    assert f"models pull {NAME}" in caught.value.info.message
    assert "The files that were fetched so far are kept" in caught.value.info.message
    assert leftovers() == [f"{blob_name('model-1.safetensors')}.incomplete"]
    hub.cut.clear()
    assert files(download(NAME, Kept())) == NEEDED


def test_a_hub_that_is_not_there(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(OmniError, match=r"The hub \(http://127.0.0.1:9\) cannot be reached"):
        download(NAME, Kept())


@pytest.mark.parametrize("token", [None, "other"])
def test_a_gated_repository_is_explained(hub: Hub, monkeypatch: pytest.MonkeyPatch, token: str | None) -> None:
    hub.repos[NAME].gated, hub.repos[NAME].token = True, "mine"
    if token is not None:
        monkeypatch.setenv("HF_TOKEN", token)
    with pytest.raises(OmniError, match=f"'{NAME}' is gated.* Accept its terms at {hub.url}/{NAME}") as caught:
        download(NAME, Kept())
    assert ("hf auth login" in caught.value.info.message) is (token is None)


@pytest.mark.parametrize("saved", [False, True])
def test_a_token_opens_what_it_may(hub: Hub, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, saved: bool) -> None:
    hub.repos[NAME].gated, hub.repos[NAME].token = True, "mine"
    if saved:
        (tmp_path / "hf").mkdir()
        (tmp_path / "hf" / "token").write_text("mine\n")
    else:
        monkeypatch.setenv("HF_TOKEN", "mine")
    assert files(download(NAME, Kept())) == NEEDED


def test_other_refusals_are_explained(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(PlanError, match=r"The hub has no 'sesame/csm-2b' that is public.*did you mean 'sesame/csm-1b'"):
        bring_public("sesame/csm-2b", Kept())
    hub.repos["someone/pickled"] = Repo({"main": {"config.json": NEEDED["config.json"], "model.bin": bytes(2 << 20)}})
    with pytest.raises(OmniError, match=r"no weights in the safetensors format \(large files there end in \.bin\)"):
        download("someone/pickled", Kept())
    hub.repos["someone/bert"] = Repo({"main": NEEDED | {"config.json": b'{"architectures": ["BertModel"]}'}})
    hub.asked.clear()
    with pytest.raises(PlanError, match="no pipeline serves the architecture"):
        bring_public("someone/bert", Kept())
    assert not any(name.endswith(".safetensors") for name in hub.fetched())
    monkeypatch.setenv("HF_TOKEN", "refused")
    with pytest.raises(OmniError, match=r"refuses the token that was sent \(401\)"):
        download(NAME, Kept())


def test_too_little_room_is_said_before_anything_large_is_fetched(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONSTARTUP", "")
    site = Path(os.environ["HF_HOME"]).parent / "site"
    site.mkdir()
    full = "import shutil, collections\nshutil.disk_usage = lambda path: collections.namedtuple('U', 'free')(100_000)\n"
    (site / "sitecustomize.py").write_text(full)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(site), os.environ.get("PYTHONPATH", "")]))
    with pytest.raises(OmniError, match="needs 500 kB, and 100 kB are free in") as caught:
        download(NAME, Kept())
    assert "HF_HUB_CACHE" in caught.value.info.message
    assert not any(name.endswith(".safetensors") for name in hub.fetched())


def test_a_download_that_nobody_wants_any_more_ends_at_once(hub: Hub) -> None:
    hub.cut["model-1.safetensors"] = [1000]
    hub.hold["model-1.safetensors"] = threading.Event()

    class Enough(Exception):
        pass

    def wanted() -> None:
        if "model-1.safetensors" in hub.fetched():
            raise Enough

    with pytest.raises(Enough):
        download(NAME, Kept(), wanted=wanted)


def test_a_child_that_dies_is_said_with_its_last_words(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_send", lambda child, message: child.stdin.write(b"no json\n"))
    with pytest.raises(OmniError, match=r"has ended \(exit status 1\)"):
        download(NAME, Kept())


def test_the_codec_that_a_checkpoint_names_comes_along(hub: Hub) -> None:
    processor = b'{"audio_tokenizer": {"audio_tokenizer_name_or_path": "someone/codec"}}'
    hub.repos[NAME] = Repo({"main": NEEDED | {"processor_config.json": processor}})
    hub.repos["someone/codec"] = Repo({"main": {"config.json": b"{}", "model.safetensors": safetensors(3000)}})
    bring_public(NAME, Kept())
    assert is_whole(snapshot_folder("someone/codec"))


def quiet() -> FetchProgress:
    return by_log(lambda: None)


def test_offline_nothing_is_asked_of_the_hub(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.repos["sesame/csm-1b"] = hub.repos[NAME]
    with pytest.raises(PlanError, match="Nothing is fetched offline") as caught:
        ready_to_start(DeploymentSpec("sesame/csm-1b", platform="cpu", offline=True), quiet())
    assert "models pull sesame/csm-1b" in caught.value.info.message
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(PlanError, match="Nothing is fetched offline"):
        ready_to_start(DeploymentSpec("sesame/csm-1b", platform="cpu"), quiet())
    assert hub.asked == []


def test_what_cannot_be_served_is_not_fetched(hub: Hub) -> None:
    hub.repos["sesame/csm-1b"] = hub.repos[NAME]
    with pytest.raises(PlanError, match="nosuch"):
        ready_to_start(DeploymentSpec("sesame/csm-1b", platform="cpu", overrides=["stages.nosuch.replicas=2"]), quiet())
    with pytest.raises(PlanError, match="revisions are of public checkpoints"):
        DeploymentSpec("demo", revision="v1").plan()
    assert hub.asked == []


def test_a_checkpoint_is_planned_once_it_is_here_and_the_hub_is_not_asked_again(hub: Hub) -> None:
    plan = ready_to_start(DeploymentSpec(NAME, platform="cpu", revision="main"), quiet())
    assert (plan.name, plan.served_model_name, plan.checkpoint) == ("causal-lm", NAME, NAME)
    assert plan.model == str(snapshot_folder(NAME))
    hub.asked.clear()
    ready_to_start(DeploymentSpec(NAME, platform="cpu"), quiet())
    assert hub.asked == []


def test_a_file_of_its_pipeline_comes_along() -> None:
    def read(name: str) -> object:
        return json.loads((NEEDED | NOT_NEEDED)[name])

    assert needed_of(NEEDED | NOT_NEEDED, (), read) == set(NEEDED)
    assert needed_of(NEEDED | NOT_NEEDED, ("spk_dict.pt",), read) == {*NEEDED, "spk_dict.pt"}
    assert needed_of(["voices/a.safetensors", "voices/b.safetensors", "model.safetensors"], (), read) == {
        "voices/a.safetensors",
        "voices/b.safetensors",
        "model.safetensors",
    }
