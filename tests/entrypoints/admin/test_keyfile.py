"""The file in which a server leaves its admin key: who can read it, who finds it, and how long it is there."""

from __future__ import annotations

import http.client
import json
import logging
import os
import re
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from click.testing import CliRunner

from omni_actors.entrypoints.admin import keyfile
from omni_actors.entrypoints.admin.keyfile import find_key, folders, published
from omni_actors.entrypoints.cli import cli
from omni_actors.entrypoints.options import ServerOptions
from omni_actors.entrypoints.serve import warn_if_open
from omni_actors.protocol.errors import OmniError


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of its own. Gives the folder of the files."""
    monkeypatch.setenv("OMNI_ACTORS_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    return tmp_path / "cache" / f"admin-{os.geteuid()}"


@contextmanager
def listening(host: str = "127.0.0.1") -> Iterator[tuple[str, int]]:
    """A listening socket: its URL as ``serve`` says it, and its port."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.create_server((host, 0), family=family) as door:
        port = door.getsockname()[1]
        yield f"http://{f'[{host}]' if ':' in host else host}:{port}", port


def found(port: int, host: str = "127.0.0.1") -> str | None:
    with socket.create_connection((host, port)) as connection:
        return find_key(connection)


def test_only_its_user_can_read_the_key_file_and_the_server_removes_it(cache: Path) -> None:
    with listening() as (url, port), published("secret", [url]) as path:
        assert path is not None
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
        assert path.parent == cache
        assert path.name.startswith(f"{port}-{os.getpid()}-")
        assert json.loads(path.read_text())["key"] == "secret"
        assert found(port) == "secret"
    assert list(cache.iterdir()) == []


def test_several_servers_have_one_each_and_a_client_gets_that_of_its_own() -> None:
    with ExitStack() as stack:
        servers = [stack.enter_context(listening()) for _ in range(3)]
        for url, port in servers:
            stack.enter_context(published(f"of {port}", [url]))
        for _, port in servers:
            assert found(port) == f"of {port}"
        _, other = stack.enter_context(listening())  # another program, or another user's server
        assert found(other) is None


@pytest.mark.parametrize(
    ("said", "connected", "gets"),
    [
        ("0.0.0.0", "127.0.0.1", True),
        ("0.0.0.0", "127.0.0.2", True),
        ("127.0.0.2", "127.0.0.2", True),
        ("127.0.0.1", "127.0.0.2", False),
        ("::", "127.0.0.1", False),  # another program may have the IPv4 port
        ("10.0.0.1", "127.0.0.1", False),
    ],
)
def test_it_is_given_to_the_address_that_is_the_servers_and_to_no_other(said: str, connected: str, gets: bool) -> None:
    with listening("0.0.0.0") as (_, port):
        url = f"https://[{said}]:{port}" if ":" in said else f"https://{said}:{port}"
        with published("secret", [url]):
            assert (found(port, connected) == "secret") is gets


def test_over_ipv6() -> None:
    if not socket.has_ipv6:
        pytest.skip("no IPv6 here")
    with ExitStack() as stack:
        try:
            _, port = stack.enter_context(listening("::1"))
        except OSError:
            pytest.skip("no IPv6 here")
        for said in ("::1", "::"):
            with published("secret", [f"http://[{said}]:{port}"]):
                assert found(port, "::1") == "secret"


def test_over_a_unix_socket_the_key_is_found_by_the_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "door"
    (tmp_path / "link").symlink_to(path)
    with socket.socket(socket.AF_UNIX) as door:
        door.bind(str(path))
        door.listen()
        with published("secret", [f"unix:{path}"]), socket.socket(socket.AF_UNIX) as connection:
            connection.connect(str(path))
            assert find_key(connection, str(path)) == "secret"
            assert find_key(connection, str(tmp_path / "link")) == "secret"
            assert find_key(connection, str(tmp_path / "other")) is None
            monkeypatch.setattr(keyfile, "peer_user", lambda _: 12345)  # somebody else's socket is at the path now
            assert find_key(connection, str(path)) is None


def test_what_a_killed_server_left_is_not_used_and_goes_when_the_next_one_starts(cache: Path) -> None:
    with listening() as (url, port):
        script = "import sys; from omni_actors.entrypoints.admin.keyfile import published\n"
        script += f"with published('old', [{url!r}]): print(flush=True); sys.stdin.read()"
        left = subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        with left:
            assert left.stdout is not None
            left.stdout.readline()
            assert found(port) == "old"
            (file,) = cache.iterdir()
            left.kill()
        assert file.exists()
        assert found(port) is None
        with published("new", [url]) as path:
            assert found(port) == "new"
            assert list(cache.iterdir()) == [path]


def test_files_that_another_one_may_have_written_are_passed_over(cache: Path, tmp_path: Path) -> None:
    with listening() as (url, port), published("secret", [url]) as path:
        assert path is not None
        path.chmod(0o644)
        assert found(port) is None
        path.chmod(0o600)
        aside = path.rename(tmp_path / "aside")
        path.symlink_to(aside)
        assert found(port) is None
        path.unlink()
        aside.rename(path)
        (cache / "0.json").mkdir()
        (cache / "1.json").write_text("{")
        os.mkfifo(cache / "2.json")
        assert found(port) == "secret"


@pytest.mark.parametrize("how", ["a link", "another user's", "a file", "no place"])
def test_without_a_safe_folder_serve_logs_a_warning_and_goes_on(
    how: str, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    cache.parent.mkdir()
    if how == "a link":
        (tmp_path / "mine").mkdir()
        cache.symlink_to(tmp_path / "mine")
    elif how == "another user's":
        monkeypatch.setattr("omni_actors.entrypoints.admin.keyfile.os.geteuid", lambda: 12345)
        (cache.parent / "admin-12345").mkdir()
    elif how == "a file":
        cache.write_text("")
    else:
        monkeypatch.setenv("OMNI_ACTORS_CACHE", "/proc/nowhere")
    with listening() as (url, port), caplog.at_level(logging.WARNING), published("secret", [url]) as path:
        assert path is None
        assert found(port) is None
    assert "the admin key cannot be written" in caplog.text
    assert "--admin-key" in caplog.text
    assert not list((tmp_path / "mine").glob("*"))
    monkeypatch.undo()
    monkeypatch.setenv("OMNI_ACTORS_CACHE", str(cache.parent if how in ("a link", "a file") else "/proc/nowhere"))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))  # then it is there
    with listening() as (url, port), published("secret", [url]) as path:
        assert path is not None
        assert path.parent == folders()[1]
        assert found(port) == "secret"


def test_a_folder_open_to_other_users_is_closed(cache: Path) -> None:
    cache.mkdir(parents=True)
    cache.chmod(0o755)
    with listening() as (url, _), published("secret", [url]):
        assert stat.S_IMODE(cache.stat().st_mode) == 0o700


@contextmanager
def serving(*arguments: str) -> Iterator[tuple[subprocess.Popen[str], str, list[str]]]:
    """A server of the stub pipeline: its process, its URL, and its log until then."""
    command = [sys.executable, "-m", "omni_actors", "serve", "stub", "--platform", "cpu", "--port", "0", *arguments]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        assert process.stdout is not None
        lines: list[str] = []
        for line in process.stdout:
            if match := re.match(r"Serving \S+ on (http://\S+)", line):
                yield process, match[1], lines
                break
            lines.append(line)
        else:
            raise AssertionError("".join(lines))
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def replicas(url: str, *words: str, **environment: str) -> Any:
    """What ``omni-actors replicas list`` shows. Raises :class:`OmniError`."""
    done = CliRunner().invoke(cli, ["replicas", "list", "--json", "--url", url, *words], env=environment)
    if done.exception is not None:
        raise done.exception
    return json.loads(done.output)


def status(url: str, **headers: str) -> int:
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=20)
    try:
        connection.request("GET", "/admin/replicas", headers=headers)
        return connection.getresponse().status
    finally:
        connection.close()


@pytest.mark.deadline(60)
def test_serve_publishes_the_key_and_the_commands_find_it(cache: Path, tmp_path: Path) -> None:
    """Nothing but the file opens the routes, and it is in nobody's log."""
    elsewhere = str(tmp_path / "other")
    with serving("--host", "0.0.0.0") as (process, address, lines):
        url = address.replace("0.0.0.0", "127.0.0.1")
        (file,) = cache.iterdir()
        assert any(str(file) in line for line in lines)
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        key = json.loads(file.read_text())["key"]
        assert not any(key in line for line in lines)
        assert any("WARNING" in line and f"{address} without an API key" in line for line in lines)
        assert [it["state"] for it in replicas(url)] == ["ready"] * 3
        with pytest.raises(OmniError, match=r"none was found for it in .*/other/admin-.*--admin-key"):
            replicas(url, OMNI_ACTORS_CACHE=elsewhere)
        assert len(replicas(url, "--admin-key", key, OMNI_ACTORS_CACHE=elsewhere)) == 3
        with pytest.raises(OmniError, match="not an admin key of this server"):
            replicas(url, "--admin-key", "another")
        assert [status(url), status(url, Authorization=f"Bearer {key}")] == [401, 200]
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
        assert list(cache.iterdir()) == []


@pytest.mark.parametrize(
    ("urls", "keys", "beyond"),
    [
        (["http://127.0.0.1:8000", "http://[::1]:8000", "unix:/run/x"], (), []),
        (["http://0.0.0.0:8000"], (), ["http://0.0.0.0:8000"]),
        (["http://[::]:8000"], (), ["http://[::]:8000"]),
        (["http://127.0.0.1:1", "https://10.1.2.3:2", "http://[fe80::1]:3"], (), ["10.1.2.3:2", "fe80::1]:3"]),
        (["http://0.0.0.0:8000", "http://[::]:8000"], ("key",), []),
    ],
)
def test_beyond_this_machine_without_a_key_is_a_warning(
    urls: list[str], keys: tuple[str, ...], beyond: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    warn_if_open(urls, ServerOptions(api_keys=keys))
    assert [record.levelname for record in caplog.records] == ["WARNING"] * bool(beyond)
    assert all(url in caplog.text for url in beyond)
    assert "127.0.0.1" not in caplog.text
