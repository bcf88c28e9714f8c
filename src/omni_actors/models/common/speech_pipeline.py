"""The shared declaration of speech families: a talker makes frames, a codec turns the frames into sound as they
arrive."""

from __future__ import annotations

from collections.abc import Mapping

from omni_actors.pipelines.declaration import Edge, Pipeline, Port, Stage, Task
from omni_actors.protocol.options import Option
from omni_actors.worker.engines.oneshot.options import CODEC_OPTIONS

_TALKER: dict[str, Option] = {
    "max_characters": Option(4096, "Longest text of one request, in characters; longer ones are refused.", least=1),
    "max_frames": Option(
        None,
        "Most frames of one utterance; by default what the model's authors recommend.",
        type=int,
        least=1,
    ),
}
_CLONING: dict[str, Option] = {
    "max_reference_s": Option(60.0, "Longest reference clip of a voice, in seconds.", least=1),
    "clip_cache_mib": Option(
        64, "Memory in MiB for encoded clips; a clip that comes again is not encoded again.", least=0
    ),
}
_SAMPLING: dict[str, Option] = {
    "temperature": Option(
        None, "Sampling temperature; 0 takes the likeliest code. By default the model's own.", type=float, least=0
    ),
    "top_k": Option(
        None, "Sample among this many of the likeliest codes. By default the model's own.", type=int, least=0
    ),
    "top_p": Option(
        None,
        "Sample among the likeliest codes that together have this probability. By default the model's own.",
        type=float,
        least=0,
    ),
}


def speech_pipeline(
    name: str,
    family: str,
    *,
    architectures: tuple[str, ...],
    checkpoints: tuple[str, ...],
    sample_rate: int,
    frames: str = "codes",
    sampling: tuple[str, ...] = ("temperature", "top_k", "top_p"),
    clones: bool = False,
    voices: tuple[str, ...] = (),
    languages: tuple[str, ...] = (),
    speech_fields: tuple[str, ...] = (),
    talker: Mapping[str, Option] | None = None,
    codec: bool = True,
    windows: bool = False,
    describe: str | None = None,
    doc: str = "",
) -> Pipeline:
    """Return a pipeline ``talker → codec`` (or ``talker`` alone) with the task ``speech``.

    ``family`` is the package with ``talker:Talker`` and ``codec:Codec``; ``frames`` is the kind of a frame.
    ``sampling`` are the settings of its draws, ``clones`` says that a request may bring clips of a voice,
    ``speech_fields`` are the family's request fields beside the common ones (length, sampling, the first piece), and
    ``windows`` says that the codec decodes windows with a context. Without ``codec`` the talker's frames are sound
    already.
    """
    fields = ("max_tokens", *sampling)
    fields += ("language",) if languages else ()
    fields += ("initial_chunk_frames",) if codec else ()
    draws = {option: _SAMPLING[option] for option in sampling}
    options = {**_TALKER, **draws, **(_CLONING if clones else {}), **(talker or {})}
    ports = (Port("reference", "pcm", required=False, mode="chunk", doc="Clips of the voice."),) if clones else ()
    last = "codec" if codec else "talker"
    stages = [
        Stage(
            name="talker",
            engine="generation",
            options=options,
            adapter=f"{family}.talker:Talker",
            ports=ports,
            sections=("speech",),
            emits=None if codec else "audio",
            weight=4.0,
            input_limits={"text": "max_characters", **({"audio": "max_reference_s"} if clones else {})},
            doc="Makes the frames of an utterance, one after the other.",
        )
    ]
    if codec:
        stages.append(
            Stage(
                name="codec",
                engine="generation",
                options={n: it for n, it in CODEC_OPTIONS.items() if windows or n != "left_context_frames"},
                adapter=f"{family}.codec:Codec",
                ports=(Port(frames, frames, mode="chunk", doc="Frames, as they are made."),),
                sections=("speech",),
                emits="audio",
                dtypes=("float32",),
                doc="Turns frames into sound.",
            )
        )
    entries = {"text": "talker", **({"audio": "talker.reference"} if clones else {})}
    return Pipeline(
        name=name,
        stages=tuple(stages),
        edges=(Edge("talker", f"codec.{frames}", frames, mode="chunk"),) if codec else (),
        tasks=(Task("speech", entries=entries, outputs={"audio": last}),),
        architectures=architectures,
        checkpoints=checkpoints,
        describe=describe,
        voices=voices,
        sample_rate=sample_rate,
        languages=languages,
        speech_fields=(*fields, *speech_fields),
        doc=doc,
    )
