"""The engine's own behaviour: its text, its refusals, and a server that serves the plug-in."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from omni_markov.chain import TEXT, Chain, draw

from omni_actors.author import OmniError, Prompt, Sampling
from omni_actors.testing import Sample, StageBench

PROJECT = Path(__file__).parents[1]

pytestmark = pytest.mark.deadline(60)


@pytest.fixture(scope="module")
def bench() -> Iterator[StageBench]:
    with StageBench("omni_markov.pipeline:PIPELINE") as made:
        yield made


def written(bench: StageBench, text: str, **sampling: Any) -> str:
    sample = Sample({"prompt": Prompt(text=text), "sampling": Sampling(**sampling)}, task="completion")
    outcome = bench.whole(sample)["writer"]
    if outcome.error is not None:
        raise OmniError(outcome.error)
    return outcome.text[0]


def test_the_most_frequent_character_follows_at_temperature_zero(bench: StageBench) -> None:
    assert written(bench, "The rob", temperature=0.0, max_tokens=3) == "ot "
    assert written(bench, "the old", temperature=0.0) == " song the sea again."


def test_every_three_characters_occur_in_the_text(bench: StageBench) -> None:
    for seed in range(20):
        text = written(bench, "The ", seed=seed, max_tokens=60)
        assert all(text[i : i + 3] in TEXT for i in range(len(text) - 2)), text


def test_a_seed_repeats_its_answer_and_another_gives_another(bench: StageBench) -> None:
    assert written(bench, "", seed=5) == written(bench, "", seed=5)
    assert len({written(bench, "", seed=seed) for seed in range(10)}) > 5


@pytest.mark.parametrize("field", [{"n": 2}, {"stop": ["."]}, {"logprobs": 1}])
def test_a_field_that_is_not_served_is_refused_by_name(bench: StageBench, field: dict[str, Any]) -> None:
    with pytest.raises(OmniError) as refused:
        written(bench, "The ", **field)
    assert (refused.value.info.status, refused.value.info.param) == (400, next(iter(field)))


def test_the_state_after_a_prefix_is_the_state_that_wrote_it() -> None:
    chain = Chain(TEXT)
    states, symbols = [chain.state_of("zzz")], []
    for position in range(10):
        ((symbol,), (state,)) = chain.advance([states[-1]], [1.0], [draw(7, position)]).tolist()
        states.append(state)
        symbols.append(symbol)
    assert [chain.follow(states[0], symbols[:length]) for length in range(11)] == states


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Entry points as an installation of the project would have them."""
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]
    record = tmp_path / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
    record.mkdir()
    record.joinpath("METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n"
    )
    groups = project["entry-points"].items()
    lines = [f"[{group}]\n" + "".join(f"{name} = {it}\n" for name, it in names.items()) for group, names in groups]
    record.joinpath("entry_points.txt").write_text("\n".join(lines))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ["PYTHONPATH"]]))


@pytest.mark.slow
@pytest.mark.usefixtures("installed")
def test_a_server_serves_the_engine_by_its_name() -> None:
    command = [sys.executable, "-m", "omni_actors", "serve", "markov", "--platform", "cpu", "--port", "0"]
    command += ["--set", "stages.writer.engine=markov"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        line = server.stdout.readline()
        found = re.match(r"Serving (\S+) on (http://\S+)", line)
        assert found is not None, line
        body = {"model": "markov", "prompt": "the old", "temperature": 0, "max_tokens": 5}
        request = urllib.request.Request(
            f"{found[2].rstrip('/')}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=20) as response:
            answer = json.load(response)
        assert answer["choices"][0]["text"] == " song"
        assert answer["choices"][0]["finish_reason"] == "length"
        assert answer["usage"] == {**answer["usage"], "prompt_tokens": 7, "completion_tokens": 5}
    finally:
        server.terminate()
        server.communicate(timeout=30)
