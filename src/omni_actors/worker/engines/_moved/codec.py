"""Moved to ``oneshot.codec``."""

from omni_actors.moved import moved_names

__getattr__ = moved_names(
    __name__,
    {
        "Codes": "omni_actors.worker.engines.oneshot.codec:Codes",
        "Samples": "omni_actors.worker.engines.oneshot.codec:Samples",
        "Stream": "omni_actors.worker.engines.oneshot.codec:CodeStream",
        "Piece": "omni_actors.worker.engines.oneshot.codec:Window",
        "CodecAdapter": "omni_actors.worker.engines.oneshot.codec:CodecAdapter",
    },
)
