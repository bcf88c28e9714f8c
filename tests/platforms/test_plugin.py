"""A platform that is no part of this package: the sample plugin, installed from its wheel, under a real server."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
from tests.demo.server import Server, in_thread, serving
from tests.models.test_heard_served import transcribe
from tests.platforms.plugin_home import build_plugin, install, make_home, run, uninstall
from tests.worker.engines import tiny_models

pytestmark = [pytest.mark.slow, pytest.mark.deadline(150)]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_plugin(tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An interpreter that has the plugin."""
    home = make_home(tmp_path_factory.mktemp("plugin"))
    install(home, wheel)
    return home


def counter(server: Server, name: str, stage: str) -> float:
    """One of the stage's counters; 0 where it has none of that name."""
    body = server.get("/metrics")[1].decode()
    found = re.search(rf'^omni_actors_stage_{name}{{replica="0",stage="{stage}"}} (\S+)$', body, re.MULTILINE)
    return float(found[1]) if found else 0.0


def say(server: Server, tokens: int) -> tuple[int, Any]:
    messages = [{"role": "user", "content": "Say hello."}]
    body = {"messages": messages, "max_tokens": tokens, "temperature": 0, "ignore_eos": True}
    return server.post("/v1/chat/completions", body)


def text_of(answer: tuple[int, Any]) -> str:
    status, body = answer
    assert status == 200, body
    text: str = body["choices"][0]["message"]["content"]
    return text


def explain(python: Path, *arguments: str) -> dict[str, Any]:
    said = run(python, "-m", "omni_actors", "explain", *arguments, "--json", cwd=python.parent)
    plan: dict[str, Any] = json.loads(said)
    return plan


# --- there, and not there --------------------------------------------------------------------------------------------


def test_an_installed_plugin_serves_the_demo_and_uninstalled_it_is_the_cpu_again(
    wheel: Path, demo_weights: Path, tmp_path: Path
) -> None:
    python = make_home(tmp_path)
    install(python, wheel)
    with serving(tmp_path, "demo", python=python) as server:
        assert len(text_of(say(server, 8))) > 3
        speech = {"input": "It runs on a simulated device.", "voice": "heart", "response_format": "wav"}
        status, sound = server.post("/v1/audio/speech", speech)
        assert status == 200
        samples, rate = soundfile.read(io.BytesIO(sound))
        assert rate == 24_000
        assert np.abs(samples).max() > 0.05
        # What runs is the platform's own: engines, kernels and memory.
        assert counter(server, "sim_steps_total", "llm") >= 8
        assert counter(server, "sim_linear_calls_total", "llm") > 100
        assert counter(server, "sim_memory_used_bytes", "llm") > 500 << 20
    plan = explain(python, "demo")["values"]
    assert plan["platform"] == {"value": "sim", "origin": "platform", "where": "detected"}
    assert plan["stages.llm.engine"]["value"] == "omni_sim.engines:SimAutoregressiveEngine"
    assert plan["edges.vocoder.frames.connector"]["value"] == "device"

    uninstall(python)
    plan = explain(python, "demo")["values"]
    assert plan["platform"]["value"] == "cpu"
    assert plan["edges.vocoder.frames.connector"]["value"] == "shared_memory"


# --- what goes wrong on the device -----------------------------------------------------------------------------------


def test_a_step_without_memory_and_a_lost_device_are_survived(python: Path, tmp_path: Path) -> None:
    # Each token is a step, and the first one is the prompt's: 1-4, 5-, the rest.
    faults = {"OMNI_SIM_FAULTS": "oom@1,oom@6,lost@12"}
    with serving(tmp_path, tiny_models.save(tmp_path / "model"), python=python, environment=faults) as server:
        # A prompt that has no room is computed in parts.
        assert text_of(say(server, 4))
        assert counter(server, "out_of_memory_total", "llm") == 1
        # A lone token has no parts: that request fails, by name.
        status, body = say(server, 8)
        assert (status, body["error"]["code"]) == (503, "out_of_memory")
        # A lost device takes its worker with it, and the request goes on where it was.
        answer = say(server, 24)
        log = server.log.read_text()
        assert "batches of at most" in log
        assert "llm#0 under llm failed, 1 in a row: SimDeviceLost" in log
        assert "llm#0@2 is ready" in log
        assert text_of(answer) == text_of(say(server, 24))
        assert counter(server, "resumed_tokens_total", "llm") >= 1
        server.wait_for(server.healthy, 10)


# --- over the link ---------------------------------------------------------------------------------------------------

SHORT = ("--set", "stages.listener.options.max_tokens=32")


def clip(seed: int) -> bytes:
    made = io.BytesIO()
    samples = np.random.default_rng(seed).standard_normal(16_000 * 30) * 0.1
    soundfile.write(made, samples.astype(np.float32), 16_000, format="WAV")
    return made.getvalue()


def heard(server: Server, seed: int) -> str:
    status, body = transcribe(server, clip(seed), language="en")
    assert status == 200, body
    text: str = json.loads(body)["text"]
    assert len(text) > 20
    return text


@pytest.fixture(scope="module")
def by_the_cpu(tiny_model: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """What two clips say, as the cpu hears them."""
    with serving(tmp_path_factory.mktemp("cpu"), str(tiny_model("qwen3-asr")), "--platform", "cpu", *SHORT) as server:
        return [heard(server, seed) for seed in range(2)]


def linked(server: Server) -> bool:
    return counter(server, "device_links", "encoder") == 1 == counter(server, "device_links", "listener")


def test_features_stay_on_the_device_over_a_slow_link_that_is_cut(
    python: Path, by_the_cpu: list[str], tiny_model: Callable[[str], Path], tmp_path: Path
) -> None:
    # The first transfer is each end's probe of the other one.
    environment = {"OMNI_SIM_LINK_BYTES_S": "2e6", "OMNI_SIM_FAULTS": "drop@3"}
    model = str(tiny_model("qwen3-asr"))
    with serving(tmp_path, model, *SHORT, python=python, environment=environment) as server:
        server.wait_for(lambda: linked(server), 10)
        assert heard(server, 0) == by_the_cpu[0]
        assert counter(server, "device_payloads_total", "encoder") == 1
        assert counter(server, "sim_transfers_total", "listener") == 2
        # The second clip's transfer is cut: another attempt hears it, by way of the host.
        assert heard(server, 1) == by_the_cpu[1]
        assert counter(server, "sim_transfers_total", "listener") == 3
        assert counter(server, "device_payloads_total", "encoder") == 2
        assert counter(server, "device_links", "encoder") == 0
        assert heard(server, 0) == by_the_cpu[0]
        assert counter(server, "device_used_bytes", "encoder") == 0
        assert "payloads to listener#0@1 go through host memory" in server.log.read_text()


@pytest.fixture
def two_platforms(tmp_path: Path) -> Path:
    overlay = tmp_path / "two.yaml"
    overlay.write_text("platform: sim\nstages:\n  encoder: {platform: cpu}\n")
    return overlay


def test_one_pipeline_on_two_platforms(
    python: Path, by_the_cpu: list[str], tiny_model: Callable[[str], Path], two_platforms: Path, tmp_path: Path
) -> None:
    model = str(tiny_model("qwen3-asr"))
    values = explain(python, model, "--deploy", str(two_platforms))["values"]
    assert (values["stages.encoder.platform"]["value"], values["stages.listener.platform"]["value"]) == ("cpu", "sim")
    assert values["edges.listener.features.connector"]["value"] == "shared_memory"
    with serving(tmp_path, model, "--deploy", str(two_platforms), *SHORT, python=python) as server:
        answers = [in_thread(partial(heard, server, seed)) for seed in range(2)]
        assert [answer() for answer in answers] == by_the_cpu
        assert counter(server, "sim_steps_total", "listener") > 0
        assert counter(server, "sim_steps_total", "encoder") == 0
        assert counter(server, "chunk_bytes_total", "encoder") > 48 << 10
        assert counter(server, "device_payloads_total", "encoder") == 0
