"""A Delta Sharing server that runs inside a test's process: real HTTP on loopback over Delta tables on local disk."""

from delta_sharing_spark.testing.server.faults import Fault
from delta_sharing_spark.testing.server.settings import ServerSettings, SharedTable
from delta_sharing_spark.testing.server.sharing_server import SharingServer

__all__ = ["Fault", "ServerSettings", "SharedTable", "SharingServer"]
