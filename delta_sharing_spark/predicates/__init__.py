"""Implements the language of ``where`` exactly: parses it, sends it as hints, skips files by it, evaluates it."""
