"""Which GPU or node a hardware fault takes out of use, and why."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from prefect_heteroflow.core.failures import Diagnosis, FailureClass
from prefect_heteroflow.core.status_rules import HARDWARE_XIDS
from prefect_heteroflow.core.user_rules import is_by_user_rule

CERTAIN = 0.9
"""A cordon needs a person to undo it, so a guess about the hardware is not enough."""
REBOOT_XIDS = frozenset({79})
"""After these the driver works again only when the machine was started anew."""

_XID_LINE = re.compile(r"\bXid \([^)]{1,60}\): ([0-9]{1,4})\b")


@dataclass(frozen=True, slots=True, kw_only=True)
class CordonAdvice:
    """Cordon this, because."""

    gpu_uuid: str | None
    """The GPU; `None` for the whole node."""
    reason: str
    """One sentence, for whoever looks at the node."""


def advise_cordon(diagnosis: Diagnosis, gpu_uuids: Sequence[str]) -> CordonAdvice | None:
    """What the end of an attempt says of the hardware it ran on; `None` if nothing certain.

    The GPU is cordoned if the attempt had just one; of several, or where none is known, nobody
    can tell which it was, so the node is. A rule of the user never cordons.

    Args:
        diagnosis: Why the attempt failed.
        gpu_uuids: The GPUs that it was given.
    """
    if diagnosis.failure is not FailureClass.GPU_HARDWARE_ERROR:
        return None
    of_a_user = diagnosis.verdict is not None or is_by_user_rule(diagnosis)
    if diagnosis.confidence < CERTAIN or of_a_user:
        return None
    found = _XID_LINE.search(diagnosis.line or "")
    if found is not None:
        advice = advise_cordon_for_xid(int(found[1]), _only(gpu_uuids))
        if advice is not None:
            return advice
    reason = f"{diagnosis.reason.rstrip('.')} ({diagnosis.rule})"
    return CordonAdvice(gpu_uuid=_only(gpu_uuids), reason=reason)


def advise_cordon_for_xid(code: int, gpu_uuid: str | None) -> CordonAdvice | None:
    """What an Xid event of the driver says; `None` for one that a program causes.

    Args:
        code: The Xid.
        gpu_uuid: The GPU that it is about, `None` if not known.
    """
    if code not in HARDWARE_XIDS:
        return None
    if code in REBOOT_XIDS:
        of = f" of GPU {gpu_uuid}" if gpu_uuid else ""
        return CordonAdvice(gpu_uuid=None, reason=f"Xid {code}{of}: the node needs a reboot")
    return CordonAdvice(gpu_uuid=gpu_uuid, reason=f"Xid {code}: the GPU needs a reset or repair")


def _only(gpu_uuids: Sequence[str]) -> str | None:
    return gpu_uuids[0] if len(gpu_uuids) == 1 else None
