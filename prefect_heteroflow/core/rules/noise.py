"""Lines that frighten and mean nothing: advice, survived warnings, cleanup."""

from __future__ import annotations

from prefect_heteroflow.core.rules.model import Role, Rule


def _benign(id: str, pattern: str, sample: str, miss: str, of: str) -> Rule:
    return Rule(
        id=id, failure=None, pattern=pattern, sample=sample, near_miss=miss,
        framework=of, sentence="", role=Role.BENIGN,
    )  # fmt: skip


def _recovered(id: str, pattern: str, sample: str, miss: str, of: str) -> Rule:
    return Rule(
        id=id, failure=None, pattern=pattern, sample=sample, near_miss=miss,
        framework=of, sentence="", role=Role.RECOVERED,
    )  # fmt: skip


RULES: tuple[Rule, ...] = (
    _benign(
        "tensorflow-not-a-failure",
        r"The caller indicates that this is not a failure"
        r"|exceeds \d{1,3}% of (?:free )?(?:system )?memory",
        "W Allocator (GPU_0_bfc) ran out of memory trying to allocate 3.5GiB. The caller "
        "indicates that this is not a failure, but may mean that there could be performance gains",
        "W OP_REQUIRES failed: Resource exhausted: OOM when allocating tensor",
        "tensorflow",
    ),
    _benign(
        "tensorrt-skipped-tactic",
        r"[Ss]kipping tactic|[Tt]actic [Dd]evice request",
        "[W] Skipping tactic 0 due to insufficient memory on requested size of 1024",
        "[E] Error Code 2: OutOfMemory (no further information)",
        "tensorrt",
    ),
    _benign(
        "advice-text",
        r"^\W{0,6}(?:Hint|HINT|Tip|TIP|NOTE|Note|Help|help|Suggestion)\b ?:|typically means"
        r"|(?:could|can) be caused by (?:out|running|insufficient)|If (?:you )?(?:run|encounter"
        r"|get|see)[^\n]{0,40}(?:out of memory|OOM|timeout)|to avoid (?:out[- ]of[- ]memory|OOM"
        r"|running out)|(?:prevent|reduce|against) (?:the )?(?:risk of )?(?:OOM"
        r"|out[- ]of[- ]memory)|in case of (?:OOM|out)",
        "Hint: Exit code 137 typically means the process is killed because it was running out of "
        "memory",
        "RuntimeError: CUDA error: out of memory",
        "everything",
    ),
    _benign(
        "test-report",
        r"(?:::|/)test_\w{0,120}.{0,40}(?:PASSED|SKIPPED|XFAIL|ok\b)"
        r"|^test_\w{1,120} .{0,80}\.\.\. ok|^File \"[^\"]{1,300}\", line \d|^(?:def|class"
        r"|async def) \w|^except\b|^with pytest\.raises|^raise \w|not found in '",
        "tests/test_memory.py::test_raises_out_of_memory_error PASSED",
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB",
        "pytest, source lines of tracebacks",
    ),
    _benign(
        "launcher-cleanup",
        r"closing signal SIG|Killing subprocess|(?:^|: )[Ss]ending (?:SIGTERM|signal 15|SIGKILL)"
        r"|death signal, shutting down|destroy_process_group|process group has NOT been destroyed"
        r"|resource_tracker: |HYDRA_FULL_ERROR|srun: error: .{0,80}Terminated"
        r"|Failed to send MESSAGE_TASK_EXIT|^wandb: |Bypassing signal"
        r"|error waiting for container: context canceled|CUDA kernel errors might be"
        r"|For debugging consider|TORCH_USE_CUDA_DSA|PCIe Bus Error: severity=Corrected"
        r"|AER: Corrected error",
        "WARNING:torch.distributed.elastic.multiprocessing.api:Sending process 1821 closing "
        "signal SIGTERM",
        "torch.distributed.elastic.multiprocessing.errors.ChildFailedError:",
        "torchrun, deepspeed, slurm, wandb, dmesg",
    ),
    _benign(
        "config-and-flags",
        r"^# ?(?:TODO|FIXME|XXX)\b|^--?[A-Za-z][\w-]{0,40}(?:,? [^ ]{1,40})? {2,40}\w"
        r"|OOMKilled\"?[:=] ?\"?false|--\w[\w-]{0,40}(?:oom|timeout|retry)|-XX:[+-]\w{0,60}"
        r"|[A-Z_]{3,40}=[^ ]{0,60}(?:oom|timeout)",
        'State: {"ExitCode": 137, "OOMKilled": false}',
        "Reason: OOMKilled",
        "docker, jvm",
    ),
    _recovered(
        "prefect-tries-again",
        r"when proposing final state '\w{1,20}' and will attempt to run again"
        r"|Retry \d{1,9}/\d{1,9} will start ",
        "Received non-final state 'AwaitingRetry' when proposing final state 'Failed' and will "
        "attempt to run again...",
        "Received non-final state 'Paused' when proposing final state 'Failed'",
        "prefect",
    ),
    _recovered(
        "retried-and-went-on",
        r"retrying (?:without|with|in|the)|[Ss]kipping (?:this |the )?(?:batch|sample|step|length"
        r"|example|file)|skipping batch|[Ff]alling back to|[Rr]educing (?:the )?batch|reduc(?:ed"
        r"|ing) batch size|trying smaller|[Rr]ecovered from|[Rr]esum(?:ed|ing) (?:from|training)"
        r"|attempting to recover|[Cc]aught .{0,80}continuing|[Cc]ontinuing (?:anyway|without"
        r"|with)|succeeded (?:after|on) (?:retry|attempt)|[Rr]etry succeeded|OOM.{0,60}[Ss]kip",
        "| WARNING: ran out of memory on GPU #2, skipping batch",
        "RuntimeError: CUDA error: out of memory",
        "training loops, llama.cpp",
    ),
)
