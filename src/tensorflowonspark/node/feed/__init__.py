"""Rows in a node: received, cached, handed to the program."""
