"""Pure rules of prefect-heteroflow: values in, decisions out.

Nothing in this package reads a clock, does I/O, logs or imports Prefect; `lint-imports` and
`tests/core/test_purity.py` keep it so. `None` always means "not observed" and matches no rule.
"""
