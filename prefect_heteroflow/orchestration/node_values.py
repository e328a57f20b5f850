"""Nodes, cordons and pool tags as values of Prefect Variables: names, JSON out, JSON in. Pure."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from typing import Any

from prefect_heteroflow.core.resources import Gpu, Node, Pool
from prefect_heteroflow.core.valid_text import on_one_line, storable

VARIABLE_PREFIX = "heteroflow_"
NODE_PREFIX = f"{VARIABLE_PREFIX}node_"
CORDON_PREFIX = f"{VARIABLE_PREFIX}cordon_"
POOL_PREFIX = f"{VARIABLE_PREFIX}pool_"

MAX_VALUE_BYTES = 5000
"""What Prefect 3.9.1 takes for one Variable, as JSON."""
MAX_ERROR_CHARACTERS = 500
MAX_SLUG_CHARACTERS = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """The worker process that publishes a node."""

    instance_id: str
    """Different for each start of a worker."""
    host: str | None = None
    boot_id: str | None = None
    """The kernel's id of this boot of the host."""
    pid_namespace: str | None = None
    """Two processes can compare their process ids only within one."""
    pid: int | None = None
    pid_started: int | None = None
    """Start of the process in the kernel's ticks: tells a reused process id apart."""

    def shares_process_ids_with(self, other: Holder) -> bool:
        """Both run under one kernel and see the same process ids."""
        mine = (self.host, self.boot_id, self.pid_namespace)
        return None not in mine and mine == (other.host, other.boot_id, other.pid_namespace)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cordon:
    """What is kept out of use on one node, and why."""

    name: str
    reason: str | None = None
    """Why the whole node is; `None` if only GPUs are."""
    gpus: Mapping[str, str]
    """Uuid -> reason."""
    at: datetime | None = None
    """When it was written last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRecord:
    """A node as it was last published."""

    node: Node
    holder: Holder
    heartbeat_at: datetime
    stopped: bool = False
    """Its worker said goodbye."""
    cordon: Cordon | None = None
    """What somebody keeps out of use of it, if anything."""


def variable_slug(name: str) -> str:
    """`[a-z0-9_]` text for a name; other names give other texts.

    A name that is no such text itself, is long, or looks like one of the made texts, gets the
    first 8 hexadecimal digits of its SHA-256: `node-a` is `node_a_` and the digits.
    """
    plain = re.fullmatch(r"[a-z0-9_]+", name) and not re.search(r"_[0-9a-f]{8}$", name)
    if plain and len(name) <= MAX_SLUG_CHARACTERS:
        return name
    readable = re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_")[:MAX_SLUG_CHARACTERS]
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:8]
    return f"{readable}_{digest}"


def node_variable_name(node_name: str) -> str:
    """Name of the Variable that the node's worker writes."""
    return NODE_PREFIX + variable_slug(node_name)


def cordon_variable_name(node_name: str) -> str:
    """Name of the Variable that whoever cordons the node writes; the worker never does."""
    return CORDON_PREFIX + variable_slug(node_name)


def pool_variable_name(pool_name: str) -> str:
    """Name of the Variable with what is declared of a work pool."""
    return POOL_PREFIX + variable_slug(pool_name)


def node_to_value(
    node: Node, *, holder: Holder, heartbeat_at: datetime, stopped: bool = False
) -> dict[str, Any]:
    """JSON value of a node, within what a Variable holds.

    Cordon fields are left out: they live in a Variable of their own, so that a heartbeat cannot
    undo what somebody else has just written. A node with very many GPUs loses their names first,
    then the last of them.
    """
    value: dict[str, Any] = {
        "name": node.name,
        "pool": node.pool,
        "memory_mb": node.memory_mb,
        "gpus": [_gpu_to_value(gpu) for gpu in node.gpus],
        "last_error": storable(node.last_error or "")[:MAX_ERROR_CHARACTERS] or None,
        "docker": node.docker,
        "former_pools": list(node.former_pools),
        "worker": {
            "instance_id": holder.instance_id,
            "host": holder.host,
            "boot_id": holder.boot_id,
            "pid_namespace": holder.pid_namespace,
            "pid": holder.pid,
            "pid_started": holder.pid_started,
        },
        "updated": heartbeat_at.astimezone(timezone.utc).isoformat(),
        "stopped": stopped,
    }
    if _size(value) > MAX_VALUE_BYTES:
        value["gpus"] = [{**gpu, "name": ""} for gpu in value["gpus"]]
    while _size(value) > MAX_VALUE_BYTES and value["gpus"]:
        value["gpus"].pop()
    return value


def _gpu_to_value(gpu: Gpu) -> dict[str, Any]:
    return {
        "uuid": gpu.uuid,
        "name": gpu.name,
        "memory_mb": gpu.memory_mb,
        "free_mb": gpu.free_mb,
        "healthy": gpu.healthy,
    }


def _size(value: object) -> int:
    return len(json.dumps(value, ensure_ascii=False).encode("utf-8", "replace"))


def parse_node_value(value: object) -> NodeRecord:
    """The record of a node's JSON value; `live` and the cordon are not known to it yet.

    Raises:
        ValueError: It is no such value; says what is wrong.
    """
    record = _mapping(value, "value")
    node = Node(
        name=_text(record, "name"),
        pool=_text(record, "pool"),
        memory_mb=_whole(record, "memory_mb", least=0),
        gpus=tuple(_parse_gpu(gpu) for gpu in _sequence(record, "gpus")),
        last_error=_optional_text(record, "last_error"),
        docker=_optional_claim(record, "docker"),
        former_pools=tuple(map(str, _sequence(record, "former_pools"))),
    )
    worker = _mapping(record.get("worker"), "worker")
    holder = Holder(
        instance_id=_text(worker, "instance_id"),
        host=_optional_text(worker, "host"),
        boot_id=_optional_text(worker, "boot_id"),
        pid_namespace=_optional_text(worker, "pid_namespace"),
        pid=_optional_whole(worker, "pid"),
        pid_started=_optional_whole(worker, "pid_started"),
    )
    return NodeRecord(
        node=node,
        holder=holder,
        heartbeat_at=_parse_time(_text(record, "updated"), "updated"),
        stopped=record.get("stopped") is True,
    )


def _parse_gpu(value: object) -> Gpu:
    gpu = _mapping(value, "a GPU")
    return Gpu(
        uuid=_text(gpu, "uuid"),
        name=_optional_text(gpu, "name") or "",
        memory_mb=_whole(gpu, "memory_mb", least=0),
        free_mb=_optional_whole(gpu, "free_mb"),
        healthy=_optional_claim(gpu, "healthy"),
    )


def cordon_to_value(cordon: Cordon, *, at: datetime) -> dict[str, Any]:
    """JSON value of a cordon; reasons are cut so that it fits, and put on one line."""
    return {
        "name": cordon.name,
        "cordoned": cordon.reason is not None,
        "reason": None
        if cordon.reason is None
        else on_one_line(cordon.reason)[:MAX_ERROR_CHARACTERS],
        "gpus": {uuid: on_one_line(why)[:60] for uuid, why in list(cordon.gpus.items())[:32]},
        "at": at.astimezone(timezone.utc).isoformat(),
    }


def parse_cordon_value(value: object) -> Cordon:
    """The cordon of its JSON value.

    Raises:
        ValueError: It is no such value; says what is wrong.
    """
    record = _mapping(value, "value")
    gpus = record.get("gpus") or {}
    reason = _optional_text(record, "reason")
    return Cordon(
        name=_text(record, "name"),
        reason=(reason or "no reason given") if record.get("cordoned") is True else None,
        gpus={str(uuid): str(why) for uuid, why in _mapping(gpus, "gpus").items()},
        at=_parse_time(record["at"], "at") if isinstance(record.get("at"), str) else None,
    )


def apply_cordon(node: Node, cordon: Cordon | None) -> Node:
    """The node with the cordon's marks; a cordoned GPU counts as not healthy."""
    if cordon is None:
        return node
    gpus = tuple(
        replace(gpu, healthy=False) if gpu.uuid in cordon.gpus else gpu for gpu in node.gpus
    )
    reason = cordon.reason
    return replace(node, cordoned=reason is not None, cordon_reason=reason, gpus=gpus)


def pool_to_value(pool: Pool) -> dict[str, Any]:
    """JSON value of what is declared of a pool."""
    return {
        "name": pool.name,
        "memory_mb": pool.memory_mb,
        "gpu_memory_mb": pool.gpu_memory_mb,
        "gpu_count": pool.gpu_count,
    }


def parse_pool_value(value: object) -> Pool:
    """What is declared of a pool, from its JSON value.

    Raises:
        ValueError: It is no such value; says what is wrong.
    """
    record = _mapping(value, "value")
    return Pool(
        name=_text(record, "name"),
        memory_mb=_optional_whole(record, "memory_mb", least=1),
        gpu_memory_mb=_optional_whole(record, "gpu_memory_mb", least=1),
        gpu_count=_optional_whole(record, "gpu_count"),
    )


def _mapping(value: object, what: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise ValueError(f"{what} is {_shown(value)}, not an object")
    return value


def _sequence(record: Mapping[str, Any], key: str) -> list[Any]:
    value = record.get(key) or []
    if not isinstance(value, list):
        raise ValueError(f"{key} is {_shown(value)}, not a list")
    return value


def _text(record: Mapping[str, Any], key: str) -> str:
    value = record.get(key)
    if not isinstance(value, str) or not value:
        raise ValueError(f"{key} is {_shown(value)}, not a text")
    return value


def _optional_text(record: Mapping[str, Any], key: str) -> str | None:
    return None if record.get(key) in (None, "") else _text(record, key)


def _whole(record: Mapping[str, Any], key: str, *, least: int = 0) -> int:
    value = record.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ValueError(f"{key} is {_shown(value)}, not a whole number of at least {least}")
    return value


def _optional_whole(record: Mapping[str, Any], key: str, *, least: int = 0) -> int | None:
    return None if record.get(key) is None else _whole(record, key, least=least)


def _optional_claim(record: Mapping[str, Any], key: str) -> bool | None:
    value = record.get(key)
    if value is not None and not isinstance(value, bool):
        raise ValueError(f"{key} is {_shown(value)}, not true or false")
    return value


def _parse_time(text: str, key: str) -> datetime:
    try:
        # Python 3.10 does not read the suffix Z.
        time = datetime.fromisoformat(re.sub(r"[zZ]$", "+00:00", text))
    except ValueError:
        raise ValueError(f"{key} is {_shown(text)}, not an ISO time") from None
    return time.replace(tzinfo=timezone.utc) if time.tzinfo is None else time


def _shown(value: object) -> str:
    return repr(value)[:60]
