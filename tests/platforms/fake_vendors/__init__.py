"""Vendors' packages that execute on the processor: what a runtime asks of them is done, and recorded.

Each folder beside this file holds the packages of one vendor, to be put on a process' path: an import of ``torch_npu``
then finds ours. What is computed on such a device is computed by torch's own operators on the host
(:mod:`tests.platforms.fake_vendors.host_device`).
"""

from pathlib import Path

HERE = Path(__file__).parent
