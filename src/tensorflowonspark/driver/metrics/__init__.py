"""Metrics of a cluster in the driver: what its nodes measure and report, over all its attempts."""
