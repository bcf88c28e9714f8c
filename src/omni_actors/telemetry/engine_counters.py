"""The HELP texts of the numbers that workers report about themselves, which ``/metrics`` shows by stage and replica.

A worker reports plain names; a name that ends in ``_total`` is a counter, and any other is a gauge. The metric of
``steps_total`` is ``omni_actors_stage_steps_total``. Engines of plug-ins may report names that are not here.
"""

from __future__ import annotations

from collections.abc import Mapping

ENGINE_COUNTERS: Mapping[str, str] = {
    # every worker
    "jobs": "Requests that the worker has in memory, finished ones whose output is still on its way included.",
    "credits_outstanding": "Chunks sent to other workers and not acknowledged yet.",
    "arena_bytes": "Size of the shared memory for payloads to other workers.",
    "arena_used_bytes": "Shared memory that payloads on their way to other workers take.",
    "inbox_bytes": "Size of the memory for payloads that arrive by TCP.",
    "inbox_used_bytes": "Memory of payloads that arrived by TCP and are not acknowledged yet.",
    "early": "Requests whose first chunks arrived before the request itself.",
    "chunks_total": "Chunks sent to other workers.",
    "chunk_bytes_total": "Bytes of the tensors in chunks sent to other workers.",
    "device_links": "Links to other workers over which tensors stay on the device.",
    "device_used_bytes": "Device memory that payloads on their way to other workers take.",
    "device_payloads_total": "Payloads handed over on the device.",
    "device_payload_bytes_total": "Bytes of the payloads handed over on the device.",
    # every engine
    "requests": "Requests that the engine holds.",
    "waiting": "Sequences (of one-shot engines: inputs) that wait for a place in a batch.",
    "running": "Sequences (of one-shot engines: requests with output under way) that are being computed.",
    "finished_total": "Requests that the engine finished.",
    "failures_total": "Requests that failed in the engine.",
    "aborted_total": "Requests that were cancelled while the engine held them.",
    "out_of_memory_total": "Steps or batches that ran short of memory and were run again in smaller parts.",
    # engines that write text
    "steps_total": "Steps of the engine; one step computes one batch.",
    "prompt_tokens_total": "Tokens of the prompts that the engine took.",
    "completion_tokens_total": "Tokens that the engine chose.",
    "resumed_tokens_total": "Tokens taken over from an earlier attempt of a request whose worker died.",
    "computed_tokens_total": "Tokens that steps computed, of prompts and of answers.",
    "recomputed_prompt_tokens_total": "Prompt tokens that were computed again, after preemption.",
    "prefix_hit_tokens_total": "Prompt tokens that were found in the prefix cache.",
    "preemptions_total": "Sequences that gave their KV blocks back to make room for others.",
    "recorded_steps_total": "Decode steps that replayed a recorded CUDA graph.",
    "kv_blocks_used": "Blocks of the KV cache in use by requests, without blocks that are only kept for reuse.",
    "kv_blocks_cached": "Blocks in the prefix cache (vLLM with kv_events).",
    "kv_blocks_stored_total": "Blocks that entered the prefix cache (vLLM with kv_events).",
    "kv_blocks_removed_total": "Blocks that left the prefix cache (vLLM with kv_events).",
    "kv_exports": "Prompts whose keys and values have not left the prefill pool yet.",
    "kv_exported_tokens_total": "Tokens whose keys and values left the prefill pool.",
    "kv_imports": "Prompts whose keys and values have not arrived in the decode pool yet.",
    "kv_imported_tokens_total": "Tokens whose keys and values arrived in the decode pool.",
    "kv_blocks_reserved": "Blocks of the KV cache that are reserved for prompts on their way to the decode pool.",
    "swapped": "Sequences of the decode pool whose keys and values wait in host memory.",
    # one-shot engines
    "batches_total": "Batches that the engine ran.",
    "batched_items_total": "Inputs in those batches; an input that is run again counts again.",
    "items_total": "Inputs that were computed successfully.",
    # diffusion engines
    "cursors": "Pictures that the engine holds, finished ones of a request included whose other pictures are not.",
    "memory_bytes": "Memory that the pictures under way hold, by estimate, without the peaks of single steps.",
    "pictures_total": "Pictures (of layered ones: layers) that the engine decoded and sent on.",
    "picture_steps_total": "Denoising steps of all pictures; pictures that share a forward count one each.",
    "skipped_steps_total": "Denoising steps that a step cache answered, wholly or in part.",
    "forwards_total": "Forwards of the denoiser that succeeded.",
    "rows_total": "Rows of those forwards; a picture with guidance takes two.",
    "encodes_total": "Requests whose prompt and pictures were encoded.",
    "decodes_total": "Pictures that were decoded.",
    "previews_total": "Previews of unfinished pictures that were sent on.",
    # model families
    "prompt_cache_hits_total": "Prompts whose embedding was found in the cache.",
    "prompt_cache_misses_total": "Prompts whose embedding had to be computed.",
    "cache_hits_total": "Images, videos and clips whose encoding was found in the encoder's cache.",
    "cache_misses_total": "Images, videos and clips that the encoder had to compute.",
    "clip_hits_total": "Reference clips whose voice was found in the cache.",
    "clip_misses_total": "Reference clips whose voice had to be computed.",
    "clip_evictions_total": "Reference clips that left the cache for others.",
    # the media process
    "questions": "Operations of the serving process that the media process works on.",
    "deliveries": "Decoded media that are being sent to a stage.",
    "bytes": "Bytes of request bodies, decoded media and encoded audio that are held.",
    "blobs": "Request bodies that are held.",
    "clips": "Decoded clips, images and videos that wait for their request.",
    "clips_lent": "Decoded clips, images and videos that are kept for running requests, in case a worker dies.",
    "streams": "Audio encoders that are open.",
    "clips_decoded": "Audio clips decoded since the start.",
    "images_decoded": "Images decoded since the start.",
    "videos_decoded": "Videos decoded since the start.",
    "decode_failures": "Media that could not be decoded, since the start.",
    "decoded_s": "Seconds of audio decoded since the start.",
    "encoded_s": "Seconds of audio encoded since the start.",
    "clips_delivered": "Audio clips sent to a stage since the start.",
    "images_delivered": "Images sent to a stage since the start.",
    "videos_delivered": "Videos sent to a stage since the start.",
    "expired": "Media that were dropped because nobody used them for idle_s, since the start.",
    # the acceleration of pictures
    "step_cache_computed_rows_total": "Rows of pictures with a step cache that were computed in full.",
    "step_cache_skipped_rows_total": "Rows of pictures with a step cache that skipped blocks of the model.",
    "lora_bytes": "Bytes of the LoRA adapters that are loaded.",
    "offload_loads_total": "Groups of offloaded weights that were brought onto the device.",
    "offload_bytes_total": "Bytes of offloaded weights that were brought onto the device.",
    "compilations_total": "Compilations of the model's blocks.",
    # the stage that writes pictures
    "pictures_waiting": "Finished pictures that wait to be written to a file.",
    "pictures_writing": "Pictures and previews that are being written to a file.",
    "files_total": "Finished pictures that were written to a file.",
    "preview_files_total": "Previews that were written to a file.",
    "replaced_previews_total": "Previews that were dropped for a newer preview or the finished picture.",
    "file_bytes_total": "Bytes of the files of pictures and previews.",
    "abandoned_calls_total": "Files whose writing had begun in a thread when their request was over.",
}
"""Name → HELP text."""


def engine_counter_help(name: str) -> str:
    """Return the HELP text of a number that a worker reports.

    A chain of engines in one worker reports each engine's numbers behind the engine's name and an underscore.

    >>> from omni_actors.telemetry.engine_counters import engine_counter_help
    >>> engine_counter_help("talker_steps_total")
    'talker: Steps of the engine; one step computes one batch.'
    """
    if name in ENGINE_COUNTERS:
        return ENGINE_COUNTERS[name]
    engine, _, rest = name.partition("_")
    while rest:
        if rest in ENGINE_COUNTERS:
            return f"{engine}: {ENGINE_COUNTERS[rest]}"
        word, _, rest = rest.partition("_")
        engine += f"_{word}"
    return f"The number '{name}', as the stage's engine reports it."
