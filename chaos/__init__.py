"""Sixty runs on three real nodes while workers, engine and server die; then every run is checked.

`make chaos`, or `python -m chaos --seed 7`. Equal seeds give equal runs and equal faults in an
equal order; what meets what is up to the machine.
"""
