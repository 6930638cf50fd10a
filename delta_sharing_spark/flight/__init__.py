"""Arrow Flight: a gateway that serves shared tables to any Flight client (``[flight]``)."""
