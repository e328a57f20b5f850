"""Attempt runs that a person has ended while their attempt waited, or ran."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from prefect.client.schemas.objects import FlowRun, State, StateType

from prefect_heteroflow.attempts.next_attempt import never_started_row
from prefect_heteroflow.attempts.restarts import tell_breakers
from prefect_heteroflow.core.attempts import Attempt, AttemptStatus
from prefect_heteroflow.core.breaker import Verdict
from prefect_heteroflow.orchestration import transitions
from prefect_heteroflow.orchestration.clock import utc_now
from prefect_heteroflow.orchestration.history import read_attempts, write_attempts

if TYPE_CHECKING:
    from prefect_heteroflow.retrying_worker import RetryingWorker

_WORDS = (StateType.COMPLETED, StateType.FAILED, StateType.CRASHED)
_WAITS = (StateType.SCHEDULED, StateType.PENDING, StateType.PAUSED)


async def end_with_waiting(
    worker: RetryingWorker, front: FlowRun, run: FlowRun, attempt: int
) -> bool:
    """End a front run as its attempt run was ended while the planned attempt waited in that.

    The row is closed, so that a person who retries the front run gets the next attempt.

    Args:
        worker: Its client is used.
        front: The front run, `Escalated`.
        run: Its newest attempt run, which has ended.
        attempt: Number of the attempt for which that was created.

    Returns:
        Whether it was so.

    Raises:
        httpx.HTTPError: The API failed.
    """
    client, state = worker.client, run.state
    if state is None or state.name == transitions.ATTEMPT_FAILED:
        return False
    history = await read_attempts(client, front.id)
    last = history[-1] if history else None
    if last is None or not _waits_in(last, run, attempt):
        return False
    if not ended_while_waiting(await client.read_flow_run_states(run.id)):
        return False
    why = f"Not started: its run was set to {state.name} while it waited."
    closed = never_started_row(last, why, flow_run_id=run.id, now=utc_now(), ended_task=True)
    await write_attempts(client, front.id, [closed], summary=True)
    await tell_breakers(worker, front.id, last.attempt, Verdict.NONE)
    await transitions.take_over(client, front.id, state)
    return True


def _waits_in(row: Attempt, run: FlowRun, attempt: int) -> bool:
    """A retry in the attempt run's own pool waits in that same run, under a later number."""
    if row.status is not AttemptStatus.SCHEDULED:
        return False
    return row.flow_run_id == str(run.id) or (not row.flow_run_id and row.attempt == attempt)


def ended_while_waiting(states: Sequence[State]) -> bool:
    """Whether a run was ended while it waited, not by the process that ran in it.

    A flow may report its end, and its worker write the row of the next attempt and die before it
    has scheduled the run again: then that attempt is still to come.

    Args:
        states: All states of the run.
    """
    newest = sorted(states, key=lambda state: state.timestamp, reverse=True)
    before = next((state for state in newest if not state.is_final()), None)
    return before is not None and before.type in _WAITS


def was_set_by_hand(state: State) -> bool:
    """Whether somebody else than the run's own process or worker has set this end.

    Prefect's clients give each state that they set a transition id; the buttons of the UI, the
    actions of automations and plain requests do not. An end that a person sets by a Python client
    is not told apart from the flow's own; nor are cancels, which have a way of their own.

    Args:
        state: The run's, as the server holds it.
    """
    return state.type in _WORDS and state.state_details.transition_id is None
