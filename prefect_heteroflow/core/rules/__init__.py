"""The rule table: every line of text that this package knows, by family.

The order is the priority among rules that match the same line: the special before the general.
"""

from __future__ import annotations

from prefect_heteroflow.core.rules import (
    application,
    container_engine,
    disk_permissions,
    distributed,
    gpu_frameworks,
    gpu_hardware,
    gpu_out_of_memory,
    host_memory,
    network,
    noise,
    pytorch,
    scheduler_kubernetes,
)
from prefect_heteroflow.core.rules.model import Role, Rule

__all__ = ["RULES", "Role", "Rule", "rule_by_id"]

RULES: tuple[Rule, ...] = (
    *noise.RULES,
    *scheduler_kubernetes.RULES,
    *pytorch.RULES,
    *gpu_frameworks.RULES,
    *gpu_out_of_memory.RULES,
    *gpu_hardware.RULES,
    *host_memory.RULES,
    *distributed.RULES,
    *container_engine.RULES,
    *disk_permissions.RULES,
    *network.RULES,
    *application.RULES,
)

_BY_ID = {rule.id: rule for rule in RULES}


def rule_by_id(rule_id: str) -> Rule:
    """The rule with this id.

    Raises:
        KeyError: There is none.
    """
    return _BY_ID[rule_id]
