"""The page that shows a training while it runs, as a report afterwards, and the metrics for Prometheus."""
