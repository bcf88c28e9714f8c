"""A platform, builtin or a vendor's own, held against the whole contract.

In a vendor's test file::

    from my_platform.platform import MyPlatform
    from omni_actors.platforms.testing import PlatformConformance


    class TestMyPlatform(PlatformConformance):
        platform = MyPlatform

and on a machine with the device every test runs; without one those of the worker's half are skipped, with the
platform's own reason. Without pytest, ``check_platform(MyPlatform)`` gives the same results as values.

Everything of the platform runs in processes of its own, each under a deadline: the serving process' half where an
import of a framework or an opened device is noticed, the worker's half as in a worker, and a tiny language model by the
real engine, whose tokens are held to those that the processor computes.
"""

from omni_actors.platforms.testing.kit import Result, check_platform, failures
from omni_actors.platforms.testing.suite import PlatformConformance

__all__ = ["PlatformConformance", "Result", "check_platform", "failures"]
