"""Values that users set: read, or refused by name."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prefect_heteroflow.core.cleanup import DEFAULT_PATTERNS
from prefect_heteroflow.core.failures import FailureClass
from prefect_heteroflow.core.inference_images import is_gpu_inference_image
from prefect_heteroflow.core.job_values import (
    JobValueError,
    JobValues,
    boost_gpu_inference_memory,
    default_problem,
    parse_job_values,
)
from prefect_heteroflow.core.policy import RetryPolicy, RetryStrategy
from prefect_heteroflow.core.resources import Resources

NAMES = (
    *("retry_strategy", "max_retries", "infrastructure_retries", "retry_delay"),
    *("backoff_multiplier", "max_retry_delay", "retry_jitter", "escalation_delay"),
    *("oom_memory_limit", "memory_mb", "shm_mb", "gpu_count", "gpu_memory_mb"),
    *("retry_on", "stop_on", "retry_exceptions", "cleanup_patterns", "cleanup_hook"),
)


def refused(values: dict[str, Any], defaults: dict[str, Any] | None = None) -> JobValueError:
    with pytest.raises(JobValueError) as caught:
        parse_job_values(values, defaults or {})
    return caught.value


def test_nothing_set_gives_the_defaults():
    """2048 MB, three retries, a new node."""
    assert parse_job_values({}) == JobValues(policy=RetryPolicy(), resources=Resources())


def test_every_name_is_read():
    """From numbers and from the text that a command line gives."""
    numbers: dict[str, Any] = {
        "retry_strategy": "retry_same_node",
        "max_retries": -1,
        "infrastructure_retries": 0,
        "retry_delay": 1.5,
        "backoff_multiplier": 3,
        "max_retry_delay": 60,
        "retry_jitter": 0,
        "escalation_delay": 0.5,
        "oom_memory_limit": 32768,
        "memory_mb": 4096,
        "shm_mb": 256,
        "gpu_count": 2,
        "gpu_memory_mb": 8192,
        "retry_on": ["flaky", {"match": "x"}],
        "stop_on": "no space",
        "retry_exceptions": ["ValueError", "a.b.C"],
        "cleanup_patterns": ["*.partial"],
        "cleanup_hook": "package.module.tidy",
    }
    assert set(numbers) == set(NAMES)
    expected = JobValues(
        policy=RetryPolicy(
            retry_strategy=RetryStrategy.RETRY_SAME_NODE,
            max_retries=-1,
            infrastructure_retries=0,
            retry_delay=1.5,
            backoff_multiplier=3,
            max_retry_delay=60,
            retry_jitter=0,
            escalation_delay=0.5,
            oom_memory_limit=32768,
        ),
        resources=Resources(memory_mb=4096, shm_mb=256, gpu_count=2, gpu_memory_mb=8192),
        retry_exceptions=("ValueError", "a.b.C"),
        retry_on=("flaky", {"match": "x"}),
        stop_on=("no space",),
        cleanup_patterns=("*.partial",),
        cleanup_hook="package.module.tidy",
    )
    assert parse_job_values(numbers) == expected
    texts = {k: str(v) if isinstance(v, (int, float)) else v for k, v in numbers.items()}
    assert parse_job_values(texts) == expected


def test_value_comes_before_default_and_none_is_not_a_value():
    """The run over the settings over the policy's own."""
    defaults = {"max_retries": 7, "retry_delay": 1, "escalation_delay": 2}
    values = {"max_retries": 1, "retry_delay": None, "name_of_another": object()}
    policy = parse_job_values(values, defaults).policy
    assert (policy.max_retries, policy.retry_delay, policy.escalation_delay) == (1, 1, 2)


@pytest.mark.parametrize(
    ("given_", "read"),
    [
        (True, True),
        (False, False),
        ("true", True),
        (" False ", False),
        ("ValueError, requests.Timeout", ("ValueError", "requests.Timeout")),
        (["ValueError"], ("ValueError",)),
        ([], ()),
        ("Größe", ("Größe",)),
    ],
)
def test_retry_exceptions_is_a_truth_or_names(given_, read):
    """As JSON gives it, and as a command line does."""
    assert parse_job_values({"retry_exceptions": given_}).retry_exceptions == read


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("memory_mb", 5),
        ("memory_mb", -4096),
        ("memory_mb", "4g"),
        ("memory_mb", "4096 MB"),
        ("memory_mb", ""),
        ("memory_mb", 4096.5),
        ("memory_mb", "4_096"),
        ("memory_mb", "٤٠٩٦"),
        ("memory_mb", True),
        ("memory_mb", [4096]),
        ("shm_mb", 0),
        ("gpu_count", -1),
        ("gpu_count", "all"),
        ("gpu_memory_mb", 0),
        ("oom_memory_limit", math.inf),
        ("max_retries", -2),
        ("max_retries", "many"),
        ("infrastructure_retries", 1.5),
        ("retry_delay", -1),
        ("retry_delay", math.nan),
        ("retry_delay", "nan"),
        ("retry_delay", "inf"),
        ("retry_delay", "1e999"),
        ("retry_delay", False),
        ("backoff_multiplier", 0.99),
        ("max_retry_delay", 1e12),
        ("retry_jitter", "-0.1"),
        ("escalation_delay", "soon"),
        ("retry_strategy", "retry_elsewhere"),
        ("retry_strategy", 3),
        ("retry_strategy", ["no_retry"]),
        ("retry_exceptions", "Value Error"),
        ("retry_exceptions", ""),
        ("retry_exceptions", 1),
        ("retry_exceptions", [ValueError]),
        ("retry_exceptions", ["a..b"]),
        ("retry_on", 5),
        ("stop_on", {1, 2}),
    ],
)
def test_bad_value_is_refused_with_its_name_and_what_is_allowed(name: str, value: Any):
    """Whether the run or the settings say it."""
    for values, defaults in (({name: value}, {}), ({}, {name: value})):
        error = refused(values, defaults)
        assert error.failure is FailureClass.INVALID_CONFIG
        assert str(error).startswith(f"Values that cannot be used: {name} {value!r}: allowed is ")
        assert str(error).endswith("and run it again.")


def test_all_bad_values_are_named_at_once():
    """One text, and each problem in it."""
    error = refused({"memory_mb": 1, "max_retries": "x", "retry_strategy": "y", "retry_on": 1})
    assert all(
        f"{name} " in str(error)
        for name in ("memory_mb", "max_retries", "retry_strategy", "retry_on")
    )


def test_limit_below_memory_is_refused_with_both_ways_out():
    """Sound values that do not go together: the class says so."""
    error = refused({"memory_mb": 20000})
    assert error.failure is FailureClass.RESOURCE_LIMIT_EXCEEDED
    assert (
        "memory_mb 20000 is above oom_memory_limit 16384: set oom_memory_limit to 20000 or more, "
        "or memory_mb to 16384 or less"
    ) in str(error)
    assert refused({"oom_memory_limit": 1024}).failure is FailureClass.RESOURCE_LIMIT_EXCEEDED
    parse_job_values({"memory_mb": 16384})


def test_limit_is_not_blamed_for_a_memory_that_cannot_be_read():
    """Only what is wrong is named, but another problem does not hide it either."""
    assert "is above" not in str(refused({"memory_mb": "x", "oom_memory_limit": 10}))
    both = refused({"memory_mb": 20000, "max_retries": -7})
    assert "is above" in str(both)
    assert both.failure is FailureClass.INVALID_CONFIG


def test_gpu_memory_without_a_gpu_is_refused():
    """It would be ignored, and the job would look for a GPU in vain."""
    assert "gpu_memory_mb 8192 with gpu_count 0" in str(refused({"gpu_memory_mb": 8192}))
    assert parse_job_values({}, {"gpu_memory_mb": 8192}).resources.gpu_count == 0


def test_long_value_is_shortened_in_the_text():
    """A whole file pasted into a field does not become the message."""
    assert len(str(refused({"memory_mb": "x" * 10_000}))) < 400


@given(
    st.dictionaries(
        st.sampled_from(NAMES),
        st.none()
        | st.booleans()
        | st.integers()
        | st.floats()
        | st.text(max_size=10)
        | st.sampled_from(["4096", "1e3", "-1", "true", "no_retry"])
        | st.lists(st.text(max_size=5) | st.integers(), max_size=2),
    )
)
def test_any_input_is_read_or_refused(values: dict[str, Any]):
    """No other exception, whatever a user writes."""
    try:
        read = parse_job_values(values)
    except JobValueError:
        return
    assert read.resources.memory_mb <= read.policy.oom_memory_limit


@pytest.mark.parametrize(
    "image",
    [
        "vllm/vllm-openai:v0.6.3",
        "VLLM/vllm-openai",
        "localhost:5000/team/my-vllm:1",
        "rocm/vllm-dev@sha256:" + "a" * 64,
        "ghcr.io/ggml-org/llama.cpp:server-cuda",
        "llama.cpp",
        "me/llama-cpp-python-cuda",
        "ghcr.io/huggingface/text-generation-inference:2.4.0",
        "registry.example.com/tgi:latest",
        "lmsysorg/sglang:latest",
        "nvcr.io/nvidia/tritonserver:24.10-vllm-python-py3",
        "team/triton-inference-server",
        "ollama/ollama",
        "openmmlab/lmdeploy:latest-cu12",
        "nvcr.io/nvidia/tensorrt-llm/release:1.0",
        "me/tensorrt_llm",
        "nvcr.io/nim/meta/llama3-8b-instruct:1.0",
        "atinoda/text-generation-webui",
    ],
)
def test_image_of_a_model_server_is_recognised(image):
    """By the name of its repository."""
    assert is_gpu_inference_image(image)


@pytest.mark.parametrize(
    "image",
    [
        "python:3.12",
        "python:vllm",
        "my-vllm-docs",
        "vllmish",
        "ghcr.io/open-webui/open-webui:ollama",
        "ollama/ollama-webui",
        "vllm.example.com/team/train:1",
        "team/triton",
        "team/ollama-exporter:1",
        "team/strategic",
        "team/nimble",
        "pytorch/pytorch:2.5.0-cuda12.4-cudnn9-runtime",
        "",
        ":",
        "@",
        "///",
    ],
)
def test_near_miss_of_a_model_server_is_not(image):
    """Companions, tags, registries, words that only begin alike."""
    assert not is_gpu_inference_image(image)


def test_boost_raises_memory_that_was_left_at_its_default():
    """2048 -> 8192, all else as it was."""
    had = Resources(gpu_count=1, shm_mb=512)
    assert boost_gpu_inference_memory("vllm/vllm-openai", had, False) == Resources(
        memory_mb=8192, gpu_count=1, shm_mb=512
    )


@pytest.mark.parametrize(
    ("image", "had", "was_set"),
    [
        ("vllm/vllm-openai", Resources(), True),
        ("vllm/vllm-openai", Resources(memory_mb=4096), False),
        ("python:3.12", Resources(), False),
        (None, Resources(), False),
    ],
)
def test_boost_leaves_all_else_alone(image, had, was_set):
    """A value that the user set, also 2048, is meant."""
    assert boost_gpu_inference_memory(image, had, was_set) is None


def test_boost_does_not_pass_the_memory_limit():
    """`oom_memory_limit` is the cap of all growth."""
    boosted = boost_gpu_inference_memory("ollama/ollama", Resources(), False, limit_mb=4096)
    assert boosted == Resources(memory_mb=4096)
    assert boost_gpu_inference_memory("ollama/ollama", Resources(), False, limit_mb=2048) is None


PATTERNS: list[tuple[str, object, tuple[str, ...]]] = [
    ("unset", None, DEFAULT_PATTERNS),
    ("list", ["*.partial"], ("*.partial",)),
    ("text", "*.partial, cache/*.tmp", ("*.partial", "cache/*.tmp")),
    ("none", [], ()),
    ("blank", " ", ()),
]


@pytest.mark.parametrize(("given_value", "expected"), [p[1:] for p in PATTERNS])
def test_cleanup_patterns_of_the_user_take_the_place_of_the_defaults(
    given_value: object, expected: tuple[str, ...]
) -> None:
    assert parse_job_values({"cleanup_patterns": given_value}).cleanup_patterns == expected


CLEANUP_REFUSED: list[tuple[str, dict[str, object], str]] = [
    ("leaves", {"cleanup_patterns": ["a/../../b"]}, "leads out of the attempt's own folders"),
    ("number", {"cleanup_patterns": 7}, "cleanup_patterns 7: allowed is a list of patterns"),
    ("hook", {"cleanup_hook": ["rm"]}, "allowed is a command, or package.module.function"),
    ("open quote", {"cleanup_hook": "sh -c 'x"}, "Close the quote"),
    ("long hook", {"cleanup_hook": "x" * 2001}, "2001 characters, allowed are 2000"),
    ("hook with NUL", {"cleanup_hook": "rm \0x"}, "a NUL, which no command can have"),
    ("blank hook", {"cleanup_hook": " "}, "give a command or package.module.function"),
]


@pytest.mark.parametrize(("values", "said"), [p[1:] for p in CLEANUP_REFUSED])
def test_cleanup_that_cannot_be_done_is_refused_as_invalid(
    values: dict[str, object], said: str
) -> None:
    error = refused(values)
    assert said in str(error)
    assert error.failure is FailureClass.INVALID_CONFIG


HOOKS: list[tuple[str, object, object, str | None]] = [
    ("unset", None, "worker.tidy", "worker.tidy"),
    ("empty", "", "worker.tidy", "worker.tidy"),
    ("one of its own", "run.tidy", "worker.tidy", "run.tidy"),
    ("empty in both", "", "", None),
    ("empty at the worker", None, "", None),
]


@pytest.mark.parametrize(
    ("of_run", "of_worker", "expected"), [p[1:] for p in HOOKS], ids=[p[0] for p in HOOKS]
)
def test_empty_hook_of_a_run_means_that_of_the_worker(
    of_run: object, of_worker: object, expected: str | None
) -> None:
    values = parse_job_values({"cleanup_hook": of_run}, {"cleanup_hook": of_worker})
    assert values.cleanup_hook == expected


def test_empty_hook_of_a_worker_is_allowed() -> None:
    assert default_problem("cleanup_hook", "") is None


def test_hook_with_an_open_quote_does_not_show_a_secret_in_it() -> None:
    hook = "sh -c 'AWS_SECRET_ACCESS_KEY=abcdefghijklmnop1234 clean"
    assert "abcdefghijklmnop1234" not in str(refused({"cleanup_hook": hook}))


@pytest.mark.parametrize("path", ["x" * 5000, 7, "a\0b"], ids=["too long", "a number", "a NUL"])
def test_progress_file_that_is_no_path_is_refused(path: object):
    """Else each look at it fails, in the log of the worker."""
    error = refused({"progress_file": path})
    assert "progress_file" in str(error)
    assert len(str(error)) < 400


def test_progress_file_of_a_usual_length_is_taken():
    parse_job_values({"progress_file": "x" * 4096})
