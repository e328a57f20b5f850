"""Adapters to the Prefect API: history, nodes, transitions."""
