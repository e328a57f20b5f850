"""What kept a process from starting: its node, or what was asked."""

from __future__ import annotations

import errno

import pytest

from prefect_heteroflow.core.failures import FailureClass
from prefect_heteroflow.core.status_rules import failure_of_start


@pytest.mark.parametrize(
    ("number", "expected"),
    [
        (errno.ENOSPC, FailureClass.DISK_PRESSURE),
        (errno.EROFS, FailureClass.DISK_PRESSURE),
        (errno.EAGAIN, FailureClass.CONTAINER_RUNTIME_ERROR),
        (errno.EMFILE, FailureClass.CONTAINER_RUNTIME_ERROR),
        (errno.ENOENT, FailureClass.INVALID_CONFIG),
        (errno.EACCES, FailureClass.INVALID_CONFIG),
        (None, FailureClass.INVALID_CONFIG),
    ],
    ids=lambda value: errno.errorcode[value] if isinstance(value, int) else str(value),
)
def test_only_what_was_asked_for_ends_a_run_for_good(
    number: int | None, expected: FailureClass
) -> None:
    assert failure_of_start(number) is expected
