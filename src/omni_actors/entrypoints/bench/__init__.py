"""``bench``: load a server with OpenAI's API, and measure latency and throughput as clients see them."""

from omni_actors.entrypoints.bench.command import bench_command

__all__ = ["bench_command"]
