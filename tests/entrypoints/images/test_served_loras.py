"""LoRA adapters over HTTP with a real model: they change pictures, and survive the worker that loaded them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
import trio
from safetensors.torch import load_file, save_file
from tests.entrypoints.images.painter import GENERATIONS
from tests.entrypoints.images.test_loras import ADMIN, LOAD, UNLOAD
from tests.entrypoints.test_middleware import error_of

from omni_actors import ServerOptions, http_app, open_omni, serve_http

pytestmark = [pytest.mark.slow, pytest.mark.torch, pytest.mark.deadline(120)]

MODULE = "transformer_blocks.0.attn.to_q"


def adapter_file(model: Path, path: Path) -> Path:
    """Write an adapter that turns the queries of the first block upside down, in peft's format."""
    (weights,) = (model / "transformer").glob("*.safetensors")
    weight = load_file(weights)[f"{MODULE}.weight"]
    up, scales, down = torch.linalg.svd(weight.float())
    rank = 4
    tensors = {
        f"transformer.{MODULE}.lora_A.weight": down[:rank].contiguous(),
        f"transformer.{MODULE}.lora_B.weight": (up[:, :rank] * scales[:rank] * -20.0).contiguous(),
    }
    save_file(tensors, path)
    return path


async def test_an_adapter_is_loaded_chosen_kept_over_a_restart_and_unloaded(
    tiny_model: Callable[[str], Path], tmp_path: Path
) -> None:
    model = tiny_model("sd3")
    adapter_file(model, tmp_path / "pen.safetensors")
    (tmp_path / "broken.safetensors").write_bytes(b"none")
    options = ServerOptions(port=0, admin_keys=("an-admin-key",), lora_dirs=(str(tmp_path),))
    async with open_omni(model) as omni, trio.open_nursery() as nursery:
        (url,) = await nursery.start(partial(serve_http, omni, app=http_app(omni, options)))
        async with httpx.AsyncClient(base_url=url, timeout=60) as client:
            body = {"prompt": "a boat", "seed": 3, "steps": 2}

            async def paint(**more: Any) -> str:
                response = await client.post(GENERATIONS, json={**body, **more})
                assert response.status_code == 200, response.text
                picture: str = response.json()["data"][0]["b64_json"]
                return picture

            async def command(path: str, **fields: Any) -> httpx.Response:
                return await client.post(path, json=fields, headers=ADMIN)

            plain = await paint()
            assert await paint() == plain
            response = await command(LOAD, lora_name="pen", lora_path="broken.safetensors")
            assert response.status_code == 400, response.text
            response = await command(LOAD, lora_name="pen", lora_path="pen.safetensors")
            assert response.status_code == 200, response.text
            changed = await paint(lora="pen")
            assert changed != plain
            assert await paint(model="pen") == changed
            assert await paint(loras=[{"name": "pen", "scale": 0.0}]) == plain
            assert await paint() == plain
            with trio.fail_after(60):
                await omni.orchestrator.control.replace("image", 0)
            assert await paint(lora="pen") == changed
            assert (await command(UNLOAD, lora_name="pen")).status_code == 200
            refused = await client.post(GENERATIONS, json={**body, "lora": "pen"})
            assert error_of(refused, 400)["code"] == "lora_not_found"
        nursery.cancel_scope.cancel()
