"""Benchmarks that a person runs: `python -m benchmarks.diagnosis`, `python -m benchmarks.recovery`."""
