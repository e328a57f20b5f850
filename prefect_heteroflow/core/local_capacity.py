"""Which of the attempts that wait on one node may start now, and with which GPUs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from prefect_heteroflow.core.resources import Gpu


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What one waiting attempt takes of the node."""

    reserved_mb: int = 0
    """Memory that it was promised, MiB; 0 for an attempt that asked for none."""
    gpu_count: int = 0
    gpu_memory_mb: int | None = None
    """Least total memory of each GPU, MiB."""
    shares_gpu: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Free:
    """What of the node is not taken."""

    slots: int
    memory_mb: int
    gpus: Sequence[Gpu]
    """All GPUs of the node."""
    exclusive: frozenset[str] = frozenset()
    """GPUs of attempts that do not share."""
    shared: Mapping[str, int]
    """GPU -> how many attempts share it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """One attempt that may start."""

    index: int
    """Its place in the line."""
    gpus: tuple[Gpu, ...]


def next_grant(waiting: Sequence[Wish], free: Free) -> Grant | None:
    """The first in line that fits, or `None`.

    One that does not fit yet is overtaken, but not by others that want the same scarce thing:
    else a wish for two GPUs would starve behind a stream of wishes for one.
    """
    if free.slots < 1:
        return None
    held_up_for_gpus = held_up_for_memory = False
    for index, wish in enumerate(waiting):
        if (wish.gpu_count and held_up_for_gpus) or (wish.reserved_mb and held_up_for_memory):
            continue
        gpus = choose_gpus(wish, free)
        if gpus is None:
            held_up_for_gpus = True
        elif wish.reserved_mb > free.memory_mb:
            held_up_for_memory = True
        else:
            return Grant(index=index, gpus=gpus)
    return None


def choose_gpus(wish: Wish, free: Free) -> tuple[Gpu, ...] | None:
    """The smallest free GPUs that are large enough; `None` if there are too few."""
    if wish.gpu_count == 0:
        return ()
    least_mb = wish.gpu_memory_mb or 0
    fitting = [
        gpu
        for gpu in free.gpus
        if gpu.memory_mb >= least_mb
        and gpu.healthy is not False
        and gpu.uuid not in free.exclusive
        and (wish.shares_gpu or not free.shared.get(gpu.uuid))
    ]
    fitting.sort(key=lambda gpu: (free.shared.get(gpu.uuid, 0), gpu.memory_mb, gpu.uuid))
    if len(fitting) < wish.gpu_count:
        return None
    return tuple(fitting[: wish.gpu_count])
