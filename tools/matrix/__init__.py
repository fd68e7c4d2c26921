"""The matrix of versions: the same tests with each combination of Python, Spark and TensorFlow that is supported.

``make matrix`` runs it; ``python -m tools.matrix --help`` lists its options. It needs nothing but Python and Java: `uv`
makes an environment for each cell.
"""
