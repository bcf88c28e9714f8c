"""The command line: help that is quick, errors that are one line, and explain as a person would use it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import click
import pytest
from tests.platforms import machines
from tests.platforms.distributions import install as install_distribution

from omni_actors.entrypoints.cli import COMMANDS, cli, leaves, main
from omni_actors.entrypoints.commands.completion import complete_model
from omni_actors.entrypoints.commands.deployment import Deployment, ready_plan
from omni_actors.entrypoints.commands.serve import _origins, serve
from omni_actors.entrypoints.server import Limits
from omni_actors.pipelines.plan import PlanError
from omni_actors.protocol.errors import OmniError, invalid_request


def call(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        main(list(arguments))
    said = capsys.readouterr()
    return int(ended.value.code or 0), said.out, said.err


def test_help_lists_every_command_without_importing_one() -> None:
    program = (
        "import sys\n"
        "from omni_actors.entrypoints.cli import main\n"
        "try: main(['--help'])\n"
        "except SystemExit as end: assert not end.code\n"
        "heavy = {'torch', 'transformers', 'numpy', 'quart', 'trio', 'yaml', 'rich'} & sys.modules.keys()\n"
        "assert not heavy, heavy\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert all(name in done.stdout for name in COMMANDS)


@pytest.mark.parametrize("name", [*COMMANDS, "models pull", "models list"])
def test_every_command_has_help_and_never_imports_torch(name: str) -> None:
    program = (
        "import sys\n"
        "from omni_actors.entrypoints.cli import main\n"
        f"try: main({[*name.split(), '--help']!r})\n"
        "except SystemExit as end: assert not end.code\n"
        "assert not {'torch', 'transformers'} & sys.modules.keys()\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert f"Usage: omni-actors {name}" in done.stdout
    assert len(done.stdout.splitlines()) > 5


def test_the_summaries_are_those_of_the_commands() -> None:
    context = click.Context(cli)
    for name in COMMANDS:
        command = cli.get_command(context, name)
        assert command is not None
        assert command.name == name
        assert command.help


def test_an_unknown_command_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = call(capsys, "srve")
    assert code == 2
    assert "No such command 'srve'" in err


def test_what_an_operator_can_put_right_is_one_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    deploy = tmp_path / "deploy.yaml"
    deploy.write_text("stages:\n  a:\n    replica: 2\n")
    code, out, err = call(capsys, "explain", "stub", "--platform", "cpu", "--deploy", str(deploy))
    assert (code, out) == (1, "")
    assert err == f"Error: {deploy}:3: stages.a: unknown key 'replica'; did you mean 'replicas'?\n"


def test_explain_shows_values_with_their_origin(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    deploy = tmp_path / "d.yaml"
    deploy.write_text("stages: {b: {threads: 3}}\n")
    arguments = ("explain", "stub", "--platform", "cpu", "--deploy", str(deploy), "--set", "stages.a.replicas=2")
    code, out, _ = call(capsys, *arguments)
    assert code == 0
    assert "a → b.text" in out
    assert "command line --set stages.a.replicas=2" in " ".join(out.split())
    code, out, _ = call(capsys, *arguments, "--json")
    values = json.loads(out)["values"]
    assert values["stages.a.replicas"]["value"] == 2
    assert values["stages.b.threads"] == {"value": 3, "origin": "overlay", "where": f"{deploy}:1"}


def test_explain_lists_every_setting(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = call(capsys, "explain", "stub", "--platform", "cpu", "--keys")
    assert code == 0
    assert "stages.a.replicas" in out
    code, out, _ = call(capsys, "explain", "stub", "--platform", "cpu", "--keys", "--json")
    assert json.loads(out)["limits.max_inflight"].startswith("Most requests that are admitted")


def test_explain_says_that_serve_would_refuse_here(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    machines.use(monkeypatch, tmp_path)
    code, out, err = call(capsys, "explain", "stub", "--platform", "cuda")
    assert code == 0
    assert "cuda:0" in out
    assert "'serve' would refuse this here" in err
    assert "no NVIDIA device on this machine" in err
    assert "refuse" not in call(capsys, "explain", "stub", "--platform", "cpu")[2]


def test_serving_without_weights_names_the_missing_ones(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    absent = tmp_path / "nothing"
    (tmp_path / "config.json").write_text('{"architectures": ["LlamaForCausalLM"]}')
    code, _, err = call(
        capsys, "serve", str(tmp_path), "--platform", "cpu", "--set", f"stages.llm.model={absent}", "--port", "0"
    )
    assert code == 1
    assert "weights are missing" in err
    assert str(absent) in err


def test_a_limit_of_keys_is_a_setting() -> None:
    plan = Deployment("stub", None, (), "cpu", None, None, api_key_limit=3).plan()
    assert plan.limits.max_per_key == 3
    assert Deployment("stub", None, (), "cpu", None, None).plan().limits.max_per_key is None


def test_a_deadline_is_a_setting() -> None:
    plan = Deployment("stub", None, (), "cpu", None, "echo", deadline=2.5).plan()
    assert (plan.limits.deadline_s, plan.served_model_name) == (2.5, "echo")
    assert str(plan.provenance["limits.deadline_s"]) == "command line --deadline 2.5"


def test_a_plan_without_weights_is_ready() -> None:
    assert ready_plan(Deployment("stub", None, (), "cpu", None, None)).name == "stub"


@pytest.mark.parametrize("key", ["", " "])
def test_an_empty_key_is_no_key_to_serve_with(capsys: pytest.CaptureFixture[str], key: str) -> None:
    """As when a variable that should have held it was not set."""
    code, _, err = call(capsys, "serve", "stub", "--platform", "cpu", "--port", "0", "--api-key", key)
    assert code == 2
    assert "--api-key is empty" in err


def test_the_word_none_closes_cors() -> None:
    assert _origins(("none",)) == ()
    assert _origins(()) == ("*",)
    assert _origins(("https://a.example",)) == ("https://a.example",)
    with pytest.raises(click.UsageError):
        _origins(("none", "https://a.example"))


def test_errors_wrapped_by_nurseries_are_still_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def raising(error: BaseException) -> None:
        monkeypatch.setattr(cli, "main", lambda *_, **__: (_ for _ in ()).throw(error))

    nested = BaseExceptionGroup("", [ExceptionGroup("", [PlanError("no room"), invalid_request("no room")])])
    raising(nested)
    assert call(capsys) == (1, "", "Error: no room\n")
    raising(BaseExceptionGroup("", [KeyboardInterrupt()]))
    assert call(capsys)[0] == 130
    raising(ExceptionGroup("", [PlanError("no room"), ZeroDivisionError()]))
    with pytest.raises(ExceptionGroup):
        main([])
    assert sum(isinstance(leaf, OmniError) for leaf in leaves(nested)) == 2


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["srve"], "No such command 'srve'; did you mean 'serve'?"),
        (["replicas", "lst"], "No such command 'lst'; did you mean 'list'?"),
        (["qqqq"], "No such command 'qqqq'; known: bench, completion, "),
        (["serve", "--hots", "x"], "'--host'"),
        (["serve", "--limit", "conections=3"], "did you mean 'connections'?"),
        (["--verion"], "'--version'"),
    ],
)
def test_an_unknown_name_is_refused_with_a_suggestion(
    capsys: pytest.CaptureFixture[str], words: list[str], said: str
) -> None:
    code, _, error = call(capsys, *words)
    assert code == 2
    assert said in error


def test_pipelines_of_plug_ins_are_completed_and_those_without_a_model_are_not(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    install_distribution(tmp_path, "somebodys", "", group="omni_actors.pipelines", attribute="PIPELINE")
    monkeypatch.syspath_prepend(tmp_path)
    context = click.Context(serve)
    assert [it.value for it in complete_model(context, serve.params[0], "some")] == ["some", "somebodys"]
    assert [it.value for it in complete_model(context, serve.params[0], "stub")] == ["stub"]


def completed(words: str, at: int) -> list[str]:
    """What a shell is told of a word that is being typed."""
    own = {"_OMNI_ACTORS_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": str(at)}
    command = [sys.executable, "-m", "omni_actors"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=os.environ | own, check=True)
    return done.stdout.split()


def test_a_shell_is_told_commands_options_and_pipelines() -> None:
    assert set(completed("omni-actors ", 1)) == {f"plain,{name}" for name in COMMANDS}
    assert completed("omni-actors serve --por", 2) == ["plain,--port"]
    assert completed("omni-actors serve omni", 2) == ["dir,omni", "plain,omni-demo"]
    assert completed("omni-actors replicas re", 2) == ["plain,replace", "plain,restart"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_completion_script_is_one_of_its_shell(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, script, _ = call(capsys, "completion", shell)
    assert code == 0
    assert f"_OMNI_ACTORS_COMPLETE={shell}_complete" in script
    if (program := shutil.which(shell)) is not None:
        checked = subprocess.run([program, "-n"], input=script, capture_output=True, text=True, timeout=30, check=False)
        assert (checked.returncode, checked.stderr) == (0, "")


def test_bash_completes_with_it(tmp_path: Path) -> None:
    """As it is when a user types ``omni-actors doct`` and a tab."""
    program = tmp_path / "omni-actors"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m omni_actors "$@"\n')
    program.chmod(0o755)
    typed = (
        'eval "$(omni-actors completion bash)"; COMP_WORDS=(omni-actors doct); COMP_CWORD=1\n'
        '_omni_actors_completion omni-actors doct omni-actors; echo "${COMPREPLY[@]}"; complete -p omni-actors'
    )
    environment = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    bash = ["bash", "--norc", "-c", typed]
    done = subprocess.run(bash, capture_output=True, text=True, timeout=60, env=environment, check=True)
    offered, registered = done.stdout.splitlines()
    assert offered == "doctor"
    assert "_omni_actors_completion" in registered


def test_the_limits_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = call(capsys, "serve", "--limit", "list")
    assert code == 0
    assert all(field.name in out for field in fields(Limits))
