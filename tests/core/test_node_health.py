"""Which faults take a GPU or a node out of use, and which near misses do not."""

from __future__ import annotations

import pytest

from prefect_heteroflow.core.classify import diagnose
from prefect_heteroflow.core.failures import Diagnosis, Evidence, FailureClass
from prefect_heteroflow.core.node_health import (
    CordonAdvice,
    advise_cordon,
    advise_cordon_for_xid,
)
from prefect_heteroflow.core.user_rules import combine_user_rules

GPU, OTHER = "GPU-aaaa", "GPU-bbbb"
XID_79 = "NVRM: Xid (PCI:0000:02:00): 79, pid=1234, name=python, GPU has fallen off the bus."
XID_94 = "NVRM: Xid (PCI:0000:02:00): 94, pid=1234, name=python, Contained: SM (0x1)."
XID_31 = "NVRM: Xid (PCI:0000:1a:00): 31, pid=477445, name=python3, Ch 00000010, MMU Fault"
ECC = "RuntimeError: CUDA error: uncorrectable ECC error encountered"
LAUNCH = "RuntimeError: CUDA error: unspecified launch failure"

CASES = [
    ("fallen off the bus", XID_79, (GPU,), None, "Xid 79 of GPU GPU-aaaa: the node needs a reboot"),
    ("contained ECC", XID_94, (GPU,), GPU, "Xid 94: the GPU needs a reset or repair"),
    ("one of two GPUs", XID_94, (GPU, OTHER), None, "Xid 94: the GPU needs a reset or repair"),
    (
        "ECC error of CUDA",
        ECC,
        (GPU,),
        GPU,
        "The GPU reported a memory or link error that it could not correct (gpu-ecc-error)",
    ),
]


def said_by(line: str) -> Diagnosis:
    return diagnose(Evidence(phase="run", exit_code=1, log=line))


@pytest.mark.parametrize(
    ("line", "gpus", "cordoned", "reason"), [it[1:] for it in CASES], ids=[it[0] for it in CASES]
)
def test_hardware_fault_in_the_output_is_a_reason_to_cordon(
    line: str, gpus: tuple[str, ...], cordoned: str | None, reason: str
) -> None:
    assert advise_cordon(said_by(line), gpus) == CordonAdvice(gpu_uuid=cordoned, reason=reason)


@pytest.mark.parametrize(
    "line", [XID_31, LAUNCH, "CUDA out of memory."], ids=["program's xid", "guess", "memory"]
)
def test_fault_of_the_program_or_a_guess_cordons_nothing(line: str) -> None:
    assert advise_cordon(said_by(line), (GPU,)) is None


def test_xid_that_was_observed_is_a_reason_too() -> None:
    diagnosis = diagnose(Evidence(phase="run", exit_code=1, xid_codes=(94,)))
    assert advise_cordon(diagnosis, (GPU,)) == CordonAdvice(
        gpu_uuid=GPU,
        reason="The NVIDIA driver reported Xid 94: the GPU is at fault (gpu-xid-observed)",
    )


def test_rule_of_a_user_cordons_nothing() -> None:
    """A text in the output, however the user classifies it, is no proof about a machine."""
    rules = combine_user_rules(
        retry_on=[{"pattern": "driver was reset", "class": "GpuHardwareError"}], stop_on=[]
    )
    diagnosis = diagnose(
        Evidence(phase="run", exit_code=1, log="driver was reset"), user_rules=rules
    )
    assert diagnosis.failure is FailureClass.GPU_HARDWARE_ERROR
    assert advise_cordon(diagnosis, (GPU,)) is None


XIDS = [(79, CordonAdvice(gpu_uuid=None, reason="Xid 79 of GPU GPU-aaaa: the node needs a reboot"))]
XIDS += [(48, CordonAdvice(gpu_uuid=GPU, reason="Xid 48: the GPU needs a reset or repair"))]


@pytest.mark.parametrize(("code", "advice"), [*XIDS, (31, None), (43, None), (154, None)])
def test_event_of_the_driver_cordons_for_hardware_alone(
    code: int, advice: CordonAdvice | None
) -> None:
    assert advise_cordon_for_xid(code, GPU) == advice
