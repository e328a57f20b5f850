"""Which name was meant by one that is mistyped."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from difflib import get_close_matches

from prefect_heteroflow.core.job_values import JOB_VARIABLE_NAMES
from prefect_heteroflow.core.valid_text import on_one_line

_OURS = 0.75
"""How like a name of ours a job variable must be, for others have job variables of their own too.

`max_retrys` is 0.86 like `max_retries`.
"""


def near_name(name: str, known: Iterable[str], closeness: float = 0.6) -> str | None:
    """The known name that is most like this one, whatever its case; `None` if none is close.

    Args:
        name: What was typed.
        known: The names that there are, in lower case.
        closeness: Between 0 and 1; 1 means the same.
    """
    found = get_close_matches(name.lower(), list(known), n=1, cutoff=closeness)
    return found[0] if found else None


def doubtful_variables(
    given: Iterable[str], template: Collection[str], *, pool: str
) -> tuple[str, ...]:
    """A sentence for each job variable that the pool ignores and that is most likely one of ours.

    Variables that are not close to ours are somebody else's business.

    Args:
        given: Names that a deployment or a run sets.
        template: Names that the base job template of the pool knows.
        pool: Its name.
    """
    told = []
    for name in given:
        if name in template or name in JOB_VARIABLE_NAMES:
            continue
        meant = near_name(name, JOB_VARIABLE_NAMES, _OURS)
        if meant is not None:
            told.append(
                f"{on_one_line(name)} is no job variable of pool {pool!r} and is ignored; did you"
                f" mean {meant}?"
            )
    return tuple(told)
