"""``bench``: load any OpenAI-style server and measure what its clients would feel."""

from omni_actors.entrypoints.bench.command import bench_command

__all__ = ["bench_command"]
