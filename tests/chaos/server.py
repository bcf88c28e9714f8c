"""The served process, and what it holds."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import trio
from tests.harness.ports import free_port

ADMIN_KEY = "chaos"

GAUGES = ("num_requests_running", "http_requests_in_flight", "num_requests_waiting")
STAGE_GAUGES = (
    "running",
    "jobs",
    "early",
    "arena_used_bytes",
    "inbox_used_bytes",
    "credits_outstanding",
    "kv_blocks_used",
    "cursors",
    "memory_bytes",
    "pictures_waiting",
    "pictures_writing",
)


@dataclass
class Census:
    """What the deployment holds at a moment."""

    processes: int
    descriptors: int
    memfds: int
    """Memory maps of nameless shared memory, in all its processes."""
    rss_mb: float
    shm_files: frozenset[str]


class Served:
    """``python -m omni_actors serve`` with its log in a file (or in a device that is always full)."""

    def __init__(self, process: subprocess.Popen[bytes], port: int, client: httpx.AsyncClient) -> None:
        self.process = process
        self.port = port
        self.client = client

    async def get(self, path: str) -> httpx.Response:
        return await self.client.get(path, timeout=20)

    async def replicas(self) -> list[dict[str, Any]]:
        """Every worker, as the server lists them."""
        listed: list[dict[str, Any]] = (await self.get("/admin/replicas")).json()["replicas"]
        return listed

    async def healthy(self) -> bool:
        try:
            return (await self.get("/health")).status_code == 200
        except httpx.HTTPError:
            return False

    async def wait_healthy(self, seconds: float) -> bool:
        with trio.move_on_after(seconds):
            while not await self.healthy():
                assert self.process.poll() is None, "the server is gone"
                await trio.sleep(0.05)
            return True
        return False

    async def gauges(self) -> dict[str, float]:
        """Those that must be zero when nothing is asked, and are not."""
        found: dict[str, float] = {}
        for line in (await self.get("/metrics")).text.splitlines():
            match = re.fullmatch(r"omni_actors_(\w+?)(\{.*\})? (\S+)", line)
            if match is None:
                continue
            name, labels, value = match[1], match[2] or "", float(match[3])
            known = name in GAUGES or name.removeprefix("stage_") in STAGE_GAUGES
            if name == "http_requests_in_flight":
                value -= 1  # this one
            if known and value:
                found[name + labels] = value
        return found

    def pids(self) -> list[int]:
        """The server's and all below it."""
        found, queue = [], [self.process.pid]
        while queue:
            pid = queue.pop()
            try:
                children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
            except OSError:
                continue
            found.append(pid)
            queue += map(int, children)
        return found

    def census(self) -> Census:
        pids = self.pids()
        memfds = 0
        for pid in pids:
            try:
                memfds += Path(f"/proc/{pid}/maps").read_text().count("/memfd:")
            except OSError:
                continue
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        rss = re.search(r"VmRSS:\s+(\d+)", status)
        return Census(
            processes=len(pids),
            descriptors=len(os.listdir(f"/proc/{self.process.pid}/fd")),
            memfds=memfds,
            rss_mb=int(rss[1]) / 1024 if rss else 0.0,
            shm_files=frozenset(os.listdir("/dev/shm")),
        )


@asynccontextmanager
async def serving(model: str, settings: Sequence[str], log: Path) -> AsyncIterator[Served]:
    """A ready deployment; at the end it has to leave as an operator asks it to, and nothing of it may stay."""
    port = free_port()
    arguments = [part for setting in settings for part in ("--set", setting)]
    with log.open("ab") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "omni_actors", "serve", model, "--port", str(port), "--platform", "cpu", *arguments],
            stdout=out,
            stderr=subprocess.STDOUT,
            env={**os.environ, "OMNI_ACTORS_ADMIN_KEY": ADMIN_KEY},
        )
    limits = httpx.Limits(max_connections=None)
    try:
        headers = {"Authorization": f"Bearer {ADMIN_KEY}"}
        url = f"http://127.0.0.1:{port}"
        async with httpx.AsyncClient(base_url=url, timeout=120, limits=limits, headers=headers) as client:
            served = Served(process, port, client)
            assert await served.wait_healthy(120), "the server did not become ready"
            yield served
            pids = served.pids()
        process.send_signal(signal.SIGTERM)
        with trio.fail_after(60):
            while process.poll() is None:
                await trio.sleep(0.05)
        assert process.returncode == 0, f"exit status {process.returncode}"
        left = [pid for pid in pids if Path(f"/proc/{pid}").exists()]
        assert not left, f"processes are left: {left}"
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
