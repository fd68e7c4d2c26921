"""Spark tasks (in Spark's Python workers) that launch and feed nodes."""
