"""What exit codes, signals, engine flags, Kubernetes reasons and our own requests prove."""

from __future__ import annotations

import errno
import re
from types import MappingProxyType

from prefect_heteroflow.core.failures import (
    OUTER_MEMORY_LIMIT,
    Diagnosis,
    Evidence,
    FailureClass,
)
from prefect_heteroflow.core.literals import BENIGN
from prefect_heteroflow.core.log_lines import split_lines
from prefect_heteroflow.core.matching import shown
from prefect_heteroflow.core.root_cause import Chosen

_NEARLY_FULL = 0.95
"""Peak use over limit from which a SIGKILL without another witness counts as memory."""

HARDWARE_XIDS = frozenset(
    (46, 48, 54, 62, 64, 74, 79, 94, 95, 109, 110, 119, 120, 136, 140, 143, *range(144, 151))
    # 151 to 154 are notices.
) | {155, 156, 158}
"""Xids that say that the GPU or its link is at fault (NVIDIA catalog of 2025-10)."""

_COMPLAINT = re.compile(
    r"\b[Ee]rror\b(?: [\w.]{1,30})? ?:(?! ?[\d.])|\bERROR\b|\bERR!|\[[EF]\]|\[[EF]:"
    r"|\b(?:FATAL|Fatal|fatal)\b|\b(?:[Ff]ailed|[Uu]nable|[Cc]ould not|[Cc]annot) "
    r"|\w(?:Error|Exception)\b|^[a-z_][\w.]{0,120}\.[A-Z]\w{2,60}: "
    r"|: error |: (?:unexpected|invalid) |Assertion failed"
    r"|\bCMake Error\b|\bcurl: \(\d|Traceback \(most recent call last\)"
)
_COMPLAINT_LINES = 200
_COMPLAINT_CHARACTERS = 64_000

_SIGNALS: MappingProxyType[int, tuple[FailureClass, str, str, float]] = MappingProxyType(
    {
        2: (FailureClass.TASK_CANCELLED, "signal-interrupt", "The process was interrupted.", 0.7),
        4: (FailureClass.PROCESS_CRASHED, "signal-illegal-instruction",
            "The process ran an instruction that this CPU does not know.", 0.85),
        6: (FailureClass.PROCESS_CRASHED, "signal-abort", "The process aborted itself.", 0.7),
        7: (FailureClass.PROCESS_CRASHED, "signal-bus",
            "The process crashed with a bus error.", 0.75),
        8: (FailureClass.PROCESS_CRASHED, "signal-arithmetic",
            "The process crashed in an arithmetic operation.", 0.8),
        9: (FailureClass.NODE_LOST, "signal-kill-without-witness",
            "The process was killed with SIGKILL from outside, and nothing shows that memory "
            "was the reason.", 0.4),
        11: (FailureClass.PROCESS_CRASHED, "signal-segmentation-fault",
             "The process crashed with a segmentation fault.", 0.85),
        15: (FailureClass.NODE_LOST, "signal-terminate-unasked",
             "The process was told to end (SIGTERM), and not by us.", 0.4),
        1: (FailureClass.NODE_LOST, "signal-hangup", "The process lost its terminal.", 0.4),
        24: (FailureClass.RESOURCE_LIMIT_EXCEEDED, "signal-cpu-limit",
             "The process used up its CPU time.", 0.85),
        25: (FailureClass.RESOURCE_LIMIT_EXCEEDED, "signal-file-size-limit",
             "The process reached the limit of file size.", 0.85),
    }
)  # fmt: skip

_STARTS: MappingProxyType[int, FailureClass] = MappingProxyType(
    {
        **dict.fromkeys((errno.ENOSPC, errno.EDQUOT, errno.EROFS), FailureClass.DISK_PRESSURE),
        **dict.fromkeys(
            (errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE),
            FailureClass.CONTAINER_RUNTIME_ERROR,
        ),
    }
)
"""Errors of a start that say something about the node and nothing about the run."""

_KUBERNETES: MappingProxyType[str, tuple[FailureClass, str]] = MappingProxyType(
    {
        "OOMKilled": (FailureClass.CPU_OUT_OF_MEMORY,
                      "Kubernetes killed the container for its memory limit."),
        "OutOfmemory": (FailureClass.CPU_OUT_OF_MEMORY,
                        "The node had too little memory to admit the pod."),
        "OutOfcpu": (FailureClass.NODE_LOST, "The node had too little CPU to admit the pod."),
        "ImagePullBackOff": (FailureClass.IMAGE_PULL_BACK_OFF, "The image cannot be pulled."),
        "ErrImagePull": (FailureClass.IMAGE_PULL_BACK_OFF, "The image cannot be pulled."),
        "ErrImageNeverPull": (FailureClass.IMAGE_NOT_FOUND,
                              "The image is not on the node and may not be pulled."),
        "InvalidImageName": (FailureClass.INVALID_CONFIG, "The image name is not valid."),
        "CreateContainerConfigError": (
            FailureClass.INVALID_CONFIG,
            "The pod refers to a secret, config map or key that does not exist.",
        ),
        "CreateContainerError": (FailureClass.CONTAINER_RUNTIME_ERROR,
                                 "The container runtime could not create the container."),
        "RunContainerError": (FailureClass.CONTAINER_RUNTIME_ERROR,
                              "The container runtime could not start the container."),
        "ContainerCannotRun": (FailureClass.INVALID_CONFIG,
                               "The container's command cannot be run."),
        "StartError": (FailureClass.INVALID_CONFIG, "The container's command cannot be run."),
        "Evicted": (FailureClass.NODE_LOST, "Kubernetes evicted the pod from its node."),
        "Preempted": (FailureClass.PREEMPTED, "The pod was preempted for other work."),
        "Preempting": (FailureClass.PREEMPTED, "The pod was preempted for other work."),
        "PreemptionByScheduler": (FailureClass.PREEMPTED, "The pod was preempted for other work."),
        "DeadlineExceeded": (FailureClass.RESOURCE_LIMIT_EXCEEDED,
                             "The job ran into its time limit."),
        "NodeLost": (FailureClass.NODE_LOST, "The node stopped answering."),
        "NodeShutdown": (FailureClass.NODE_LOST, "The node was shut down."),
        "Shutdown": (FailureClass.NODE_LOST, "The node was shut down."),
        "Terminated": (FailureClass.NODE_LOST, "The pod was ended together with its node."),
        "UnexpectedAdmissionError": (FailureClass.NODE_LOST, "The node did not admit the pod."),
        "NodeAffinity": (FailureClass.INVALID_CONFIG, "No node may run the pod."),
        "FailedMount": (FailureClass.INVALID_CONFIG, "A volume of the pod cannot be mounted."),
    }
)  # fmt: skip


def succeeded(evidence: Evidence) -> bool:
    """Exit code 0 and no witness of a failure; frightening output does not count."""
    return (
        evidence.exit_code == 0
        and not evidence.signal
        and not evidence.oom_killed
        and not evidence.oom_kill_count
        and evidence.phase not in ("start", "lost")
        and evidence.exception is None
        and not evidence.state_message
        and not evidence.engine_error
        and evidence.kubernetes_reason in (None, "", "Completed")
    )


def from_requests(evidence: Evidence) -> Diagnosis | None:
    """What we or the user asked for: it explains any end of the process."""
    if evidence.cancel_requested:
        return Diagnosis(
            failure=FailureClass.TASK_CANCELLED,
            rule="cancel-requested",
            reason="The run was cancelled by a user.",
        )
    if evidence.deadline_exceeded:
        return Diagnosis(
            failure=FailureClass.RESOURCE_LIMIT_EXCEEDED,
            rule="deadline-exceeded",
            reason="The run reached the time limit that was set for it.",
        )
    return None


def from_witnesses(evidence: Evidence) -> Diagnosis | None:
    """What the engine, the kernel, the driver or Kubernetes saw with their own eyes."""
    if evidence.oom_killed or evidence.oom_kill_count:
        if _outer_limit_was_the_bound(evidence):
            return _killed_by_outer_limit(evidence)
        rule = "docker-oom-killed" if evidence.oom_killed else "cgroup-oom-kill"
        limit = evidence.memory_limit_mb
        of_limit = "" if limit is None else f" of {limit} MB"
        return Diagnosis(
            failure=FailureClass.CPU_OUT_OF_MEMORY,
            rule=rule,
            reason=f"A process of the attempt was killed for reaching its memory limit{of_limit}.",
        )
    hardware = [code for code in evidence.xid_codes or () if code in HARDWARE_XIDS]
    if hardware:
        return Diagnosis(
            failure=FailureClass.GPU_HARDWARE_ERROR,
            rule="gpu-xid-observed",
            reason=f"The NVIDIA driver reported Xid {hardware[0]}: the GPU is at fault.",
        )
    if evidence.stop_requested:
        return Diagnosis(
            failure=FailureClass.NODE_LOST,
            rule="stopped-by-worker",
            reason="The worker ended the attempt itself, because it was shutting down.",
        )
    return None


def _outer_limit_was_the_bound(evidence: Evidence) -> bool:
    """The kernel counts a kill in the group of the killed process, whoever's limit it was."""
    return evidence.own_limit_reached is False and not _memory_was_full(evidence)


def _killed_by_outer_limit(evidence: Evidence) -> Diagnosis:
    peak, limit, outer = (
        evidence.peak_memory_mb,
        evidence.memory_limit_mb,
        evidence.outer_limit_mb,
    )
    used = "less than" if peak is None else f"{peak} MB of"
    own = "its memory limit" if limit is None else f"its own limit of {limit} MB"
    shared = (
        "the memory of the machine was used up"
        if outer is None
        else f"the {outer} MB that the flow run's own process and all of its tasks share"
        " were used up"
    )
    return Diagnosis(
        failure=FailureClass.CPU_OUT_OF_MEMORY,
        rule=OUTER_MEMORY_LIMIT,
        reason=f"A process of the attempt was killed while it used {used} {own}: {shared}.",
    )


def from_kubernetes(evidence: Evidence, chosen: Chosen | None) -> Diagnosis | None:
    """The reason that Kubernetes gives, made more exact by its message."""
    reason = evidence.kubernetes_reason or ""
    row = _KUBERNETES.get(reason)
    if row is None:
        return None
    failure, sentence = row
    if chosen is not None and reason in (
        "Evicted", "ImagePullBackOff", "ErrImagePull", "RunContainerError", "CreateContainerError",
        "StartError", "ContainerCannotRun", "Terminated",
    ):  # fmt: skip
        named = chosen.match.rule.failure
        if (named is not None and named.group is not FailureClass.APPLICATION_ERROR.group) or (
            chosen.match.rule.at_start
        ):
            return chosen.diagnosis()
    message = evidence.kubernetes_message
    return Diagnosis(
        failure=failure,
        rule=f"kubernetes-reason-{reason.lower()}",
        reason=sentence,
        line=shown(message) if message else None,
        confidence=0.95,
    )


def from_exit_status(evidence: Evidence, chosen: Chosen | None) -> Diagnosis:
    """What is left when no text tells the cause: the signal or the exit code."""
    code = evidence.exit_code
    number = evidence.signal
    if number is None and code is not None and 128 < code < 160:
        number = code - 128
    if number is None and code is not None and code < 0:
        number = -code
    runner_up = None if chosen is None else chosen.match.rule.failure
    if number == 9 and _memory_was_full(evidence):
        return Diagnosis(
            failure=FailureClass.CPU_OUT_OF_MEMORY,
            rule="signal-kill-at-memory-limit",
            reason=f"The process was killed with SIGKILL while it used {evidence.peak_memory_mb} "
            f"of {evidence.memory_limit_mb} MB.",
            confidence=0.8,
        )
    if number == 15 and evidence.cancel_requested is None:
        return Diagnosis(
            failure=FailureClass.TASK_CANCELLED,
            rule="signal-terminate",
            reason="The process was told to end (SIGTERM), most often by a stop or a cancel; "
            "whether there was one is not known.",
            confidence=0.4,
            runner_up=FailureClass.NODE_LOST,
        )
    if number is not None and number in _SIGNALS:
        failure, rule, sentence, confidence = _SIGNALS[number]
        if number == 9 and runner_up is None:
            runner_up = FailureClass.CPU_OUT_OF_MEMORY
        return Diagnosis(
            failure=failure, rule=rule, reason=sentence, confidence=confidence, runner_up=runner_up
        )
    if chosen is not None:
        return chosen.diagnosis()
    if evidence.phase == "lost":
        return Diagnosis(
            failure=FailureClass.NODE_LOST,
            rule="contact-lost",
            reason="Contact with the attempt was lost and nothing tells why.",
            confidence=0.6,
        )
    if code in (126, 127):
        return Diagnosis(
            failure=FailureClass.INVALID_CONFIG,
            rule="command-not-runnable",
            reason=f"The command could not be run (exit code {code}).",
            confidence=0.6,
        )
    if code == 125 and evidence.phase == "start":
        return Diagnosis(
            failure=FailureClass.CONTAINER_RUNTIME_ERROR,
            rule="engine-exit-125",
            reason="The container engine itself failed (exit code 125).",
            confidence=0.5,
        )
    complaint = _complaint(evidence)
    if complaint is not None:
        return Diagnosis(
            failure=FailureClass.APPLICATION_ERROR,
            rule="program-complained",
            reason="The program reported an error of its own that no rule knows, and ended.",
            line=shown(complaint),
            confidence=0.3,
            runner_up=FailureClass.UNKNOWN_ERROR,
        )
    said = "no exit code" if code is None else f"exit code {code}"
    return Diagnosis(
        failure=FailureClass.UNKNOWN_ERROR,
        rule="nothing-recognised",
        reason=f"The attempt ended with {said} and nothing in its output tells why.",
        confidence=0.2,
    )


def _complaint(evidence: Evidence) -> str | None:
    """The first line of the last ones in which a program that ended itself reports an error."""
    code = evidence.exit_code
    if evidence.phase != "run" or evidence.signal or not evidence.log:
        return None
    if code is not None and not (0 < code <= 125 or code == 255):
        return None
    lines = split_lines(evidence.log[-_COMPLAINT_CHARACTERS:])[-_COMPLAINT_LINES:]
    for line in lines:
        if _COMPLAINT.search(line) and not any(rule.regex.search(line) for rule in BENIGN):
            return line
    return None


def _memory_was_full(evidence: Evidence) -> bool:
    peak, limit = evidence.peak_memory_mb, evidence.memory_limit_mb
    return peak is not None and limit is not None and limit > 0 and peak >= _NEARLY_FULL * limit


def failure_of_start(number: int | None) -> FailureClass:
    """What kept a process from starting: its node, which may do better later, or what was asked.

    Args:
        number: `errno` of the operating system's error; `None` for an error of another kind.
    """
    return _STARTS.get(number or 0, FailureClass.INVALID_CONFIG)
