"""torchada: importing it is all there is to it."""

from tests.platforms.fake_vendors.host_device import record

record("torchada")
