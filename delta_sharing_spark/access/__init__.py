"""Reaches the files of a shared table: negotiates the access mode, plans splits, renews credentials."""
