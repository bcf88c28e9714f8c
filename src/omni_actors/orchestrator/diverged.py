"""The reasons for which the output of a stage cannot be delivered."""

from __future__ import annotations

from omni_actors.protocol.errors import OmniError, not_resumable, stage_failed


class Diverged(Exception):
    """The error of a new attempt with other output than the client has already, so that the output cannot go on."""

    def failure(self, stage: str) -> OmniError:
        """Return the failure of the request, which names the stage."""
        return not_resumable(stage)


class BrokenPicture(Diverged):
    """The error of a picture that is too large, or of pieces that make no picture. The message is for the client."""

    def failure(self, stage: str) -> OmniError:
        return stage_failed(stage, str(self))
