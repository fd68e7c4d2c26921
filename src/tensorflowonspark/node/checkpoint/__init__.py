"""Checkpoints and exported models, on any file system."""
