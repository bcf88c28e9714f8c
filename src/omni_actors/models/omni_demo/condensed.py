"""Clips without their long pauses, and the mapping of times back to the clip.

Whisper's timestamps are right to a tenth of a second during speech, and wrong by the length of a pause during silence:
a segment after 20 s of silence often begins with the silence. Whisper is therefore given sound without long pauses; its
times are mapped back to the clip, and then moved to the begin and end of the voice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from omni_actors.models.omni_demo.voice_activity import FRAME, RATE, Samples, VoiceTrack
from omni_actors.models.omni_demo.whisper import WINDOW, Segment

PAUSE_S = 2.0
"""A pause longer than this is left out, but for its edges."""

EDGE_S = 0.4
"""Silence that is kept on either side of voice, so that quiet sounds at its edges are heard."""

BREATH_S = 0.3
"""Voice with no more than this between is one stretch of voice."""

BLIP_S = 0.1
"""Voice shorter than this has no part in where a segment begins and ends."""

TOLERANCE_S = 1.0
"""How far a segment's begin and end are moved to take in voice, or to leave to its neighbour what is mostly its."""

SCAN_S = 120.0
"""How much of a clip is searched for voice at a time."""


@dataclass(frozen=True, slots=True)
class Condensed:
    """A part of a clip without its long pauses: ``ranges`` of its samples, in order, apart from each other.

    ``end`` is the sample of the clip up to which it was condensed.
    """

    ranges: tuple[tuple[int, int], ...]
    end: int

    def cut(self, samples: Samples) -> Samples:
        """The sound itself, out of the clip's ``samples``."""
        return np.concatenate([samples[:0], *(samples[start:end] for start, end in self.ranges)])

    def place(self, seconds: float, ends: bool = False) -> int:
        """Return the clip's sample at ``seconds`` of the condensed sound. Where two ranges meet, the later range's
        begin; with ``ends`` the earlier range's end; behind the last range :attr:`end`."""
        left = round(seconds * RATE)
        for start, end in self.ranges:
            if left < end - start or (ends and left == end - start):
                return start + left
            left -= end - start
        return self.ranges[-1][1] if ends and self.ranges else self.end


def condense(track: VoiceTrack, total: int, start: int, most: int = WINDOW) -> Condensed | None:
    """Return the next sound of a clip of ``total`` samples, from sample ``start`` on, up to ``most`` samples.

    ``track`` is searched at most :data:`SCAN_S` further than before. Returns ``None`` if the search must go on: call
    again.
    """
    first, edge = start // FRAME, round(EDGE_S * RATE)
    limit = track.heard + round(SCAN_S * RATE / FRAME)
    while True:
        ranges = [
            (max(start, begin - edge), min(total, end + edge))
            for begin, end in track.runs(PAUSE_S, first)
            if end > start
        ]
        left = most
        for index, (begin, end) in enumerate(ranges):
            if end - begin >= left and begin + left <= track.heard * FRAME:
                return Condensed((*ranges[:index], (begin, begin + left)), begin + left)
            left -= end - begin
        if track.heard >= len(track.voiced):
            return Condensed(tuple(ranges), total)
        if track.heard >= limit:
            return None
        track.hear(min(track.heard + most // FRAME, limit))


def drawn_to_voice(segments: Sequence[Segment], track: VoiceTrack, after: float = 0.0) -> list[Segment]:
    """Move the begin and end of a clip's segments, in order, to the voice inside each segment; none before ``after``.

    If a stretch of voice lies in two segments, a piece shorter than :data:`TOLERANCE_S` goes to the segment with the
    larger piece. A segment without voice does not change.
    """
    if not segments:
        return []
    first = max(0, round((segments[0].start - TOLERANCE_S) * RATE / FRAME))
    owned: list[list[tuple[float, float]]] = [[] for _ in segments]
    for stretch in track.runs(BREATH_S, first, BLIP_S):
        begin, end = (sample / RATE for sample in stretch)
        shares = [min(end, it.end) - max(begin, it.start) for it in segments]
        largest = max(shares)
        for index, share in enumerate(shares):
            if share > 0 and (share == largest or share >= TOLERANCE_S):
                owned[index].append((begin, end))
    found: list[Segment] = []
    for index, segment in enumerate(segments):
        start, end = segment.start, segment.end
        if owned[index]:
            voice, last = owned[index][0], owned[index][-1]
            if index == 0 or voice not in owned[index - 1]:
                start = max(voice[0], start - TOLERANCE_S)
            if index + 1 == len(segments) or last not in owned[index + 1]:
                end = min(last[1], end + TOLERANCE_S)
        start = max(start, found[-1].end if found else after)
        found.append(replace(segment, start=start, end=max(start, end)))
    return found
