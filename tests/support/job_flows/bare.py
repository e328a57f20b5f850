"""A flow that knows nothing of prefect-heteroflow."""

from prefect import flow


@flow
def hello() -> str:
    """Greet."""
    return "hello"
