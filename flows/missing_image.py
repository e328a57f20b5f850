"""Its deployment names an image that does not exist: a permanent failure at once, no retry.

The run ends as `PermanentFailure` with class `ImageNotFound` and the engine's own words. (A process
pool starts no image, so there it completes.)
"""

from prefect import flow


@flow(name="missing-image")
def missing_image() -> str:
    """Return a greeting from an image, once there is one."""
    return "the image exists after all"
