"""An embedded sharing server and a builder of Delta tables, for tests and for trying things out."""
