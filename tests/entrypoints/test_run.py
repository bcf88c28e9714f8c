"""``run``: one request through real worker processes, from the shell."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "omni_actors", "run", "--model", "stub", "--platform", "cpu", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.deadline(60)
def test_the_answer_is_printed() -> None:
    done = run("--params", '{"stub": {"text": "hello there"}}')
    assert (done.returncode, done.stdout) == (0, "hello there\n"), done.stderr


@pytest.mark.deadline(60)
def test_json_has_text_usage_and_times() -> None:
    done = run("--params", '{"stub": {"text": "hi"}}', "--json")
    answer = json.loads(done.stdout)
    assert (answer["text"], answer["finish_reason"], answer["audio_file"]) == ("hi", "stop", None)
    assert set(answer["usage"]) == {"a", "b", "c"}
    assert 0 < answer["first_text_s"] <= answer["total_s"] < 60


@pytest.mark.deadline(60)
def test_a_failure_is_one_line_behind_the_workers_own() -> None:
    done = run("--params", '{"stub": {"text": "hi", "fail": "b"}}')
    assert (done.returncode, done.stdout) == (1, "")
    *logged, said = done.stderr.splitlines()
    assert said == "Error: Stage 'b': asked to fail"
    assert [" b#0@1[" in line and "asked to fail" in line for line in logged] == [True]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--params", "{"), "--params is no JSON"),
        (("--params", "[]"), "--params takes a JSON object"),
        (("hello", "--output", "x.wav"), "answers in text only"),
        (("hello", "--output", "no/such/folder/x.wav"), "there is no folder 'no/such/folder'"),
        ((), "Give a prompt or a file"),
        (("--model", "stub-image", "x", "-o", "x.gif"), "images are .png, .webp, .jpg, .jpeg files; not 'x.gif'"),
        (("--model", "stub-voice", "x", "--steps", "3"), "--steps has no effect"),
    ],
)
def test_mistakes_are_found_before_anything_starts(arguments: tuple[str, ...], message: str) -> None:
    done = run(*arguments)
    assert done.returncode in (1, 2)
    assert message in done.stderr


@pytest.mark.deadline(60)
def test_pictures_go_to_files_and_their_seeds_are_told(tmp_path: Path) -> None:
    target = tmp_path / "seven.png"
    common = ("--model", "stub-image", "a seven", "--task", "image", "--steps", "3", "--size", "64x32")
    done = run(*common, "-o", str(target), "--seed", "5", "-n", "2")
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    assert [Image.open(tmp_path / f"seven-{place}.png").size for place in (0, 1)] == [(64, 32)] * 2
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["seven-0.png", "seven-1.png"]
    assert f"{tmp_path}/seven-1.png: 64x32, seed 6" in done.stderr
    done = run(*common, "-o", str(target.with_suffix(".webp")), "--seed", "6", "--json")
    answer = json.loads(done.stdout)
    assert answer["images"] == [{"file": str(target.with_suffix(".webp")), "width": 64, "height": 32, "seed": 6}]
    assert answer["usage"]["image"]["steps"] == 3
    assert Image.open(target.with_suffix(".webp")).format == "WEBP"


@pytest.mark.deadline(60)
def test_a_picture_is_edited_under_a_mask(tmp_path: Path) -> None:
    picture, mask, edited = (tmp_path / f"{name}.png" for name in ("picture", "mask", "edited"))
    Image.new("RGB", (64, 64), (90, 90, 90)).save(picture)
    half = Image.new("RGBA", (64, 64), (0, 0, 0, 255))
    half.paste((0, 0, 0, 0), (0, 0, 32, 64))
    half.save(mask)
    asked = ("--model", "stub-image", "night", "--image", str(picture), "--mask", str(mask), "-o", str(edited))
    done = run(*asked, "--steps", "2")
    assert done.returncode == 0, done.stderr
    kept = Image.open(edited).convert("RGB").crop((32, 0, 64, 64))
    assert kept.getcolors() == [(32 * 64, (90, 90, 90))]


@pytest.mark.weights
@pytest.mark.slow
@pytest.mark.deadline(120)
@pytest.mark.usefixtures("demo_weights")
def test_speech_to_a_file_and_back(tmp_path: Path) -> None:
    spoken = tmp_path / "paris.flac"
    common = [sys.executable, "-m", "omni_actors", "run", "--platform", "cpu"]
    say = [*common, "Paris is the capital of France.", "--task", "speech", "--output", str(spoken)]
    done = subprocess.run(say, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    assert spoken.read_bytes().startswith(b"fLaC")
    assert [path.name for path in tmp_path.iterdir()] == ["paris.flac"]
    hear = [*common, "--audio", str(spoken), "--task", "transcription"]
    done = subprocess.run(hear, capture_output=True, text=True, timeout=100, check=False)
    assert "capital of france" in done.stdout.lower(), done.stderr


@pytest.mark.deadline(60)
def test_an_interrupt_ends_the_run_immediately_and_silently() -> None:
    command = [
        sys.executable,
        "-m",
        "omni_actors",
        "run",
        "--model",
        "stub",
        "--platform",
        "cpu",
        "--log-level",
        "info",
    ]
    command += ["--platform", "cpu", "--params", '{"stub": {"text": "hi", "stall": "b"}}']
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        ready = 0
        while ready < 3:
            ready += "is ready" in process.stderr.readline()
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=30)
    assert (process.returncode, out) == (130, "")
    assert "Traceback" not in err
