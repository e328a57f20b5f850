"""Where an attempt goes that ran out of GPU memory."""

from __future__ import annotations

from dataclasses import replace

from prefect_heteroflow.core.failures import MemoryFigures
from prefect_heteroflow.core.resources import Resources
from prefect_heteroflow.core.routing import NoRoute
from prefect_heteroflow.core.situation import (
    DeadEnd,
    Plan,
    Situation,
    find_place,
    find_place_when_back,
    gpu_memory_had_mb,
    same_place,
)
from prefect_heteroflow.core.units import bytes_to_mb_ceil, mb_to_bytes

# A CUDA context and a desktop take some hundred MiB on any GPU; less than this is not a neighbour.
_FOREIGN_FLOOR_BYTES = mb_to_bytes(1024)
_FOREIGN_SHARE = 0.10
# The driver keeps a little for itself: a job that needs more than this share needs a larger GPU.
_USABLE_SHARE = 0.97


def larger_gpu(situation: Situation) -> Plan | DeadEnd:
    """The smallest GPU that is enough, strictly larger than before, on any node or pool.

    When a foreign process filled the GPU, another GPU of the same size is enough.
    """
    if situation.nothing_known:
        return _same_gpu(situation, "no node is known")
    crowded = _crowded_text(situation)
    if crowded is not None:
        return _away_from_others(situation, crowded)
    had, needed = gpu_memory_had_mb(situation), _needed_mb(situation.diagnosis.figures)
    # Strictly more than before goes into the request, so that no later retry falls back.
    request = _with_gpu_of(situation.resources, needed, None if had is None else had + 1)
    found = find_place(
        situation,
        request,
        avoid_current=had is None,  # its size is unknown: any other node may have a larger one
        more_gpu_memory_than_mb=had,
    )
    need = _need_text(had, needed)
    if isinstance(found, NoRoute):
        later = find_place_when_back(situation, request, more_gpu_memory_than_mb=had)
        if later is None:
            return DeadEnd(reason=f"{need}; {found.reason}")
        found = later
    place, where = found
    return Plan(resources=request, place=place, change=f"{need}: next {where}", escalates=True)


def larger_gpu_here(situation: Situation) -> Plan | DeadEnd:
    """Another, larger GPU of the same node."""
    own = situation.own_node
    if own is None:
        return _same_gpu(situation, "the node's GPUs are not known")
    crowded = _crowded_text(situation)
    if crowded is not None:
        return _same_gpu(situation, crowded)
    had, needed = gpu_memory_had_mb(situation), _needed_mb(situation.diagnosis.figures)
    request = _with_gpu_of(situation.resources, needed, None if had is None else had + 1)
    least = request.gpu_memory_mb or 0
    larger = sorted(
        gpu.memory_mb for gpu in own.gpus if gpu.healthy is not False and gpu.memory_mb >= least
    )
    need = _need_text(had, needed)
    if len(larger) < request.gpu_count:
        return DeadEnd(
            reason=f"{need}; {own.name} has no larger GPU, and retry_strategy retry_same_node "
            "allows no other node: use retry_new_node"
        )
    place, where = same_place(situation)
    change = f"{need}: next a GPU of {larger[request.gpu_count - 1]} MB {where}"
    return Plan(resources=request, place=place, change=change, escalates=True)


def _away_from_others(situation: Situation, crowded: str) -> Plan:
    had, needed = gpu_memory_had_mb(situation), _needed_mb(situation.diagnosis.figures)
    request = _with_gpu_of(situation.resources, needed, had)
    found = find_place(situation, request, avoid_current=True)
    if isinstance(found, NoRoute):
        return _same_gpu(situation, f"{crowded}; there is no other node that fits")
    place, where = found
    return Plan(resources=request, place=place, change=f"{crowded}: next {where}", escalates=True)


def _same_gpu(situation: Situation, why: str) -> Plan:
    """The same request in the same place: nothing grew, so the ordinary delay applies."""
    place, where = same_place(situation)
    request = replace(situation.resources, gpu_count=max(situation.resources.gpu_count, 1))
    return Plan(resources=request, place=place, change=f"{why}: again {where}")


def _with_gpu_of(request: Resources, *floors_mb: int | None) -> Resources:
    """The request with at least one GPU, each at least as large as every known floor."""
    floors = [mb for mb in (request.gpu_memory_mb, *floors_mb) if mb is not None]
    return replace(
        request, gpu_count=max(request.gpu_count, 1), gpu_memory_mb=max(floors, default=None)
    )


def _crowded_text(situation: Situation) -> str | None:
    """Words for foreign processes that filled the GPU; `None` unless the numbers show it.

    They show it when the others held a good part and the attempt alone would have fitted.
    """
    figures = situation.diagnosis.figures
    if figures is None or figures.foreign_bytes is None or figures.needed_bytes is None:
        return None
    total = figures.total_bytes
    if total is None:
        had = gpu_memory_had_mb(situation)
        if had is None:
            return None
        total = mb_to_bytes(had)
    held_much = figures.foreign_bytes > max(_FOREIGN_FLOOR_BYTES, _FOREIGN_SHARE * total)
    fitted_alone = figures.needed_bytes <= _USABLE_SHARE * total
    if not (held_much and fitted_alone):
        return None
    return f"other processes held {bytes_to_mb_ceil(figures.foreign_bytes)} MB of the GPU"


def _needed_mb(figures: MemoryFigures | None) -> int | None:
    if figures is None or figures.needed_bytes is None:
        return None
    return bytes_to_mb_ceil(figures.needed_bytes)


def _need_text(had: int | None, needed: int | None) -> str:
    had_text = "GPU memory unknown" if had is None else f"had {had} MB of GPU memory"
    return had_text if needed is None else f"{had_text}, needed {needed} MB"
