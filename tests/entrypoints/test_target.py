"""Where commands find a server: URLs, unix sockets, TLS over both."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import click
import pytest
import trio
from click.testing import CliRunner, Result
from tests.entrypoints.fakes import served

from omni_actors.entrypoints.bench import bench_command
from omni_actors.entrypoints.commands.replicas import replicas_group
from omni_actors.entrypoints.commands.target import Target
from omni_actors.entrypoints.options import ServerOptions
from omni_actors.entrypoints.server.listeners import tls_context
from omni_actors.protocol.errors import OmniError

REPLICAS = "/admin/replicas"


@pytest.mark.parametrize(
    ("url", "target", "said"),
    [
        ("http://127.0.0.1:8000/v1", Target("127.0.0.1", 8000, False, "/v1"), "http://127.0.0.1:8000/v1"),
        ("127.0.0.1:9", Target("127.0.0.1", 9, False), "http://127.0.0.1:9"),
        (
            "https://a.example/openai/v1/",
            Target("a.example", 443, True, "/openai/v1"),
            "https://a.example:443/openai/v1",
        ),
        ("http://[::1]:8000/", Target("::1", 8000, False), "http://[::1]:8000"),
    ],
)
def test_urls(url: str, target: Target, said: str) -> None:
    assert Target.parse(url) == target
    assert str(target) == said
    assert f"{target.root}/v1" in (target.base, "/v1")


@pytest.mark.parametrize(
    "url",
    [
        "ftp://x",
        "http://",
        "http://x:99999",
        "http://x:port",
        "http://me:secret@x",
        "http://x/?a=b",
        "http://x/#a",
        "unix:/run/x",
    ],
)
@pytest.mark.parametrize("command", [bench_command, replicas_group.commands["list"]], ids=["bench", "replicas"])
def test_what_is_no_url_is_refused(command: click.Command, url: str) -> None:
    done = CliRunner().invoke(command, ["--url", url])
    assert done.exit_code == 2, done.exception
    assert "--url" in done.output


async def run(command: click.Command, *words: str, **environment: str) -> Result:
    return await trio.to_thread.run_sync(partial(CliRunner().invoke, command, words, env=environment))


async def replicas(*words: str, **environment: str) -> Any:
    done = await run(replicas_group, *words, "--json", **environment)
    if done.exception is not None:
        raise done.exception
    return json.loads(done.output)


async def test_over_a_unix_socket(tmp_path: Path) -> None:
    path = str(tmp_path / "door")
    async with served(options=ServerOptions(unix_path=path)) as server:
        assert server.url == f"unix:{path}"
        for url in ("http://127.0.0.1:8000", "http://127.0.0.1/v1", "127.0.0.1/v1/"):  # as 'bench' takes it, or not
            assert await replicas("list", "--uds", path, "--url", url) == []
        done = await run(bench_command, "chat", "--uds", path, "--requests", "2", "--repeats", "1", "--warmup", "0")
        assert done.exit_code == 0, done.output
        assert "2 of 2" in done.output
    with pytest.raises(OmniError, match=f"The server at http://127.0.0.1:8000 on unix:{path} does not answer"):
        await replicas("list", "--uds", path)
    done = await run(bench_command, "chat", "--uds", path)
    assert done.exit_code == 1
    assert done.output.startswith(f"Error: cannot reach http://127.0.0.1:8000/v1 on unix:{path}: ")


@pytest.mark.parametrize("where", ["tcp", "unix"])
async def test_tls(certificate: Path, where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = str(tmp_path / "door") if where == "unix" else None
    tls = tls_context(str(certificate), None)
    async with served(options=ServerOptions(unix_path=path, admin_keys=("boss",)), tls=tls) as server:
        words = ["--url", server.url.replace("127.0.0.1", "localhost") if path is None else "https://localhost"]
        words += ["--uds", path] if path is not None else []
        monkeypatch.setenv("OMNI_ACTORS_ADMIN_KEY", "boss")
        assert await replicas("list", *words, SSL_CERT_FILE=str(certificate)) == []
        few = ("--requests", "1", "--repeats", "1", "--warmup", "0")
        done = await run(bench_command, "chat", *words, *few, SSL_CERT_FILE=str(certificate))
        assert done.exit_code == 0, done.output
        with pytest.raises(OmniError, match="certificate verify failed"):
            await replicas("list", *words)
        plain = [word.replace("https", "http") for word in words]
        with pytest.raises(OmniError, match="This port speaks TLS"):
            await replicas("list", *plain)
