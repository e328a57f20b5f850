"""Which container images serve models on a GPU, by the name of their repository."""

from __future__ import annotations

import re

# Name -> its words. A name matches where its words stand together in one part of the path, so
# that `vllm-openai`, `my-vllm` and `tritonserver` match, and `vllmish` and `triton` (also the
# name of a compiler) do not.
_SERVERS: tuple[tuple[str, ...], ...] = (
    ("vllm",),
    ("llama", "cpp"),  # llama.cpp, llama-cpp-python
    ("llamacpp",),
    ("koboldcpp",),
    ("llama", "server"),
    ("text", "generation", "inference"),
    ("tgi",),
    ("text", "generation", "webui"),
    ("text", "embeddings", "inference"),
    ("sglang",),
    ("tritonserver",),
    ("triton", "server"),
    ("triton", "inference", "server"),
    ("ollama",),
    ("lmdeploy",),
    ("tensorrt", "llm"),
    ("tensorrtllm",),
    ("trtllm",),
    ("lorax",),
    ("localai",),
    ("xinference",),
    ("aphrodite", "engine"),
    ("mlc", "llm"),
    ("tabbyapi",),
    ("exllamav2",),
    ("deepspeed", "mii"),
    ("nim",),  # nvcr.io/nim/meta/llama3-8b-instruct
)

# Words of images that stand beside a server and hold no model.
_COMPANIONS = frozenset(
    (
        *("doc", "docs", "documentation", "site", "website"),
        *("client", "clients", "cli", "sdk", "ui", "webui", "gui", "frontend"),
        *("proxy", "gateway", "router", "operator", "controller", "helm"),
        *("exporter", "metrics", "dashboard", "bench", "benchmark", "benchmarks"),
        *("test", "tests", "example", "examples", "downloader", "converter"),
    )
)


def is_gpu_inference_image(image: str) -> bool:
    """Whether the image serves a model: vLLM, llama.cpp, TGI, SGLang, Triton, Ollama and so on.

    Registry, tag and digest do not count: `open-webui:ollama` is no model server.
    """
    parts = _repository_parts(image)
    if not parts:
        return False
    words = [tuple(re.split(r"[-_.]+", part)) for part in parts]
    server = next((name for part in words for name in _SERVERS if _holds(part, name)), None)
    return server is not None and _COMPANIONS.isdisjoint(set(words[-1]) - set(server))


def _holds(words: tuple[str, ...], name: tuple[str, ...]) -> bool:
    return any(words[at : at + len(name)] == name for at in range(len(words) - len(name) + 1))


def _repository_parts(image: str) -> list[str]:
    """The path of an image reference without registry, tag and digest, in lower case."""
    parts = image.strip().lower().partition("@")[0].split("/")
    parts[-1] = parts[-1].partition(":")[0]
    is_registry = "." in parts[0] or ":" in parts[0] or parts[0] == "localhost"
    if len(parts) > 1 and is_registry:
        parts = parts[1:]
    return [part for part in parts if part]
