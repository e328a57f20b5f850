"""The kernel, cluster schedulers and Kubernetes: who ended the job, and why."""

from __future__ import annotations

from prefect_heteroflow.core.failures import FailureClass
from prefect_heteroflow.core.rules.figures import SIZE
from prefect_heteroflow.core.rules.model import Role, Rule

RULES: tuple[Rule, ...] = (
    Rule(
        id="kernel-oom-kill",
        failure=FailureClass.CPU_OUT_OF_MEMORY,
        pattern=r"[Oo]ut of memory: Kill(?:ed)? process \d|oom-kill:constraint=CONSTRAINT_"
        r"|invoked oom-killer|oom_reaper: reaped process|Memory cgroup out of memory"
        r"|Killed process \d{1,10} \(|killed by the OOM killer"
        r"|Failed with result 'oom-kill'|due to memory pressure for /"
        r"|systemd-oomd\[\d{1,10}\]: Killed |due to memory (?:used|pressure)(?: for| \("
        r"|\b)|earlyoom.{0,60}sending SIG(?:TERM|KILL)|oom_kill [1-9]",
        sample="kernel: Memory cgroup out of memory: Killed process 4217 (python) "
        "total-vm:9437184kB, anon-rss:8388608kB, file-rss:0kB, shmem-rss:0kB, UID:0",
        near_miss="kernel: systemd-oomd.service: Deactivated successfully",
        framework="linux, systemd",
        sentence="The kernel killed a process because host memory was full[; it held {own}].",
        role=Role.PLATFORM,
        confidence=0.95,
        numbers=(rf"anon-rss:(?P<own>{SIZE})",),
    ),
    Rule(
        id="scheduler-memory-kill",
        failure=FailureClass.CPU_OUT_OF_MEMORY,
        pattern=r"Detected \d{1,6} oom[_-]kill event|have been OOM Killed"
        r"|oom[_-]kill event\(?s?\)? in |[Ee]xceeded (?:job|step) memory limit"
        r"|exceeded memory limit \(\d|TERM_MEMLIMIT|PBS: job killed: (?:v?mem|pmem)"
        r"|beyond (?:the )?'?(?:physical|virtual|PHYSICAL|VIRTUAL)'? memory limit"
        r"|exceeding (?:physical |virtual )?memory limits|Container killed by YARN"
        r"|STATE=OUT_OF_MEMORY|exception type=oom|memory usage exceeded (?:request"
        r"|the limit)|OOMKilled\b(?!\"?: ?false|=false|:false)|low on resource: memory"
        r"|possible container OOM|Job exceeded its memory|job killed after reaching LSF memory",
        sample="slurmstepd: error: Detected 1 oom_kill event in StepId=1234.batch. Some of the "
        "step tasks have been OOM Killed.",
        near_miss='{"Status": "exited", "OOMKilled": false, "ExitCode": 1}',
        framework="slurm, yarn, pbs, lsf, kubernetes",
        sentence="The scheduler killed the job for its memory[: {own}][ of {total}].",
        role=Role.PLATFORM,
        confidence=0.93,
        numbers=(
            rf"(?P<own>{SIZE}) of (?P<total>{SIZE}) (?:physical|virtual) memory used",
            rf"memory limit \((?P<own>{SIZE}) > (?P<total>{SIZE})\)",
            rf"mem (?P<own>{SIZE}) exceeded limit (?P<total>{SIZE})",
        ),
    ),
    Rule(
        id="scheduler-preempted",
        failure=FailureClass.PREEMPTED,
        pattern=r"DUE TO PREEMPTION|DUE TO JOB REQUEUE"
        r"|[Ss]pot (?:[Ii]nstance )?(?:[Ii]nterruption|termination) (?:notice|warning)"
        r"|instance-action.{0,60}terminate|Preempted by |preempted to (?:admit|make room)"
        r"|PreemptionByScheduler|PreemptingByScheduler|[Ii]nstance (?:was|is being"
        r"|has been|will be) preempted|Preemption(?: |-)(?:notice|event)"
        r"|pod was preempted|TERM_PREEMPT|Job was preempted|Reason: {1,12}Preempt(?:ed"
        r"|ing)\b|to be terminated due to spot|[Pp]reempted by a higher",
        sample="slurmstepd: error: *** JOB 37361369 ON node01 CANCELLED AT 2021-03-15T18:00:46 "
        "DUE TO PREEMPTION ***",
        near_miss="slurmstepd: error: *** JOB 37361369 ON node01 CANCELLED AT "
        "2021-03-15T18:00:46 ***",
        framework="slurm, cloud, kubernetes",
        sentence="The scheduler took the node or the slot away for other work.",
        role=Role.PLATFORM,
        confidence=0.95,
    ),
    Rule(
        id="scheduler-time-limit",
        failure=FailureClass.RESOURCE_LIMIT_EXCEEDED,
        pattern=r"DUE TO TIME LIMIT|TERM_RUNLIMIT|PBS: job killed: walltime"
        r"|DeadlineExceeded\b.{0,80}(?:active|specified|Job|Pod)"
        r"|active on the node longer than (?:the )?specified deadline"
        r"|Job was active longer than specified deadline|walltime \d{1,12} exceeded limit"
        r"|exceeded (?:the )?(?:wall(?:[- ]?clock)?[- ]?time|walltime) limit"
        r"|[Cc]pu time limit exceeded|CPU time limit exceeded"
        r"|Reason: {1,12}DeadlineExceeded",
        sample="slurmstepd: error: *** JOB 494583 ON node01 CANCELLED AT 2024-04-20T09:09:37 DUE "
        "TO TIME LIMIT ***",
        near_miss="sbatch: Time limit set to 24:00:00",
        framework="slurm, pbs, lsf, kubernetes",
        sentence="The job ran into its time limit.",
        role=Role.PLATFORM,
        confidence=0.93,
    ),
    Rule(
        id="scheduler-node-lost",
        failure=FailureClass.NODE_LOST,
        pattern=r"DUE TO NODE FAIL|imminent node shutdown|NODE_FAIL|NodeLost\b|NodeNotReady"
        r"|The node .{0,80}(?:has died|is dead|was terminated)"
        r"|ray\.exceptions\.NodeDiedError|because its node has died"
        r"|node .{0,80}has been marked dead"
        r"|[Nn]ode failure|Node failed|deleted by (?:the )?node controller"
        r"|TaintManagerEviction|OwnerDiedError"
        r"|Connection to .{1,80} closed by remote host|agent .{0,60}lost contact"
        r"|(?:[Rr]aylet|GCS).{0,120}(?:End of file|[Dd]isconnected|unreachable"
        r"|not reachable)",
        sample="Message:      Pod was terminated in response to imminent node shutdown.",
        near_miss="INFO shutting down data loader on this node",
        framework="slurm, kubernetes, ray",
        sentence="The node went away while the job ran.",
        role=Role.PLATFORM,
        confidence=0.85,
    ),
    Rule(
        id="kubernetes-evicted-disk",
        failure=FailureClass.DISK_PRESSURE,
        pattern=r"low on resource: (?:ephemeral-storage|inodes|nodefs|imagefs)|DiskPressure\b"
        r"|ephemeral local storage usage exceeds"
        r"|exceeds (?:the )?(?:total )?limit of (?:containers )?ephemeral",
        sample="Message: The node was low on resource: ephemeral-storage. Container app was "
        "using 34260Ki",
        near_miss="Message: The node was low on resource: memory. Container app was using 34260Ki",
        framework="kubernetes",
        sentence="The node's disk was nearly full and the pod was evicted.",
        role=Role.PLATFORM,
        confidence=0.9,
    ),
    Rule(
        id="kubernetes-evicted",
        failure=FailureClass.NODE_LOST,
        pattern=r"Reason: {0,12}Evicted|\bThe pod was evicted|Pod evicted",
        sample="Reason:         Evicted",
        near_miss="cache entry evicted after 300 s",
        framework="kubernetes",
        sentence="Kubernetes evicted the pod from its node.",
        role=Role.FOLLOW_UP,
        confidence=0.6,
    ),
    Rule(
        id="kubernetes-container-config",
        failure=FailureClass.INVALID_CONFIG,
        pattern=r"CreateContainerConfigError|Error: (?:secrets?"
        r"|configmaps?) \"[^\"]{1,200}\" not found"
        r"|couldn't find key .{1,100} in (?:Secret|ConfigMap)|InvalidImageName"
        r"|Error: failed to prepare subPath|MountVolume\.SetUp failed .{0,200}not found",
        sample='Warning  Failed  2s  kubelet  Error: secrets "app-secrets-1" not found',
        near_miss="INFO secrets loaded, key found",
        framework="kubernetes",
        sentence="The pod refers to a secret, config map or image name that does not exist.",
        role=Role.ROOT,
        at_start=True,
    ),
    Rule(
        id="scheduler-quota",
        failure=FailureClass.RESOURCE_LIMIT_EXCEEDED,
        pattern=r"is forbidden: exceeded quota|QOSMax\w{3,40}|violates accounting/QOS policy"
        r"|Assoc(?:Max|Grp)\w{3,40}Limit",
        sample='Error creating: pods "x" is forbidden: exceeded quota: gpu-quota, requested: '
        "requests.nvidia.com/gpu=4, used: requests.nvidia.com/gpu=8",
        near_miss='pods "x" is forbidden: User "y" cannot create resource "pods"',
        framework="kubernetes, slurm",
        sentence="The quota of the project or user is used up.",
        confidence=0.9,
    ),
    Rule(
        id="scheduler-impossible-request",
        failure=FailureClass.INVALID_CONFIG,
        pattern=r"Requested node configuration is not available|Invalid generic resource"
        r"|(?:invalid|Invalid) (?:partition|qos|account)[^\n]{0,40}specified"
        r"|Node count specification invalid|More processors requested than permitted",
        sample="sbatch: error: Batch job submission failed: Requested node configuration is not "
        "available",
        near_miss="slurmctld: node configuration reloaded",
        framework="slurm",
        sentence="No node of the cluster is as the job asks.",
        confidence=0.85,
    ),
    Rule(
        id="scheduler-no-room",
        failure=FailureClass.RESOURCE_LIMIT_EXCEEDED,
        pattern=r"\d{1,5}/\d{1,5} nodes are available: |requested number of devices unavailable"
        r"|FailedScheduling\b|Reason: {1,12}Unschedulable",
        sample="Warning  FailedScheduling  default-scheduler  0/3 nodes are available: 3 "
        "Insufficient memory.",
        near_miss="Normal  Scheduled  default-scheduler  Successfully assigned ns/x to node3",
        framework="kubernetes",
        sentence="No node had room for what the pod asks.",
        role=Role.FOLLOW_UP,
        confidence=0.55,
    ),
    Rule(
        id="kubernetes-image-pull",
        failure=FailureClass.IMAGE_PULL_BACK_OFF,
        pattern=r"ImagePullBackOff|ErrImagePull\b|Back-off pulling image|ErrImageNeverPull"
        r"|CannotPullContainerError",
        sample="Warning  Failed  kubelet  Error: ImagePullBackOff",
        near_miss="Normal  Pulled  kubelet  Successfully pulled image",
        framework="kubernetes, ecs",
        sentence="The image cannot be pulled.",
        role=Role.FOLLOW_UP,
        confidence=0.85,
        at_start=True,
    ),
    Rule(
        id="kubernetes-run-container-error",
        failure=FailureClass.CONTAINER_RUNTIME_ERROR,
        pattern=r"RunContainerError|CreateContainerError|FailedCreatePodSandBox"
        r"|[Ff]ailed to create pod sandbox|Multi-Attach error for volume|ContainerCannotRun"
        r"|CreatePodSandboxError"
        r"|PLEG is not healthy",
        sample='Error syncing pod, skipping: failed to "StartContainer" for "app" with '
        "RunContainerError",
        near_miss="Normal  Started  kubelet  Started container app",
        framework="kubernetes",
        sentence="The container runtime of the node could not start the container.",
        role=Role.FOLLOW_UP,
        confidence=0.75,
        at_start=True,
    ),
    Rule(
        id="scheduler-cancelled",
        failure=FailureClass.TASK_CANCELLED,
        pattern=r"CANCELLED AT \d{4}-\d\d-\d\dT[\d:]{4,12} \*\*\*|TERM_OWNER|CANCELLED by \d"
        r"|Flow run was cancelled|was cancelled by (?:the )?user|TaskCancelledError",
        sample="slurmstepd: error: *** JOB 1234 ON node01 CANCELLED AT 2024-04-20T09:09:37 ***",
        near_miss="slurmstepd: error: *** JOB 1 ON n CANCELLED AT 2024-04-20T09:09:37 DUE TO "
        "TIME LIMIT ***",
        framework="slurm, lsf, pbs, prefect, ray",
        sentence="Somebody cancelled the job.",
        role=Role.ROOT,
        confidence=0.8,
    ),
    Rule(
        id="launcher-got-signal",
        failure=FailureClass.NODE_LOST,
        pattern=r"SignalException: Process \d{1,10} got signal: (?:1|15)\b|[Cc]aught SIGTERM\b"
        r"|[Rr]eceived SIGTERM\b|[Rr]eceived signal 15\b|[Tt]erminated by SIGTERM",
        sample="torch.distributed.elastic.multiprocessing.api.SignalException: Process 12 got "
        "signal: 15",
        near_miss="Sending process 12 closing signal SIGTERM",
        framework="torchrun, servers",
        sentence="The job was told to end (SIGTERM or SIGHUP) by somebody else.",
        role=Role.FOLLOW_UP,
        confidence=0.5,
    ),
    Rule(
        id="keyboard-interrupt",
        failure=FailureClass.TASK_CANCELLED,
        pattern=r"^(?:\^C)?(?:[\w.]{1,80}\.)?KeyboardInterrupt\b|Received SIGINT\b"
        r"|Interrupted by user",
        unless=r"except |raises",
        sample="KeyboardInterrupt",
        near_miss="except KeyboardInterrupt:",
        framework="python",
        sentence="The program was interrupted (Ctrl-C or SIGINT).",
        role=Role.FOLLOW_UP,
        confidence=0.8,
    ),
)
