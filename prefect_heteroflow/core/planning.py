"""What the next attempt would be for each action: resources and place, or a dead end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import MappingProxyType

from prefect_heteroflow.core.actions import Action
from prefect_heteroflow.core.gpu_planning import larger_gpu, larger_gpu_here
from prefect_heteroflow.core.policy import Place
from prefect_heteroflow.core.resources import DEFAULT_SHM_MB, Resources
from prefect_heteroflow.core.routing import NoRoute, fits, largest_memory_mb
from prefect_heteroflow.core.situation import (
    DeadEnd,
    Plan,
    Situation,
    find_place,
    find_place_when_back,
    same_place,
)


def plan_next(action: Action, situation: Situation) -> Plan | DeadEnd:
    """The next attempt that `action` asks for; `Action.STOP` asks for none (`KeyError`)."""
    return _PLANNERS[action](situation)


# --- the same attempt: in the same place, or on another node ---------------------------------


def _again(situation: Situation) -> Plan:
    place, where = same_place(situation)
    return Plan(resources=situation.resources, place=place, change=f"again {where}")


def _other_node(situation: Situation) -> Plan:
    resources = situation.resources
    if situation.pool_unknown:
        place = Place(pool=situation.pool)
        where = f"in pool {situation.pool} (none of its nodes is known)"
        return Plan(resources=resources, place=place, change=f"again {where}")
    found = find_place(situation, resources, avoid_current=True)
    if isinstance(found, NoRoute) and situation.has_moved:
        # It was lost with its worker; the machine has another one, of another pool.
        found = find_place(situation, resources)
    if isinstance(found, NoRoute):
        place, where = same_place(situation)
        change = f"again {where}; there is no other node that fits"
        return Plan(resources=resources, place=place, change=change)
    place, where = found
    return Plan(resources=resources, place=place, change=f"again {where}")


# --- host memory and /dev/shm ----------------------------------------------------------------


def _grow_memory(situation: Situation) -> Plan | DeadEnd:
    grown = _grown(situation)
    if isinstance(grown, DeadEnd):
        return grown
    if situation.pool_unknown:
        place, where = same_place(situation)
        return _memory_plan(situation, grown, place, f"{where}; none of its nodes is known")
    found = find_place(situation, grown)
    if not isinstance(found, NoRoute):
        return _memory_plan(situation, grown, *found)
    own = situation.own_node
    if own is not None and not own.stopped and fits(grown, own):
        # Cordoned, paused or not heard of: it will be back.
        place = Place(pool=situation.pool, node=situation.node)
        return _memory_plan(situation, grown, place, f"on {own.name} once it is free again")
    return _last_run_at_most(situation, grown, found)


def _last_run_at_most(situation: Situation, grown: Resources, no_route: NoRoute) -> Plan | DeadEnd:
    """One last run with all that the largest node has, if that is more than before.

    Else the run waits for a node that holds what has grown and is away just now. After a last run
    neither follows: it was the last.
    """
    request = situation.resources
    if situation.was_last_run:
        return DeadEnd(
            reason=f"the attempt had {request.memory_mb} MB, all that was to be had, as its last"
            f" run; {no_route.reason}"
        )
    most = largest_memory_mb(request, situation.cluster, containers=situation.containers)
    if most is not None and most > request.memory_mb:
        clipped = replace(request, memory_mb=most)
        found = find_place(situation, clipped)
        if not isinstance(found, NoRoute):
            place, where = found
            is_known = any(fits(grown, node) for node in situation.cluster.nodes)
            open_ = " that takes runs now" if is_known else ""
            where = f"{where}; no node{open_} has more, so a last run"
            return _memory_plan(situation, clipped, place, where)
    later = find_place_when_back(situation, grown)
    if later is not None:
        return _memory_plan(situation, grown, *later)
    return DeadEnd(reason=no_route.reason)


def _grow_memory_here(situation: Situation) -> Plan | DeadEnd:
    grown = _grown(situation)
    if isinstance(grown, DeadEnd):
        return grown
    place, where = same_place(situation)
    own = situation.own_node
    if own is None or own.memory_mb >= grown.memory_mb:
        return _memory_plan(situation, grown, place, where)
    if own.memory_mb > situation.resources.memory_mb:
        clipped = replace(grown, memory_mb=own.memory_mb)
        return _memory_plan(situation, clipped, place, f"{where}; it has no more, so a last run")
    return DeadEnd(
        reason=f"{own.name} has {own.memory_mb} MB and the attempt had all of it; "
        "retry_strategy retry_same_node allows no other node: use retry_new_node"
    )


def _grown(situation: Situation) -> Resources | DeadEnd:
    last, limit = situation.resources.memory_mb, situation.policy.oom_memory_limit
    if last >= limit:
        return DeadEnd(
            reason=f"the attempt had {last} MB and oom_memory_limit is {limit} MB; "
            "raise oom_memory_limit or make the job smaller"
        )
    return replace(situation.resources, memory_mb=min(2 * last, limit))


def _memory_plan(situation: Situation, grown: Resources, place: Place, where: str) -> Plan:
    change = f"memory {situation.resources.memory_mb} -> {grown.memory_mb} MB {where}"
    return Plan(resources=grown, place=place, change=change, escalates=True)


def _grow_shm(situation: Situation) -> Plan | DeadEnd:
    request = situation.resources
    last = DEFAULT_SHM_MB if request.shm_mb is None else request.shm_mb
    if last >= request.memory_mb:  # its pages count as the attempt's memory
        return DeadEnd(
            reason=f"/dev/shm had {last} MB and cannot be larger than memory_mb, "
            f"{request.memory_mb} MB; raise memory_mb or make the job smaller"
        )
    grown = replace(request, shm_mb=min(2 * last, request.memory_mb))
    place, where = same_place(situation)
    change = f"/dev/shm {last} -> {grown.shm_mb} MB {where}"
    return Plan(resources=grown, place=place, change=change, escalates=True)


_PLANNERS: MappingProxyType[Action, Callable[[Situation], Plan | DeadEnd]] = MappingProxyType(
    {
        Action.GROW_MEMORY: _grow_memory,
        Action.GROW_MEMORY_HERE: _grow_memory_here,
        Action.LARGER_GPU: larger_gpu,
        Action.LARGER_GPU_HERE: larger_gpu_here,
        Action.GROW_SHM: _grow_shm,
        Action.AGAIN: _again,
        Action.OTHER_NODE: _other_node,
    }
)
