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
        pytest.param("Authorization: abcdefghijkl", "abcdefghijkl", id="bare-authorization"),
        pytest.param("X-Api-Key: abcdefghijkl", "abcdefghijkl", id="api-key-header"),
        pytest.param("Password: hunter2", "hunter2", id="password-colon"),
        pytest.param("user 'joe' with password 'hunter2'", "hunter2", id="password-quoted"),
        pytest.param("curl -u joe:hunter2 https://x", "hunter2", id="curl-user"),
        pytest.param("docker login -u joe -p hunter2 reg", "hunter2", id="docker-login"),
        pytest.param("AccountKey=Eby8vdM02xNO==;Endpoint=x", "Eby8vdM02xNO", id="account-key"),
        pytest.param('{\\"password\\": \\"hunter2\\"}', "hunter2", id="escaped-json"),
        pytest.param("Incorrect API key provided: abcd1234efgh", "abcd1234", id="key-provided"),
        pytest.param(
            "post https://hooks.slack.com/services/T0000/B0000/XXXXXXXX",
            "XXXXXXXX",
            id="slack-hook",
        ),
        pytest.param("hvs.CAESIJabcdefghij expired", "CAESIJ", id="vault"),
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
        "docker run -u 1000:1000 app",
        "hf_hub_download(repo_id, filename)",
        'Error: secret "regcred" not found',
        "password authentication failed",
    ],
)
def test_ordinary_line_stays_as_it_is(line: str) -> None:
    """Text without secrets is not touched."""
    assert mask_secrets(line) == line


@given(st.text(max_size=400))
def test_any_text_can_be_masked_again(text: str) -> None:
    """Masking never raises, and masking a masked text hides nothing more than secrets."""
    assert isinstance(mask_secrets(mask_secrets(text)), str)
