"""Moved to ``oneshot.outputs``."""

from omni_actors.moved import moved_names

__getattr__ = moved_names(
    __name__,
    {
        "Piece": "omni_actors.worker.engines.oneshot.outputs:Piece",
        "Result": "omni_actors.worker.engines.oneshot.outputs:Result",
        "pcm16": "omni_actors.worker.engines.oneshot.outputs:pcm16",
        "audio_piece": "omni_actors.worker.engines.oneshot.outputs:audio_piece",
        "check_piece": "omni_actors.worker.engines.oneshot.outputs:check_piece",
        "check_result": "omni_actors.worker.engines.oneshot.outputs:check_result",
        "add_usage": "omni_actors.worker.engines.oneshot.outputs:add_usage",
    },
)
