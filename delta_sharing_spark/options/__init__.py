"""Defines the options of a read; :mod:`values` parses and writes the text of each."""
