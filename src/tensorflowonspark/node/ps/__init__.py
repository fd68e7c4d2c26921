"""Feeds under ``ParameterServerStrategy``."""
