"""Who may use the admin routes, over every door of the server."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trio
from click.testing import CliRunner
from tests.entrypoints.fakes import Server, served

from omni_actors.entrypoints.admin.access import is_admin, is_loopback
from omni_actors.entrypoints.app import ROUTES
from omni_actors.entrypoints.cli import cli
from omni_actors.entrypoints.middleware import Middleware, new_context, normal_path
from omni_actors.entrypoints.options import ServerOptions
from omni_actors.pipelines.plan import DeploymentLimits
from omni_actors.telemetry.metrics import Metrics

ADMIN_ROUTES = [(method, path) for method, path, _ in ROUTES if path.startswith("/admin")]

KEYED = ServerOptions(api_keys=("client",), admin_keys=("boss", "deputy"))
OPEN = ServerOptions(admin_keys=("boss",))

NGINX = "{} {} HTTP/1.0\r\nHost: {}\r\nConnection: close\r\nUser-Agent: curl/7.88.1\r\nAccept: */*\r\n\r\n"
"""What nginx sends to its upstream for ``location / { proxy_pass http://…; }``, byte for byte."""


async def status_of(server: Server, raw: str) -> tuple[int, str]:
    """The status and the text that bytes are answered with, by the server's TCP port or unix socket."""
    if server.url.startswith("unix:"):
        stream: Any = await trio.open_unix_socket(server.url.removeprefix("unix:"))
    else:
        host, _, port = server.url.removeprefix("http://").rpartition(":")
        stream = await trio.open_tcp_stream(host, int(port))
    async with stream:
        await stream.send_all(raw.encode())
        answer = b""
        with trio.move_on_after(5):
            async for data in stream:
                answer += data
                head, found, body = answer.partition(b"\r\n\r\n")
                if found and len(body) >= int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0] or 0):
                    break
    return int(answer.split()[1]), answer.partition(b"\r\n\r\n")[2].decode()


@asynccontextmanager
async def door(kind: str, options: ServerOptions, folder: Path) -> AsyncIterator[Server]:
    """The application on TCP (by our own server, or by Hypercorn) or on a unix socket."""
    if kind == "hypercorn":
        options = replace(options, server="hypercorn")
    elif kind == "unix":
        options = replace(options, unix_path=str(folder / "door"))
    async with served(options=options) as it:
        yield it


def test_there_are_admin_routes_and_all_are_under_the_rule() -> None:
    assert len(ADMIN_ROUTES) >= 2
    assert all(is_admin(normal_path(path)) for _, path in ADMIN_ROUTES)


@pytest.mark.parametrize("options", [OPEN, KEYED], ids=["open", "keyed"])
@pytest.mark.parametrize("kind", ["tcp", "hypercorn"])
async def test_a_loopback_address_opens_nothing(kind: str, options: ServerOptions, tmp_path: Path) -> None:
    """Everybody's requests come from there through a proxy on the same machine."""
    async with door(kind, options, tmp_path) as server:
        for method, path in ADMIN_ROUTES:
            for headers in ({}, {"Host": "localhost"}, {"Authorization": "Bearer"}, {"Authorization": "Bearer wrong"}):
                refused = await server.client.request(method, path, headers=headers)
                assert refused.status_code == 401, (method, path, headers)
                assert refused.headers["www-authenticate"] == "Bearer"
                error = refused.json()["error"]
                assert error["type"] == "authentication_error"
                assert error["code"] == (
                    "invalid_admin_key" if "Authorization" in headers else "admin_key_needed"
                ) or headers == {"Authorization": "Bearer"}
                assert "'Authorization: Bearer KEY'" in error["message"]
                assert "--admin-key" in error["message"]


async def test_nginx_as_it_is_configured_by_default_is_refused(tmp_path: Path) -> None:
    """The client's address, Host and TLS are lost on the way: what arrives looks like a program on this machine."""
    async with door("tcp", OPEN, tmp_path) as server:
        host = server.url.removeprefix("http://")
        for method, path in ADMIN_ROUTES:
            assert (await status_of(server, NGINX.format(method, path, host)))[0] == 401
        assert (await status_of(server, NGINX.format("GET", "/v1/models", host)))[0] == 200
    async with door("unix", OPEN, tmp_path) as server:
        for method, path in ADMIN_ROUTES:
            status, said = await status_of(server, NGINX.format(method, path, "localhost"))
            assert status == 401
            assert "HTTP/1.0" in said
        assert (await status_of(server, NGINX.format("GET", "/v1/models", "localhost")))[0] == 200


@pytest.mark.parametrize("kind", ["tcp", "unix", "hypercorn"])
async def test_an_admin_key_opens_the_admin_routes_and_an_api_key_does_not(kind: str, tmp_path: Path) -> None:
    async with door(kind, KEYED, tmp_path) as server:
        for method, path in ADMIN_ROUTES:
            for key in KEYED.admin_keys:  # also for a proxy and a web page: the key says who it is
                headers = {"Authorization": f"Bearer {key}", "X-Forwarded-For": "1.2.3.4", "Origin": "https://a"}
                assert (await server.client.request(method, path, headers=headers)).status_code not in (401, 403)
            for place in (path, "/admin", "/admin/what/there/is/not"):
                headers = {"Authorization": "Bearer client", "Host": "localhost"}
                refused = await server.client.request(method, place, headers=headers)
                assert (refused.status_code, refused.json()["error"]["code"]) == (403, "not_an_admin_key")
                assert refused.json()["error"]["type"] == "permission_error"
        headers = {"Authorization": "Bearer boss"}
        assert (await server.get("/v1/models", headers=headers)).status_code == 401  # it opens nothing else
        assert (await server.get("/admin/what/there/is/not", headers=headers)).status_code == 404


@pytest.mark.parametrize("options", [ServerOptions(), KEYED], ids=["open", "keyed"])
async def test_over_a_unix_socket_the_servers_own_user_needs_no_key(
    options: ServerOptions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with door("unix", options, tmp_path) as server:
        for method, path in ADMIN_ROUTES:
            for host in ("localhost", "127.0.0.1:8000", "[::1]:8000", "LOCALHOST"):
                answer = await server.client.request(method, path, headers={"Host": host})
                assert answer.status_code not in (401, 403), answer.text
        monkeypatch.setattr("omni_actors.entrypoints.admin.access.os.geteuid", lambda: 12345)
        refused = await server.get("/admin/replicas", headers={"Host": "localhost"})
        assert (refused.status_code, refused.json()["error"]["code"]) == (401, "admin_key_needed")


async def test_a_proxy_or_page_that_shows_itself_is_not_the_servers_user(tmp_path: Path) -> None:
    hosts = ("example.com", "127.0.0.1.example", "localhost@example", "[::1", "10.0.0.1")
    names = ("Origin", "Forwarded", "Via", "X-Real-IP", "X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto")
    shown = [{"Host": host} for host in hosts] + [{name: "x"} for name in (*names, "Sec-Fetch-Site")]
    async with door("unix", OPEN, tmp_path) as server:
        for headers in shown:
            for method, path in ADMIN_ROUTES:
                refused = await server.client.request(method, path, headers=headers)
                assert (refused.status_code, refused.json()["error"]["code"]) == (401, "admin_key_needed"), headers
                assert "proxy" in refused.json()["error"]["message"]


@pytest.mark.parametrize("kind", ["tcp", "hypercorn"])
async def test_no_spelling_of_a_path_goes_around_it(kind: str, tmp_path: Path) -> None:
    spellings = ["/admin/replicas/", "//admin//replicas", "/%61dmin/replicas", "/admin%2Freplicas", "/./admin/replicas"]
    spellings += ["/x/../admin/replicas", "a:/admin/replicas", "http://x/admin/replicas", "/admin/replicas?x=/live"]
    spellings += ["/%2561dmin/replicas", "/ADMIN/replicas", "/admin/replicas%00", "/live/../admin/replicas"]
    async with door(kind, OPEN, tmp_path) as server:
        for target in spellings:
            for method in ("GET", "HEAD", "POST"):
                raw = f"{method} {target} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
                status, said = await status_of(server, raw)
                assert status in (400, 401, 404), (method, target, status, said)


@pytest.mark.parametrize("path", ["/admin/own", "/admin"])
async def test_a_websocket_under_admin_is_under_the_same_rule(path: str) -> None:
    guard = Middleware(KEYED, DeploymentLimits(), Metrics())

    def admitted(key: str | None) -> int:
        headers = {} if key is None else {b"authorization": f"Bearer {key}".encode()}
        info = guard.admit(path, headers, new_context())
        return 101 if info is None else info.status

    assert [admitted(key) for key in (None, "wrong", "client", "boss")] == [401, 401, 403, 101]


@pytest.mark.parametrize(
    ("host", "local"),
    [
        ("127.0.0.1", True),
        ("127.8.8.8", True),
        ("::1", True),
        ("::ffff:127.0.0.1", True),
        ("10.0.0.1", False),
        ("0.0.0.0", False),
        ("::", False),
        ("::ffff:10.0.0.1", False),
        ("localhost", False),
        ("", False),
        (None, False),
    ],
)
def test_what_is_a_loopback_address(host: str | None, local: bool) -> None:
    assert is_loopback(host) is local


# Keys that are none.


@pytest.mark.parametrize("blank", ["", " ", "\t \n"])
@pytest.mark.parametrize(
    ("option", "variable"), [("--api-key", "OMNI_ACTORS_API_KEY"), ("--admin-key", "OMNI_ACTORS_ADMIN_KEY")]
)
def test_a_blank_key_is_refused_wherever_it_comes_from(option: str, variable: str, blank: str) -> None:
    for words, environment in (([option, blank], {}), ([], {variable: blank}), ([option, "a", option, blank], {})):
        done = CliRunner().invoke(cli, ["serve", "stub", *words], env=environment)
        assert done.exit_code == 2, done.output
        assert (variable if environment else option) in done.output
        assert "empty" in done.output


def test_a_key_that_http_would_change_and_one_with_two_rights_are_refused() -> None:
    for arguments, said in (
        (["--api-key", " a"], "blanks around the key"),
        (["--api-key", "a", "--admin-key", "a"], "must not open the admin routes"),
    ):
        done = CliRunner().invoke(cli, ["serve", "stub", *arguments])
        assert done.exit_code == 2
        assert said in done.output


@pytest.mark.parametrize(
    "keys", [{"api_keys": ("",)}, {"admin_keys": (" ",)}, {"api_keys": ("a",), "admin_keys": ("a",)}]
)
def test_an_embedder_cannot_set_unusable_keys_either(keys: dict[str, tuple[str, ...]]) -> None:
    with pytest.raises(ValueError, match="key"):
        ServerOptions(**keys)  # type: ignore[arg-type]


def test_the_commands_to_a_server_take_no_blank_admin_key() -> None:
    for words, environment in ((["--admin-key", ""], {}), ([], {"OMNI_ACTORS_ADMIN_KEY": ""})):
        done = CliRunner().invoke(cli, ["replicas", "list", *words], env=environment)
        assert done.exit_code == 2
        assert "empty" in done.output
