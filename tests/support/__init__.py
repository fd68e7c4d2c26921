"""Helpers of the tests, and of the benchmarks that play nodes."""
