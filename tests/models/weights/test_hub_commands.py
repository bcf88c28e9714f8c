"""The commands and the Python API on weights of both kinds, with a hub on loopback."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from io import StringIO
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from rich.console import Console
from tests.models.weights.hub_server import Hub, Repo, files_of
from tests.models.weights.test_hub import NAME, NEEDED, hub, safetensors

import omni_actors
from omni_actors.entrypoints.cli import cli
from omni_actors.models.weights.cache import cache_root, demo_folder
from omni_actors.models.weights.hub.progress import download_reporter
from omni_actors.models.weights.hub.records import is_whole
from omni_actors.pipelines.weights.hub import cache_folder, repository_folder, snapshot_folder
from omni_actors.protocol.errors import OmniError

pytestmark = pytest.mark.process

__all__ = ["hub"]


def models(*arguments: str, said: str | None = None) -> Result:
    return CliRunner().invoke(cli, ["models", *arguments], input=said)


@pytest.fixture
def pulled(hub: Hub) -> Hub:
    done = models("pull", NAME)
    assert done.exit_code == 0, done.output
    assert done.stdout == f"{NAME}: {snapshot_folder(NAME)}\n"
    assert "fetching 500 kB in 2 files" in done.stderr
    return hub


def test_list_and_du_show_both_kinds(pulled: Hub) -> None:
    listed = models("list").output
    assert "demo/llm" in listed
    line = next(line for line in listed.splitlines() if NAME in line)
    assert line.split()[1:4] == ["ready", "1", "MB"]
    (demo_folder() / "llm").mkdir(parents=True)
    (demo_folder() / "llm" / "a").write_bytes(bytes(5000))
    rows = {row["name"]: row for row in json.loads(models("du", "--json").output)}
    assert rows["demo"]["bytes"] == 5000
    assert rows[NAME]["bytes"] > sum(map(len, NEEDED.values()))
    assert rows[NAME]["folder"] == str(repository_folder(NAME))
    table = models("du").output
    assert NAME in table
    assert "in all" in table


def test_damage_is_listed_and_pull_repairs_it(pulled: Hub) -> None:
    (snapshot_folder(NAME) / "model-2.safetensors").resolve().write_bytes(b"")
    listed = models("list").output
    assert "damaged" in listed
    assert f"models pull {NAME}" in listed
    done = models("pull", NAME)
    assert "damaged" in done.stderr
    assert is_whole(snapshot_folder(NAME))


def test_a_check_reads_every_byte(pulled: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    big = safetensors(17 << 20)  # above what a quick look reads
    pulled.repos["someone/big"] = Repo({"main": {"config.json": NEEDED["config.json"], "model.safetensors": big}})
    assert models("pull", "someone/big").exit_code == 0
    blob = (snapshot_folder("someone/big") / "model.safetensors").resolve()
    blob.write_bytes(big[:-1] + b"\xff")
    assert is_whole(snapshot_folder("someone/big"))
    assert models("pull", "someone/big").exit_code == 0
    assert blob.read_bytes() != big
    done = models("pull", "someone/big", "--check")
    assert done.exit_code == 0
    assert "damaged" in done.stderr
    assert blob.read_bytes() == big


def test_what_was_cut_short_is_incomplete(pulled: Hub) -> None:
    (snapshot_folder(NAME) / "tokenizer.json").unlink()
    line = next(line for line in models("list").output.splitlines() if NAME in line)
    assert "incomplete" in line


def test_rm_asks_and_removes_what_the_caches_hold_and_nothing_else(pulled: Hub, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious").touch()
    (repository_folder(NAME) / "link").symlink_to(outside)
    refused = models("rm", NAME, said="n\n")
    assert refused.exit_code == 1
    assert repository_folder(NAME).is_dir()
    assert models("rm", NAME, said="y\n").exit_code == 0
    assert not repository_folder(NAME).exists()
    assert (outside / "precious").exists()
    assert NAME not in models("du").output
    for name in ("nobody/nothing", "..", "../outside", "a/..", str(outside), "demo", "hub"):
        done = models("rm", "--yes", name)
        assert done.exit_code == 1, name
        assert "contain nothing called" in done.output
    demo_folder().mkdir(parents=True)
    (cache_root() / "demo-12345678").symlink_to(outside)
    assert models("rm", "--yes", "demo", "demo-12345678").exit_code == 0
    assert not demo_folder().exists()
    assert (outside / "precious").exists()
    assert cache_folder().is_dir()


def test_rm_of_a_revision_keeps_what_others_share(pulled: Hub) -> None:
    assert models("pull", NAME, "--revision", "v1").exit_code == 0
    main, other = snapshot_folder(NAME), snapshot_folder(NAME, revision="v1")
    assert models("rm", "--yes", NAME, "--revision", "v1").exit_code == 0
    assert not other.exists()
    assert is_whole(main)
    assert len(list((repository_folder(NAME) / "blobs").iterdir())) == len(set(NEEDED.values()))


@pytest.mark.parametrize("path", ["..", "../..", "../../..", "/", "."])
def test_rm_of_a_revision_that_is_a_path_removes_nothing(pulled: Hub, path: str) -> None:
    (cache_folder().parent / "mine").write_text("mine")
    refused = models("rm", "--yes", NAME, "--revision", path)
    assert refused.exit_code == 1
    assert "not the name of a revision" in refused.output
    (repository_folder(NAME) / "refs" / "main").write_text("../../..")
    assert models("rm", "--yes", NAME, "--revision", "main").exit_code == 1
    assert (cache_folder().parent / "mine").exists()
    assert (repository_folder(NAME) / "blobs").exists()


def test_refusals(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "is for public checkpoints" in models("pull", "demo", "--revision", "v1").output
    assert "There are: demo" in models("pull", "demo/nothing").output.replace("there are", "There are")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert "offline" in models("pull", NAME).output
    assert hub.asked == []


def test_explain_fetches_nothing(hub: Hub) -> None:
    explained = CliRunner().invoke(cli, ["explain", "sesame/csm-1b", "--platform", "cpu", "--revision", "v1"])
    assert explained.exit_code == 0, explained.output
    assert CliRunner().invoke(cli, ["explain", NAME, "--platform", "cpu"]).exit_code != 0
    assert hub.asked == []


def test_a_terminal_gets_a_bar_for_each_file() -> None:
    drawn = StringIO()
    console = Console(file=drawn, force_terminal=True, width=100)
    with download_reporter(print, console) as reporter:
        reporter.start(NAME, 2, 3_000_000)
        reporter.file("model-1.safetensors", 500_000, 1_000_000)
        reporter.file("model-2.safetensors", 2_000_000, 2_000_000)
    assert "fetching 3 MB in 2 files" in drawn.getvalue()
    assert "model-1.safetensors" in drawn.getvalue()
    assert "0.5/1.0 MB" in drawn.getvalue()


@pytest.fixture
def tiny_files(tiny_model: Callable[[str], Path]) -> dict[str, bytes]:
    return files_of(tiny_model("causal-lm"))


@pytest.mark.deadline(90)
async def test_what_was_fetched_is_served(
    tiny_files: dict[str, bytes], hub: Hub, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    hub.repos["someone/tiny"] = Repo({"main": tiny_files})
    with caplog.at_level(logging.INFO, "omni_actors"):
        async with omni_actors.open_omni("someone/tiny", platform="cpu") as omni:
            answer = await omni.generate("Hello", omni_actors.Sampling(max_tokens=3, temperature=0))
    assert answer[0].usage["llm"].completion_tokens == 3
    assert omni.plan.served_model_name == "someone/tiny"
    assert "someone/tiny: fetching" in caplog.text
    assert capfd.readouterr().out == ""
    with pytest.raises(OmniError, match="Nothing is fetched offline"):
        async with omni_actors.open_omni("sesame/csm-1b", platform="cpu", offline=True):
            pass
