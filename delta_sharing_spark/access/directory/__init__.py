"""Directory mode: the table's own log lists the files, and temporary credentials read them."""
