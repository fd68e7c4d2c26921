"""Spark as the driver uses it: sessions, slots, jobs and stages."""
