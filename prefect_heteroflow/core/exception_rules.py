"""Which failure a Python exception stands for, by its type and by what it says."""

from __future__ import annotations

from types import MappingProxyType

from prefect_heteroflow.core.failures import (
    Diagnosis,
    ExceptionInfo,
    FailureClass,
    FailureGroup,
)
from prefect_heteroflow.core.matching import Match, diagnosis_from, find_matches, shown
from prefect_heteroflow.core.root_cause import Chosen
from prefect_heteroflow.core.rules import Role

TYPES: MappingProxyType[str, FailureClass] = MappingProxyType(
    {
        "torch.OutOfMemoryError": FailureClass.GPU_OUT_OF_MEMORY,
        "torch.cuda.OutOfMemoryError": FailureClass.GPU_OUT_OF_MEMORY,
        "cupy.cuda.memory.OutOfMemoryError": FailureClass.GPU_OUT_OF_MEMORY,
        "ray.exceptions.OutOfMemoryError": FailureClass.CPU_OUT_OF_MEMORY,
        "ray.exceptions.NodeDiedError": FailureClass.NODE_LOST,
        "torch.distributed.DistBackendError": FailureClass.DISTRIBUTED_PEER_LOST,
        "torch.distributed.DistNetworkError": FailureClass.DISTRIBUTED_PEER_LOST,
        "torch.distributed.DistStoreError": FailureClass.DISTRIBUTED_PEER_LOST,
        "builtins.MemoryError": FailureClass.CPU_OUT_OF_MEMORY,
        "builtins.PermissionError": FailureClass.PERMISSION_DENIED,
        "builtins.ConnectionError": FailureClass.NETWORK_TIMEOUT,
        "builtins.TimeoutError": FailureClass.NETWORK_TIMEOUT,
        "asyncio.exceptions.TimeoutError": FailureClass.NETWORK_TIMEOUT,
        "concurrent.futures._base.TimeoutError": FailureClass.NETWORK_TIMEOUT,
        "socket.gaierror": FailureClass.NETWORK_TIMEOUT,
        "http.client.RemoteDisconnected": FailureClass.NETWORK_TIMEOUT,
        "http.client.IncompleteRead": FailureClass.NETWORK_TIMEOUT,
        "requests.exceptions.ConnectionError": FailureClass.NETWORK_TIMEOUT,
        "requests.exceptions.Timeout": FailureClass.NETWORK_TIMEOUT,
        "requests.exceptions.ChunkedEncodingError": FailureClass.NETWORK_TIMEOUT,
        "urllib3.exceptions.TimeoutError": FailureClass.NETWORK_TIMEOUT,
        "urllib3.exceptions.ProtocolError": FailureClass.NETWORK_TIMEOUT,
        "httpx.TransportError": FailureClass.NETWORK_TIMEOUT,
        "httpcore.TimeoutException": FailureClass.NETWORK_TIMEOUT,
        "aiohttp.client_exceptions.ClientConnectionError": FailureClass.NETWORK_TIMEOUT,
        "aiohttp.client_exceptions.ClientPayloadError": FailureClass.NETWORK_TIMEOUT,
        "botocore.exceptions.ConnectionError": FailureClass.NETWORK_TIMEOUT,
        "botocore.exceptions.HTTPClientError": FailureClass.NETWORK_TIMEOUT,
        "google.api_core.exceptions.ServerError": FailureClass.TRANSIENT_ERROR,
        "google.api_core.exceptions.TooManyRequests": FailureClass.TRANSIENT_ERROR,
        "builtins.KeyboardInterrupt": FailureClass.TASK_CANCELLED,
        "asyncio.exceptions.CancelledError": FailureClass.TASK_CANCELLED,
        "prefect.exceptions.TerminationSignal": FailureClass.TASK_CANCELLED,
    }
)
"""Dotted type name to class; the nearest type in the MRO that stands here decides."""


def diagnose_exception(
    info: ExceptionInfo, chosen: Chosen | None, *, trusts_messages: bool = True
) -> Diagnosis:
    """What `info` proves; the output (`chosen`) decides only where the exception is a victim.

    The deepest cause that has a name wins over what was raised in its wake.

    Args:
        info: The exception with its causes.
        chosen: What the output says.
        trusts_messages: Whether a message alone proves a transient failure; else the type has to.
    """
    chain = (*reversed(info.causes), info)
    found = [_one(link, trusts_messages=trusts_messages) for link in chain]
    named = [row for row in found if row is not None]
    roots = [row for role, row in named if role is Role.ROOT]
    if roots:
        return roots[0]
    told = None if chosen is None or chosen.survived else chosen
    if (
        told is not None
        and told.match.rule.role in (Role.PLATFORM, Role.ROOT)
        and (named or told.match.rule.role is Role.PLATFORM)
    ):
        return told.diagnosis()
    for role, row in named:
        if role is Role.FOLLOW_UP:
            return row
    return _application(info, named[0][1].failure if named else None)


def _one(info: ExceptionInfo, *, trusts_messages: bool) -> tuple[Role, Diagnosis] | None:
    name = info.type_names[0] if info.type_names else "Exception"
    text = f"{name.removeprefix('builtins.')}: {info.message}"
    matches = _matches(info.message if name.startswith(_PREFECTS) else text)
    if not (trusts_messages or _is_transient_by_type(info, name)):
        matches = [match for match in matches if not _is_transient(match.rule.failure)]
    if matches:
        best = min(matches, key=lambda match: (list(Role).index(match.rule.role), match.index))
        role = Role.ROOT if best.rule.role is Role.PLATFORM else best.rule.role
        return role, diagnosis_from(best.rule, best.line)
    for type_name in info.type_names:
        failure = TYPES.get(type_name)
        if failure is not None:
            bare = type_name.rpartition(".")[2]
            victim = failure is FailureClass.DISTRIBUTED_PEER_LOST
            return Role.FOLLOW_UP if victim else Role.ROOT, Diagnosis(
                failure=failure,
                rule=f"exception-{bare.lower()}",
                reason=f"The program raised `{name}`.",
                line=shown(text),
                confidence=0.8,
            )
    return None


_CLIENT_LIBRARIES = frozenset(
    {
        *("aiohttp", "asyncpg", "azure", "botocore", "elasticsearch", "google", "grpc"),
        *("httpcore", "httpx", "kombu", "paramiko", "psycopg", "psycopg2", "pymongo", "pymysql"),
        *("redis", "requests", "sqlalchemy", "sqlite3", "urllib3"),
    }
)
"""Clients of servers: what their errors say, the other side or the connection has said."""


_PREFECTS = "prefect.exceptions."
"""Types by which Prefect steers runs: `FlowPauseTimeout` is a decision, not a passing trouble."""


def _matches(text: str) -> list[Match]:
    return [
        match
        for match in find_matches(text.split("\n"), start=False)
        if match.rule.role is not Role.GENERIC
    ]


def _is_transient_by_type(info: ExceptionInfo, name: str) -> bool:
    """Whether the type stands for transient failures: by its bases, its name or its library.

    The message of an `OSError` is the operating system's if it has a number.
    """
    if name.partition(".")[0] in _CLIENT_LIBRARIES:
        return True
    if "builtins.OSError" in info.type_names and "[Errno " in info.message:
        return True
    if name.startswith(_PREFECTS):
        return False
    known = next((TYPES[base] for base in info.type_names if base in TYPES), None)
    if _is_transient(known):
        return True
    named = _matches(f"{name.removeprefix('builtins.')}: ")
    return any(_is_transient(match.rule.failure) for match in named)


def _is_transient(failure: FailureClass | None) -> bool:
    return failure is not None and failure.group is FailureGroup.TRANSIENT


def _application(info: ExceptionInfo, runner_up: FailureClass | None) -> Diagnosis:
    name = (info.type_names[0] if info.type_names else "Exception").removeprefix("builtins.")
    return Diagnosis(
        failure=FailureClass.APPLICATION_ERROR,
        rule="application-exception",
        reason=f"The program raised `{name}`.",
        line=shown(f"{name}: {info.message}".split("\n", 1)[0]),
        confidence=0.9,
        runner_up=None if runner_up is FailureClass.APPLICATION_ERROR else runner_up,
    )
