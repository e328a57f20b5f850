"""Secrets do not leave a line; the rest of it stays readable."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prefect_heteroflow.core.masking import MASK, mask_secrets


@pytest.mark.parametrize(
    ("line", "secret"),
    [
        pytest.param("connect postgres://joe:s3cr3t@db/x", "s3cr3t", id="url-password"),
        pytest.param(
            "GET https://ghp_abcdefgh1234@github.com/x", "ghp_abcdefgh1234", id="url-token"
        ),
        pytest.param("Authorization: Bearer abc.def-123456", "abc.def-123456", id="bearer"),
        pytest.param("token=abc123def", "abc123def", id="token"),
        pytest.param("export MY_API_KEY='k-1 2'", "k-1 2", id="quoted-environment"),
        pytest.param(
            "AWS_SECRET_ACCESS_KEY=wJalrXUtnFEMI/K7MDENG", "wJalrXUtnFEMI", id="aws-secret"
        ),
        pytest.param("id AKIAIOSFODNN7EXAMPLE denied", "AKIAIOSFODNN7EXAMPLE", id="aws-key-id"),
        pytest.param('{"password": "hunter2"}', "hunter2", id="json"),
        pytest.param("--password hunter2 --port 5", "hunter2", id="flag"),
        pytest.param("hf_abcdefghijklmnop is invalid", "hf_abcdefghijklmnop", id="hf"),
        pytest.param("jwt eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiI3In0.c2ln", "eyJhbGci", id="jwt"),
        pytest.param(
            "secret 9f86d081884c7d659a2feaa0c55ad015a3bf4f1b", "9f86d081884c7d659a2f", id="hex"
        ),
        pytest.param("https://x.blob/y?sig=a%2Bb%3D&se=2024", "a%2Bb%3D", id="sas"),
    ],
)
def test_secret_is_masked(line: str, secret: str) -> None:
    """What looks like a secret is replaced, wherever it stands."""
    masked = mask_secrets(line)
    assert secret not in masked
    assert MASK in masked


@pytest.mark.parametrize(
    "line",
    [
        "CUDA out of memory. Tried to allocate 2.00 GiB (GPU 0; 8.00 GiB total capacity)",
        "KeyError: 'input_ids'",
        "max tokens: 4096, tokens/s 33.5",
        "manifest for org/app:1 not found: manifest unknown",
        'File "/app/train.py", line 3, in <module>',
        "https://user@example.com/x",
    ],
)
def test_ordinary_line_stays_as_it_is(line: str) -> None:
    """Text without secrets is not touched."""
    assert mask_secrets(line) == line


@given(st.text(max_size=400))
def test_any_text_can_be_masked_again(text: str) -> None:
    """Masking never raises, and masking a masked text hides nothing more than secrets."""
    assert isinstance(mask_secrets(mask_secrets(text)), str)
