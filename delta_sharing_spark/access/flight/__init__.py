"""Access mode flight: a table behind a Flight gateway, which holds the profile and reads the files."""
