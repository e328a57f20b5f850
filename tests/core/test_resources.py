"""Values of an attempt's resources, and the ranges that they are held to."""

from __future__ import annotations

import math
from typing import Any

import pytest

from prefect_heteroflow.core.policy import POLICY_RANGES
from prefect_heteroflow.core.ranges import MAX_MEMORY_MB, Range
from prefect_heteroflow.core.resources import RESOURCE_RANGES, Resources


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"memory_mb": 5}, "memory_mb 5: allowed is a whole number of MiB, from 6 to"),
        ({"memory_mb": MAX_MEMORY_MB + 1}, "memory_mb 1073741825"),
        ({"memory_mb": None}, "memory_mb None"),
        ({"memory_mb": True}, "memory_mb True"),
        ({"memory_mb": 4096.0}, "memory_mb 4096.0"),
        ({"shm_mb": 0}, "shm_mb 0: allowed is a whole number of MiB, from 1"),
        ({"gpu_count": -1}, "gpu_count -1: allowed is a whole number, from 0 to 1024"),
        ({"gpu_memory_mb": 0}, "gpu_memory_mb 0"),
        ({"gpu_memory_mb": "8192"}, "gpu_memory_mb '8192'"),
        ({"memory_mb": 1, "gpu_count": 9999}, "memory_mb 1: .*; gpu_count 9999: "),
    ],
)
def test_resources_refuse_values_out_of_range(values: dict[str, Any], text: str):
    """The text names the value and what is allowed."""
    with pytest.raises(ValueError, match=text):
        Resources(**values)


def test_resources_take_the_least_and_nothing():
    """The Docker engine's own floor of 6 MiB."""
    assert Resources(memory_mb=6, shm_mb=1, gpu_memory_mb=1).memory_mb == 6
    assert Resources() == Resources(memory_mb=2048, shm_mb=None, gpu_count=0, gpu_memory_mb=None)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, True, "1", None, -1, 11, [], {}])
def test_range_does_not_hold_what_is_no_number_in_it(value):
    """A bool is no number, nor is what cannot be compared."""
    assert not Range(least=0, most=10).holds(value)


def test_range_holds_both_ends():
    """And `None` where it is optional."""
    assert all(Range(least=0, most=10).holds(value) for value in (0, 0.5, 10))
    assert Range(least=0, optional=True).holds(None)
    assert not Range(least=0, whole=True).holds(0.0)


def test_ranges_name_fields_that_exist():
    """Each number of the two values has a range, and no range is left over."""
    assert set(RESOURCE_RANGES) == set(Resources.__dataclass_fields__)
    from prefect_heteroflow.core.policy import RetryPolicy

    assert set(POLICY_RANGES) == set(RetryPolicy.__dataclass_fields__) - {"retry_strategy"}
