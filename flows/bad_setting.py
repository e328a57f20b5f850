"""Its deployment asks for more memory than growth may reach: refused before anything starts.

The run ends as `PermanentFailure` with class `ResourceLimitExceeded`; the message names the value,
what is allowed and what to do.
"""

from prefect import flow


@flow(name="bad-setting")
def bad_setting() -> str:
    """Return a greeting, once the deployment's `oom_memory_limit` is at least its `memory_mb`."""
    return "the settings are well"
