"""The command ``bench`` as a person runs it."""

from __future__ import annotations

import builtins
import json
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from omni_actors.entrypoints.bench import bench_command
from omni_actors.entrypoints.bench.report import write_plot


def bench(*arguments: object) -> Result:
    return CliRunner().invoke(bench_command, [str(argument) for argument in arguments], env={"COLUMNS": "80"})


@pytest.fixture
def server(serve: Callable[..., Any], sse: Any) -> Any:
    whole = sse.text("Hello") + sse.audio(0.5) + sse.text("", finish="stop") + sse.usage(3, 4) + sse.done
    return serve([(0.01, whole)])


def test_sweep_gives_a_column_per_level_and_counts_every_request(server: Any, tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    result = bench(
        "chat", "--url", server.url, "--concurrency", "1,2", "--requests", "3", "--repeats", "2", "--json", path
    )
    assert result.exit_code == 0, result.output
    assert "c=1" in result.stdout
    assert "c=2" in result.stdout
    assert result.stdout.count("3 of 3") == 2
    assert "…" not in result.stdout  # it fits a terminal
    assert len(server.bodies) == 2 + 2 * 2 * 3
    assert {body["model"] for body in server.bodies} == {"first-model"}
    written = json.loads(path.read_text())
    assert [level["concurrency"] for level in written["results"]] == [1, 2]
    assert [len(level["repeats"]) for level in written["results"]] == [2, 2]
    assert written["results"][0]["median"]["ttft_p50"] >= 0.01
    assert written["settings"]["model"] == "first-model"


def test_plot_is_a_picture(server: Any, tmp_path: Path) -> None:
    path = tmp_path / "out.png"
    result = bench("chat-audio", "--url", server.url, "--rate", "50,100", "--requests", "2", "--plot", path)
    assert result.exit_code == 0, result.output
    assert path.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("levels", [(1, 2, 4), (1,), (8, 32, 128)])
def test_ticks_of_requests_in_flight_are_whole_numbers(
    levels: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody has one and a half requests in flight. A rate may be a fraction."""
    from matplotlib import pyplot

    shown: list[list[str]] = []

    def note(figure: Any, *rest: Any, **more: Any) -> None:
        figure.canvas.draw()
        shown.extend([it.get_text() for it in axis.get_xticklabels()] for axis in figure.axes)

    monkeypatch.setattr(pyplot.Figure, "savefig", note)
    rates = {"requests_per_s": 1.0, "output_tokens_per_s": 0, "audio_s_per_s": 0, "ttft_p50": 0.1, "ttft_p99": 0.2}
    results = [{"concurrency": level, "rate": None, "median": rates} for level in levels]
    write_plot(Path("never.png"), "it", results)
    assert shown
    assert all(label.replace("\N{MINUS SIGN}", "").isdigit() for labels in shown for label in labels)
    shown.clear()
    write_plot(Path("never.png"), "it", [{"concurrency": None, "rate": rate, "median": rates} for rate in (0.2, 0.5)])
    assert any("." in label for labels in shown for label in labels)


def test_plot_without_matplotlib_is_refused_before_any_request(
    server: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = builtins.__import__

    def without(name: str, *rest: Any) -> Any:
        if name.startswith("matplotlib"):
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    result = bench("chat", "--url", server.url, "--plot", tmp_path / "out.png")
    assert result.exit_code == 2
    assert "pip install matplotlib" in result.output
    assert server.bodies == []


def test_failures_are_counted_named_and_end_in_status_1(serve: Callable[..., Any], sse: Any, tmp_path: Path) -> None:
    server = serve([(0, sse.event({"error": {"message": "stage 'llm' died"}}))])
    options = ["--requests", "2", "--repeats", "1", "--warmup", "0", "--plot", tmp_path / "out.png"]
    result = bench("chat", "--url", server.url, *options, "--json", tmp_path / "out.json")
    assert result.exit_code == 1
    assert "0 of 2" in result.stdout
    assert "c=1: 2 failed: error event: stage 'llm' died" in result.stderr
    assert json.loads((tmp_path / "out.json").read_text())["results"][0]["median"]["failed"] == 2
    assert (tmp_path / "out.png").exists()


def test_prompts_and_body_go_into_the_requests(server: Any, tmp_path: Path) -> None:
    prompts = tmp_path / "prompts"
    prompts.write_text("alpha\n\nbeta\n")
    result = bench(
        "chat", "--url", server.url, "--prompts", prompts, "--body", '{"temperature": 0}', "--requests", "2",
        "--repeats", "1", "--warmup", "0", "--model", "chosen",
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    assert [body["messages"][0]["content"] for body in server.bodies] == ["alpha", "beta"]
    assert {(body["temperature"], body["model"]) for body in server.bodies} == {(0, "chosen")}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--concurrency", "1,x"], "not a list of positive numbers"),
        (["--concurrency", "0"], "not a list of positive numbers"),
        (["--rate", "-1"], "not a list of positive numbers"),
        (["--rate", "1", "--concurrency", "1"], "exclude each other"),
        (["--body", "[1]"], "not a JSON object"),
        (["--url", "ftp://x"], "not an http"),
        (["--json", "no/such/folder/x.json"], "there is no folder"),
        (["--plot", "no/such/folder/x.png"], "there is no folder"),
    ],
)
def test_wrong_arguments_are_refused(arguments: list[str], message: str) -> None:
    result = bench("chat", *arguments)
    assert result.exit_code == 2
    assert message in result.output


def test_prompts_that_are_no_text_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "prompts.txt"
    file.write_bytes(b"\xff\xfe")
    result = bench("chat", "--prompts", str(file))
    assert result.exit_code == 2
    assert "is not UTF-8" in result.output


def test_a_server_that_speaks_something_else_is_one_line() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def greet() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.sendall(b"SSH-2.0-x\r\n")

        thread = threading.Thread(target=greet)
        thread.start()
        result = bench("chat", "--url", f"http://127.0.0.1:{listener.getsockname()[1]}")
        thread.join(5)
    assert result.exit_code == 1
    assert result.output.startswith("Error: cannot reach http://127.0.0.1")


def test_no_server_is_one_line_not_a_traceback() -> None:
    result = bench("chat", "--url", "http://127.0.0.1:1")
    assert result.exit_code == 1
    assert result.output.startswith("Error: cannot reach http://127.0.0.1:1")
