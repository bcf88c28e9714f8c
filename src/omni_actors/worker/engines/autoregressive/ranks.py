"""The ranks that share an autoregressive stage's network: a leader, and followers.

A follower runs the leader's passes over its own part of the network and of the cache. The leader alone knows requests.
Before each pass the leader sends the pass's description over the socketpair to each follower (measured: 20 µs for a
step's frame, where a broadcast by gloo takes 300), and the ranks meet in the network's collectives. Other changes of
the cache are sent in the same way, so that all caches hold the same tokens in the same places.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import msgspec
import torch

from omni_actors.platforms.runtime.kernels import Kernels
from omni_actors.protocol.codec import frame
from omni_actors.protocol.errors import ErrorInfo, OmniError
from omni_actors.protocol.frames import Hello, Ready
from omni_actors.worker.collectives import ProcessGroup
from omni_actors.worker.engines.autoregressive.adapter import AutoregressiveAdapter
from omni_actors.worker.engines.autoregressive.attention import Extent
from omni_actors.worker.engines.autoregressive.checks import load_facts
from omni_actors.worker.engines.autoregressive.decoder import Decoder, Span
from omni_actors.worker.engines.autoregressive.rank_messages import Attach, Copy, Order, Pass, ZeroBlocks
from omni_actors.worker.engines.autoregressive.runner import ModelRunner
from omni_actors.worker.named import class_named
from omni_actors.worker.ranks import Followers, receive


def lead(
    hello: Hello, followers: Followers | None, progress: Callable[[str, float | None], None]
) -> tuple[AutoregressiveAdapter, dict[str, Any]]:
    """The adapter, loaded, and what it says of itself: with the whole network, or with the first rank's part of it, and
    then the others have loaded theirs."""
    if hello.ranks and followers is None:
        raise OmniError(ErrorInfo(message="ranks are processes: they are led by a worker process", status=500))
    adapter = _adapter(hello)
    if followers is None:
        return adapter, load_facts(adapter, adapter.load(progress))
    progress("meeting the other ranks", None)
    adapter.group = ProcessGroup(hello, followers.rendezvous)
    try:
        info = load_facts(adapter, adapter.load(progress))
        progress("waiting for the other ranks", None)
        followers.wait_loaded()
    except BaseException:
        adapter.group.close()
        raise
    return adapter, info


def follow(hello: Hello, kernels: Kernels, control: socket.socket, rendezvous: int) -> None:
    """Load this rank's part of the network, say so on ``control``, and do as the leader does until it lets go. Raises
    as :func:`execute` does."""
    adapter = _adapter(hello)
    adapter.group = ProcessGroup(hello, rendezvous)
    adapter.load(lambda text, fraction: None)
    control.sendall(frame(Ready({})))
    execute(adapter.decoder, kernels, control)
    adapter.group.close()


def _adapter(hello: Hello) -> AutoregressiveAdapter:
    torch.set_num_threads(hello.threads)
    return class_named(hello.adapter, AutoregressiveAdapter, "adapter")(hello)


@torch.inference_mode()
def execute(decoder: Decoder, kernels: Kernels, control: socket.socket) -> None:
    """Do as the leader does until it lets go. Raises what the network raises: then the leader has raised it too, or
    waits for this rank, whose end it sees."""
    orders = msgspec.msgpack.Decoder(Order)
    runner: ModelRunner | None = None
    while (body := receive(control)) is not None:
        order = orders.decode(body)
        if isinstance(order, Attach):
            runner = ModelRunner(decoder, order.blocks, order.block_size, kernels)
            continue
        assert runner is not None
        match order:
            case Pass():
                extents = [Extent(*it) for it in order.extents]
                inputs = runner.inputs(order.tokens, order.rows, extents, [Span(*it) for it in order.spans])
                if (known := order.known_on(decoder.device)) is not None:
                    inputs = replace(inputs, known=known)
                runner.compute(inputs, extents, whole=False)
            case Copy():
                runner.copy(order.source, order.target)
            case ZeroBlocks():
                runner.zero_blocks(order.blocks)
