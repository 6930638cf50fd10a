"""Plans streams of a table, in every access mode."""
