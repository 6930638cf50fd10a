"""Volumes, models and agent skills of OpenSharing: their files, listed, read and downloaded."""
