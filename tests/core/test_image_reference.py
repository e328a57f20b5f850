"""`image_reference_problem` says what an engine would refuse, and nothing else."""

from __future__ import annotations

import pytest

from prefect_heteroflow.core.image_reference import image_reference_problem

DIGEST = "sha256:" + "0123456789abcdef" * 4


@pytest.mark.parametrize(
    "reference",
    [
        "python",
        "python:3.12-slim",
        "localhost:5000/team/train",
        "127.0.0.1:5000/train:v1",
        "[::1]:5000/train",
        "registry.example.com/a/b__c/d-e.f:V1.0_x",
        "Registry.Example.com/train",
        f"ghcr.io/team/train@{DIGEST}",
        f"train:v2@{DIGEST}",
    ],
)
def test_sound_reference_has_no_problem(reference: str) -> None:
    """What the engines accept is accepted."""
    assert image_reference_problem(reference) is None


@pytest.mark.parametrize(
    ("reference", "cause"),
    [
        ("", "empty"),
        ("my image", "white space"),
        ("https://example.com/train", "scheme"),
        ("team/Train:v1", "lower case"),
        ("python:", "no tag"),
        ("python:a b", "white space"),
        ("python:-x", "no tag"),
        ("python:" + "x" * 129, "no tag"),
        ("python@sha256:12", "no digest"),
        ("team//train", "no name"),
        ("-train", "no name"),
        ("train_", "no name"),
        ("a" * 256, "longer than 255"),
        ("0123456789abcdef" * 4, "image id"),
    ],
)
def test_unsound_reference_is_refused_with_its_cause(reference: str, cause: str) -> None:
    """The text names the value, the cause and the allowed form."""
    problem = image_reference_problem(reference)
    assert problem is not None
    assert repr(reference) in problem
    assert cause in problem
    assert "[:TAG]" in problem
