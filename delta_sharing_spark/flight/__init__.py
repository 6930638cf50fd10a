"""Serves shared tables to any Arrow Flight client through a gateway (``[flight]``)."""
