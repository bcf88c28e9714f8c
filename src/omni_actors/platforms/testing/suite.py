"""The conformance kit as a class of tests."""

from __future__ import annotations

from functools import lru_cache
from typing import ClassVar

from omni_actors.platforms.platform import OmniPlatform
from omni_actors.platforms.testing.kit import DEADLINE_S, Result, check_platform


class PlatformConformance:
    """The conformance tests of a platform. Subclass this class with the :attr:`platform`; every method is a test.

    All tests look at one examination, which the first test waits for: allow the tests twice ``deadline_s``. A check of
    a feature that the platform lacks is skipped, and so is a check of the worker half on a machine without the device.
    """

    platform: ClassVar[type[OmniPlatform]]
    device: ClassVar[str | None] = None
    """The device to examine, by the operator's name; ``None`` for the platform's first device."""
    deadline_s: ClassVar[float] = DEADLINE_S

    def test_serving_process_half(self) -> None:
        """Check class attributes, detection, devices, environments and refusals, and that nothing reserved to workers
        is done."""
        self._held(self._until("opens"))

    def test_worker_half(self) -> None:
        """Check the runtime on the device: memory, faults, graphs, transport, profiler, engines."""
        self._held([it for it in self._from("opens") if not it.name.startswith(("kernels_", "tokens"))])

    def test_kernels(self) -> None:
        """Check that kernels give torch's numbers within the dtype's tolerance."""
        self._held([it for it in self._from("opens") if it.name.startswith("kernels_")])

    def test_tokens_of_a_tiny_model(self) -> None:
        """Check that a language model in the real engine chooses the same tokens as on the processor."""
        self._held([it for it in self._from("opens") if it.name == "tokens"])

    def _results(self) -> tuple[Result, ...]:
        return _examined(type(self).platform, self.device, self.deadline_s)

    def _until(self, name: str) -> list[Result]:
        results = self._results()
        return [*results[: self._place(results, name)]]

    def _from(self, name: str) -> list[Result]:
        results = self._results()
        return [*results[self._place(results, name) :]]

    @staticmethod
    def _place(results: tuple[Result, ...], name: str) -> int:
        names = [result.name for result in results]
        later = [names.index(one) for one in (name, "second_half") if one in names]
        return min(later, default=len(names))

    @staticmethod
    def _held(results: list[Result]) -> None:
        import pytest

        failed = [str(result) for result in results if result.state == "failed"]
        assert not failed, "\n".join(failed)
        if not any(result.state == "passed" for result in results):
            pytest.skip("; ".join(dict.fromkeys(result.why for result in results)) or "nothing came to be examined")


@lru_cache(maxsize=8)
def _examined(platform: type[OmniPlatform], device: str | None, deadline_s: float) -> tuple[Result, ...]:
    return check_platform(platform, device=device, deadline_s=deadline_s)
