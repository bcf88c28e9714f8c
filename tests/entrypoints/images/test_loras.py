"""LoRA adapters that an operator loads while the server runs: who may, from where, and who may use them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.entrypoints.fakes import Server
from tests.entrypoints.images.painter import GENERATIONS, paint, painter, seen
from tests.entrypoints.test_middleware import error_of

from omni_actors.entrypoints.options import ServerOptions
from omni_actors.protocol.params import LoraScale

LOAD, UNLOAD = "/v1/load_lora_adapter", "/v1/unload_lora_adapter"
ADMIN = {"Authorization": "Bearer an-admin-key"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder of adapters, beside a file that is none of them."""
    loras = tmp_path / "loras"
    (loras / "ink").mkdir(parents=True)
    (loras / "pen.safetensors").write_bytes(b"pen")
    (tmp_path / "secret.safetensors").write_bytes(b"secret")
    (loras / "link.safetensors").symlink_to(tmp_path / "secret.safetensors")
    return loras


@asynccontextmanager
async def guarded(*folders: Path) -> AsyncIterator[Server]:
    options = ServerOptions(admin_keys=("an-admin-key",), lora_dirs=tuple(map(str, folders)))
    async with painter(paint, options=options) as server:
        yield server


async def command(server: Server, path: str, status: int = 200, **body: Any) -> Any:
    """The text of a success, or the error."""
    response = await server.post(path, body, headers=ADMIN)
    if status == 200:
        assert response.status_code == 200, response.text
        return response.text
    return error_of(response, status)


async def names(server: Server) -> list[str]:
    return [card["id"] for card in (await server.get("/v1/models")).json()["data"]]


async def test_a_loaded_adapter_is_listed_and_chosen_and_gone_when_it_is_unloaded(folder: Path) -> None:
    async with guarded(folder) as server:
        body = {"prompt": "a boat", "loras": [{"name": "pen", "scale": 0.5}]}
        assert error_of(await server.post(GENERATIONS, body), 400)["code"] == "lora_not_found"
        said = await command(server, LOAD, lora_name="pen", lora_path="pen.safetensors")
        assert said == "Success: LoRA adapter 'pen' added successfully."
        assert server.orchestrator.adapters.paths == {"pen": str(folder / "pen.safetensors")}
        assert await names(server) == ["painter", "pen"]
        assert (await server.post(GENERATIONS, body)).status_code == 200
        assert (await server.post(GENERATIONS, {"prompt": "a boat", "model": "pen"})).status_code == 200
        chosen = [seen(request).loras for request in server.orchestrator.requests]
        assert chosen == [[LoraScale("pen", 0.5)], [LoraScale("pen")]]
        said = await command(server, UNLOAD, lora_name="pen")
        assert said == "Success: LoRA adapter 'pen' removed successfully."
        assert await names(server) == ["painter"]
        assert error_of(await server.post(GENERATIONS, body), 400)["param"] == "loras[0]"


async def test_a_folder_an_absolute_path_and_a_replacement(folder: Path) -> None:
    async with guarded(folder) as server:
        await command(server, LOAD, lora_name="ink", lora_path="ink")
        await command(server, LOAD, 400, lora_name="ink", lora_path="ink")
        path = str(folder / "pen.safetensors")
        await command(server, LOAD, lora_name="ink", lora_path=path, load_inplace=True, base_model_name="painter")
        assert server.orchestrator.adapters.paths == {"ink": path}


@pytest.mark.parametrize(
    "path",
    [
        "../secret.safetensors",
        "link.safetensors",
        "/etc/passwd",
        "ink/../../secret.safetensors",
        "missing.safetensors",
        "a" * 4000,
    ],
)
async def test_nothing_outside_of_the_folders_is_loaded_or_told_apart_from_nothing(folder: Path, path: str) -> None:
    async with guarded(folder) as server:
        error = await command(server, LOAD, 404, lora_name="pen", lora_path=path)
        assert (error["param"], error["code"]) == ("lora_path", "lora_not_found")
        assert server.orchestrator.adapters.paths == {}


@pytest.mark.parametrize(
    ("body", "status", "param"),
    [
        ({"lora_path": "ink"}, 400, "lora_name"),
        ({"lora_name": "pen"}, 400, "lora_path"),
        ({"lora_name": "", "lora_path": "ink"}, 400, "lora_name"),
        ({"lora_name": "pen ink", "lora_path": "ink"}, 400, "lora_name"),
        ({"lora_name": "painter", "lora_path": "ink"}, 400, "lora_name"),
        ({"lora_name": "pen", "lora_path": ""}, 400, "lora_path"),
        ({"lora_name": "pen", "lora_path": "a\0b"}, 400, "lora_path"),
        ({"lora_name": "pen", "lora_path": "ink", "base_model_name": "other"}, 404, "model"),
        ({"lora_name": "pen", "lora_path": "ink", "rank": 4}, 400, "rank"),
    ],
)
async def test_a_bad_command_is_refused_by_name(folder: Path, body: dict[str, Any], status: int, param: str) -> None:
    async with guarded(folder) as server:
        assert (await command(server, LOAD, status, **body))["param"] == param


async def test_without_a_folder_nothing_is_loaded(folder: Path) -> None:
    async with guarded() as server:
        error = await command(server, LOAD, 400, lora_name="pen", lora_path=str(folder / "ink"))
        assert "--lora-dir" in error["message"]
        assert (await command(server, UNLOAD, 404, lora_name="pen"))["code"] == "lora_not_found"


async def test_only_operators_load_and_unload(folder: Path) -> None:
    async with guarded(folder) as server:
        body = {"lora_name": "pen", "lora_path": "ink"}
        for path in (LOAD, UNLOAD):
            assert error_of(await server.post(path, body), 401)["code"] == "admin_key_needed"
            response = await server.post(f"{path}/", body, headers={"Authorization": "Bearer wrong"})
            assert error_of(response, 401)["code"] == "invalid_admin_key"
        response = await server.client.post(LOAD, content=b"{}", headers={**ADMIN, "Content-Type": "text/plain"})
        error_of(response, 415)
        assert server.orchestrator.adapters.paths == {}
