"""Benchmarks that a person runs, such as `python -m benchmarks.recovery`."""
