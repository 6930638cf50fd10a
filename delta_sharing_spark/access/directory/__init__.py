"""How a load reaches its bytes: negotiation, plans by query or by log, credentials, renewal."""
