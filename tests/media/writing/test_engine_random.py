"""Any order of previews, pictures, ends and aborts: what the client gets is whole, in order, and exactly what was
fed."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.media.writing.harness import PictureHarness, UInt8, noise, pixels_of

SIZES = (4, 40, 300)


@dataclass
class Asked:
    """What a request was fed."""

    format: str
    pictures: dict[int, UInt8] = field(default_factory=dict)
    previews: dict[int, list[int]] = field(default_factory=dict)
    ended: bool = False
    aborted: bool = False


ACTIONS = st.lists(
    st.tuples(
        st.sampled_from(["step", "step", "step", "preview", "picture", "end", "abort"]),
        st.integers(0, 3),  # the request
        st.integers(0, 2),  # the picture
        st.sampled_from(SIZES),
        st.sampled_from([1, 3, 4]),
    ),
    max_size=60,
)


@settings(max_examples=60, deadline=None)
@given(
    formats=st.lists(st.sampled_from(["png", "png", "webp", "jpeg"]), min_size=4, max_size=4),
    max_bytes=st.sampled_from([1, 200_000, 1 << 30]),
    actions=ACTIONS,
)
def test_any_sequence(formats: list[str], max_bytes: int, actions: list[tuple[str, int, int, int, int]]) -> None:
    harness = PictureHarness(max_bytes=max_bytes, slice_s=0.0005)
    asked = {key: Asked(format) for key, format in enumerate(formats)}
    for key, request in asked.items():
        harness.admit(key, format=request.format)
    for seed, (action, key, index, side, channels) in enumerate(actions):
        request = asked[key]
        if action == "step":
            harness.step()
            continue
        if request.ended or request.aborted:
            continue
        if action == "abort":
            harness.abort(key)
            request.aborted = True
        elif action == "end":
            harness.feed(None, key=key, end=True)
            request.ended = True
        elif index in request.pictures:
            continue
        elif action == "picture":
            request.pictures[index] = noise(side, side, channels, seed)
            assert not harness.feed(request.pictures[index], key=key, index=index)
        else:
            steps = request.previews.setdefault(index, [])
            steps.append(len(steps) + 1)
            assert harness.feed(noise(side, side, channels, seed), key=key, index=index, preview=steps[-1], side=64)
    for key, request in asked.items():
        if not request.ended and not request.aborted:
            harness.feed(None, key=key, end=True)
            request.ended = True
    harness.run()
    harness.assert_empty()
    assert harness.failed == {}
    assert sorted(harness.finished) == [key for key, request in asked.items() if not request.aborted]
    for key, request in asked.items():
        if not request.aborted:
            _check(harness, key, request)
    harness.engine.close()


def _check(harness: PictureHarness, key: int, request: Asked) -> None:
    files = harness.files(key)
    assert harness.consumed_of[key] == len(request.pictures)
    whole = [meta["index"] for meta, _ in files if "preview" not in meta]
    assert sorted(whole) == sorted(request.pictures), "each picture once"
    for index in range(3):
        of_index = [meta.get("preview") for meta, _ in files if meta["index"] == index]
        previews = [step for step in of_index if step is not None]
        assert previews == sorted(set(previews)), "previews only become newer"
        if index in request.pictures:
            assert of_index[-1] is None, "the picture comes last"
        elif index in request.previews:
            assert previews[-1] == request.previews[index][-1], "the newest preview is not lost"
    for meta, data in files:
        found = pixels_of(data)
        assert found.shape[:2] == (meta["height"], meta["width"])
        if "preview" not in meta and request.format != "jpeg":
            wanted = request.pictures[meta["index"]]
            assert np.array_equal(found, wanted if found.shape == wanted.shape else np.repeat(wanted, 3, axis=2))
