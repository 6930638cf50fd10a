"""Lets Spark find the ``deltaSharing`` data source by itself, without a registration call."""
