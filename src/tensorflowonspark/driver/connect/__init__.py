"""Clusters over Spark Connect, whose client executors can't reach: their driver's part runs in a Spark task."""
