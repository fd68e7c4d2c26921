"""Feeds, as the driver runs them."""
