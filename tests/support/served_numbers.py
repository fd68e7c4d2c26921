"""What `served_layers` imports."""

THREE = 3.0
