"""The exact language of where: parsed, hinted, skipped by, evaluated."""
