"""The user's own rules: `retry_on` and `stop_on` (stub)."""
from __future__ import annotations
from collections.abc import Sequence
from dataclasses import dataclass
from prefect_heteroflow.core.failures import Diagnosis, Evidence

@dataclass(frozen=True, slots=True, kw_only=True)
class UserRule:
    """One rule of the user."""
    pattern: str

def apply_user_rules(found: Diagnosis, evidence: Evidence, rules: Sequence[UserRule]) -> Diagnosis:
    """Stub."""
    return found
