"""`make demo`: a Prefect server, three nodes and the main cases on one machine, for real."""
