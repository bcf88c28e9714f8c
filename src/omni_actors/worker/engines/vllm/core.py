"""vLLM's engine core, stepped by one thread: requests in, tokens out.

Only this module uses parts of vLLM beside its public engine (the scheduler's tables, the model runner's generators).
"""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from typing import Any, TypeAlias

import torch
from vllm.config.kv_events import KVEventsConfig
from vllm.engine.arg_utils import EngineArgs
from vllm.exceptions import VLLMClientError
from vllm.inputs.engine import MultiModalInput, mm_input, tokens_input
from vllm.lora.request import LoRARequest
from vllm.outputs import RequestOutput
from vllm.v1.engine.llm_engine import LLMEngine

import vllm
from omni_actors.protocol.errors import ErrorInfo, OmniError, invalid_request
from omni_actors.protocol.frames import Hello
from omni_actors.worker.engines.autoregressive.sampling import MAX_LOGPROBS
from omni_actors.worker.engines.vllm.events import CachedBlocks
from omni_actors.worker.engines.vllm.options import ENVIRONMENT, OWNED, VllmOptions
from omni_actors.worker.engines.vllm.told import ToldTokens
from vllm import SamplingParams

GRAMMAR_S = 30.0
"""Seconds to wait, at most, for the grammar of a resumed answer. (Other grammars are compiled beside other steps.)"""

Media: TypeAlias = MultiModalInput
"""A prompt's media after vLLM's processor, with their places in the prompt."""


class Core:
    """One model in vLLM. Raises :class:`OmniError` (500) for options that vLLM or this process does not support."""

    def __init__(self, hello: Hello, options: VllmOptions) -> None:
        if any(os.environ.get(name) != value for name, value in ENVIRONMENT.items() if name.endswith("PROCESSING")):
            raise _unusable("vLLM runs in a worker process of its own, with the environment that a plan gives it")
        torch.set_num_threads(hello.threads)
        config = _arguments(hello, options).create_engine_config()
        self.resumes_penalties = not config.use_v2_model_runner
        """Whether penalties count the tokens of earlier attempts. (vLLM's second model runner takes no logits
        processors.)"""
        if self.resumes_penalties:
            config.model_config.logits_processors = [ToldTokens]
        self._llm = LLMEngine.from_vllm_config(config, disable_log_stats=True)
        core = self._llm.engine_core.engine_core
        self._scheduler = core.scheduler
        self.cached_blocks = CachedBlocks() if options.kv_events else None
        if self.cached_blocks is not None:
            self._scheduler.kv_event_publisher = self.cached_blocks
        # With several ranks the model runners are in other processes of vLLM.
        driver = getattr(core.model_executor, "driver_worker", None)
        runner = getattr(getattr(driver, "worker", None), "model_runner", None)
        self._states: Mapping[str, Any] = getattr(runner, "requests", {})
        self._loras = {
            name: LoRARequest(name, number, path) for number, (name, path) in enumerate(options.loras.items(), 1)
        }
        self._names: dict[str, str] = {}  # ours → vLLM's
        self._level: int | None = None

    @property
    def max_model_len(self) -> int:
        return int(self._llm.vllm_config.model_config.max_model_len)

    @property
    def block_size(self) -> int:
        return int(self._llm.vllm_config.cache_config.block_size)

    @property
    def kv_blocks(self) -> int:
        return int(self._scheduler.kv_cache_manager.block_pool.num_gpu_blocks) - 1  # one block is never given out

    @property
    def kv_blocks_used(self) -> int:
        """The number of blocks that requests use, without blocks that are only kept for reuse."""
        return self.kv_blocks - int(self._scheduler.kv_cache_manager.block_pool.get_num_free_blocks())

    @property
    def running(self) -> int:
        return len(self._scheduler.running)

    @property
    def waiting(self) -> int:
        return len(self._names) - self.running

    @property
    def version(self) -> str:
        return str(vllm.__version__)

    @property
    def asleep(self) -> bool:
        return self._level is not None

    @property
    def busy(self) -> bool:
        """Whether :meth:`step` has work."""
        return bool(self._names) and not self.asleep

    def look(self, tokens: list[int], media: Mapping[str, Sequence[Any]]) -> tuple[list[int], Media]:
        """Process the media of a prompt, which have one placeholder token each.

        Returns:
            The tokens, with each placeholder as wide as its medium, and the processed media for :meth:`add`.

        Raises:
            OmniError: The model does not take the media, or their number is not the number of placeholders (400).
        """
        renderer = self._llm.renderer
        if not self._llm.model_config.supports_multimodal_inputs:
            raise invalid_request("This model takes text only.", param="messages")
        asked = {"prompt_token_ids": tokens, "multi_modal_data": {kind: list(them) for kind, them in media.items()}}
        try:
            # Beside vLLM's cache of what it has sent to its core: a request that is refused later is not sent.
            made = renderer.process_for_engine(asked, time.time(), skip_mm_cache=True)
        except (ValueError, VLLMClientError) as error:
            raise invalid_request(f"The prompt's media cannot be taken: {error}", param="messages") from error
        return list(made["prompt_token_ids"]), made

    def add(
        self,
        name: str,
        tokens: list[int],
        params: SamplingParams,
        *,
        salt: str | None = None,
        lora: str | None = None,
        told: int = 0,
        media: Media | None = None,
    ) -> None:
        """Add a request. The last ``told`` tokens are the first tokens of its answer; ``media`` come from :meth:`look`.

        Raises :class:`OmniError` (400) for a request that vLLM refuses.
        """
        adapter = None
        if lora is not None:
            adapter = self._loras.get(lora)
            if adapter is None:
                raise invalid_request(f"There is no adapter '{lora}'.", param="model")
        try:
            prompt = tokens_input(tokens, cache_salt=salt) if media is None else _with_media(tokens, media, salt)
            self._names[name] = self._llm.add_request(name, prompt, params, lora_request=adapter)
        except (ValueError, VLLMClientError) as error:
            raise invalid_request(str(error), param=getattr(error, "parameter", None)) from error
        if told and params.structured_outputs is not None:
            self._advance(name, tokens[-told:])

    def _advance(self, name: str, tokens: list[int]) -> None:
        """Advance the grammar of a resumed answer over the answer's first tokens."""
        structured = self._scheduler.requests[self._names[name]].structured_output_request
        compiled = structured._grammar
        grammar = compiled.result(GRAMMAR_S) if isinstance(compiled, Future) else compiled
        if not grammar.accept_tokens(self._names[name], tokens):
            self.abort(name)
            raise ValueError("the part of the answer that was already sent breaks its constraint")

    def abort(self, name: str) -> None:
        """Forget a request at once. Its blocks are free on return."""
        internal = self._names.pop(name, None)
        if internal is not None:
            self._llm.abort_request([internal], internal=True)

    def reseed(self, name: str, seed: int) -> None:
        """Draw the next token of a request with this seed.

        Does nothing before the request's first step, which uses the seed of the request's parameters, and with several
        ranks, whose generators are out of reach.
        """
        state = self._states.get(self._names[name])
        generator = None if state is None else getattr(state, "generator", None)
        if generator is not None:
            generator.manual_seed(seed)

    def step(self) -> list[RequestOutput]:
        """Run one iteration over all runnable requests, and forget the finished ones."""
        outputs: list[RequestOutput] = self._llm.step()
        for output in outputs:
            if output.finished:
                self._names.pop(output.request_id, None)
        return outputs

    def sleep(self, level: int) -> None:
        """Pause the engine. A ``level`` of 1 also frees the device's memory: the weights go to the host, and the cache
        is lost.

        Raises :class:`OmniError` (400) for level 1 with requests in the engine, or without ``enable_sleep_mode``.
        """
        if level not in (0, 1):
            raise invalid_request("'level' is 0 (pause) or 1 (also free the device's memory).", "level")
        if level and not self._llm.vllm_config.model_config.enable_sleep_mode:
            raise invalid_request(
                "Level 1 gives back the device's memory, for which the stage needs a GPU and "
                "'options.arguments: {enable_sleep_mode: true}' in the deploy file. Level 0 only pauses.",
                "level",
            )
        if level and self._names:
            raise invalid_request(
                f"Level 1 forgets the cache, and {len(self._names)} requests are in it. Use 'drain', and 'sleep' when "
                "'omni-actors replicas list' shows the replica as drained; level 0 keeps the requests.",
                "level",
            )
        self._llm.sleep(level, "keep")
        self._level = level

    def wake(self) -> None:
        """Continue after :meth:`sleep`. Does nothing when the engine is awake."""
        if self.asleep:
            self._llm.wake_up(None if self._level else ["scheduling"])
        self._level = None

    def close(self) -> None:
        for name in list(self._names):
            self.abort(name)
        self._llm.engine_core.shutdown()


def _with_media(tokens: list[int], media: Media, salt: str | None) -> MultiModalInput:
    made = media["mm_kwargs"], media["mm_hashes"], media["mm_placeholders"]
    return mm_input(tokens, *made, cache_salt=salt)


def _unusable(message: str) -> OmniError:
    return OmniError(ErrorInfo(message=message, code="bad_options", status=500))


def _arguments(hello: Hello, options: VllmOptions) -> EngineArgs:
    known = {field.name for field in dataclasses.fields(EngineArgs)}
    for name in options.arguments:
        if name in OWNED:
            raise _unusable(f"options.arguments: '{name}' is settled by {OWNED[name]}")
        if name not in known:
            raise _unusable(f"options.arguments: vLLM {vllm.__version__} has no argument '{name}'")
    chosen: dict[str, Any] = {
        "model": hello.model,
        "dtype": hello.dtype,
        # Without a setting: as much of the model's context as the KV cache can hold.
        "max_model_len": options.max_model_len or -1,
        "block_size": options.block_size,
        "max_num_seqs": options.max_batch,
        "max_num_batched_tokens": options.step_tokens,
        "enable_prefix_caching": options.prefix_cache,
        "max_logprobs": MAX_LOGPROBS,
        "generation_config": "vllm",  # defaults are filled in before
        "seed": 0,
        "disable_log_stats": True,
        "tensor_parallel_size": hello.strategy.get("tensor"),
        "pipeline_parallel_size": hello.strategy.get("pipeline"),
        "enable_expert_parallel": "expert" in hello.strategy or None,
    }
    if "mm_processor_cache_gb" not in options.arguments:
        chosen["mm_processor_cache_gb"] = 0  # pictures as they were made ready, in host memory: up to 4 GiB of them
    if options.kv_blocks is not None:
        chosen["num_gpu_blocks_override"] = options.kv_blocks
    if options.kv_memory_mib is not None:
        chosen["kv_cache_memory_bytes"] = options.kv_memory_mib << 20
    if options.loras:
        # One more, which stays empty: vLLM's plain torch kernels (its build for the CPU) give a row without an adapter
        # the last one's, beside a row that has one.
        chosen |= {"enable_lora": True, "max_loras": len(options.loras) + 1}
    if options.kv_events:
        chosen["kv_events_config"] = KVEventsConfig(enable_kv_cache_events=True, publisher="null")
    return EngineArgs(**{name: value for name, value in chosen.items() if value is not None}, **options.arguments)
