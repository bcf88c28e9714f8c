"""``bench transport``: real processes, every size, numbers for a program."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from omni_actors.connectors import measure
from omni_actors.entrypoints.cli import cli

pytestmark = pytest.mark.process


def test_it_measures_every_size_and_writes_the_numbers(tmp_path: Path) -> None:
    path = tmp_path / "numbers.json"
    done = CliRunner().invoke(cli, ["bench", "transport", "--quick", "--json", str(path)])
    assert done.exit_code == 0, done.output
    assert "64 MiB" in done.output
    rows = json.loads(path.read_text())["results"]
    assert {row["way"] for row in rows} == {*measure.WAYS, "memcpy"}
    for way in measure.WAYS:
        assert [row["nbytes"] for row in rows if row["way"] == way] == list(measure.SIZES)
    assert all(0 < row["p50"] <= row["p99"] and row["bandwidth"] == row["nbytes"] / row["p50"] for row in rows)


def test_options_of_the_servers_benchmark_are_refused() -> None:
    done = CliRunner().invoke(cli, ["bench", "transport", "--concurrency", "1"])
    assert done.exit_code == 2
    assert "--concurrency" in done.output


@pytest.mark.parametrize("way", measure.WAYS)
def test_bytes_that_arrive_changed_are_an_error(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The consumer's process computes what it expects by itself: here the producer puts something else."""
    monkeypatch.setattr(measure, "_MULTIPLIER", 3)
    with pytest.raises(RuntimeError, match="consumer"):
        measure.measure(way, (1 << 20,), quick=True)
