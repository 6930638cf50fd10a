"""One file for each cloud, and the registry of them."""
