"""Benchmarks: one folder each, run as ``python -m benchmarks.NAME`` from the repository root.

The contenders of a benchmark are processes that take turns, so that other work on the machine affects all of them
alike. Results are kept as JSON below ``build/``; ``--publish`` puts the report into ``docs/benchmarks/NAME.md``.
"""
