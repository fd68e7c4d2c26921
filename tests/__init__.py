"""The tests, by what they need; helpers are in `tests.support`."""
