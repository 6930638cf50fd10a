"""Url mode: the sharing server lists the files, and presigned URLs read them."""
