"""NCCL, Gloo, rendezvous and launchers: groups of processes that lose each other."""

from __future__ import annotations

from prefect_heteroflow.core.failures import FailureClass
from prefect_heteroflow.core.rules.model import Role, Rule

RULES: tuple[Rule, ...] = (
    Rule(
        id="nccl-device-memory",
        failure=FailureClass.GPU_OUT_OF_MEMORY,
        pattern=r"Failed to CUDA (?:calloc|malloc|host alloc) "
        r"|[Cc]uda failure (?:\d{1,3} )?'out of memory'|Cuda failure.{0,60}out of memory",
        sample="node01:3063028:3066152 [3] include/alloc.h:185 NCCL WARN Failed to CUDA calloc "
        "6291456 bytes",
        near_miss="node01:3063028:3066152 [3] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P",
        framework="nccl",
        sentence="NCCL could not get GPU memory for its buffers.",
        confidence=0.9,
    ),
    Rule(
        id="nccl-watchdog-timeout",
        failure=FailureClass.DISTRIBUTED_PEER_LOST,
        pattern=r"Watchdog caught collective operation timeout"
        r"|watchdog thread terminated with exception|Heartbeat monitor timed out"
        r"|watchdog got stuck for|collective operation timeout: Work"
        r"|Watchdog timeout \(self\.watchdog|Some NCCL operations have failed or timed out"
        r"|Timeout\(ms\)=\d{1,12}\) ran for",
        sample="[Rank 2] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=1, "
        "OpType=ALLREDUCE, Timeout(ms)=120000) ran for 120822 milliseconds before timing out.",
        near_miss="[rank0] ProcessGroupNCCL initialization options: TIMEOUT(ms): 600000",
        framework="pytorch nccl",
        sentence="A collective operation waited for another process that never came.",
        role=Role.FOLLOW_UP,
        confidence=0.85,
    ),
    Rule(
        id="nccl-error",
        failure=FailureClass.DISTRIBUTED_PEER_LOST,
        pattern=r"DistBackendError|NCCL error|ncclUnhandledCudaError|ncclSystemError"
        r"|ncclInternalError|ncclRemoteError|ncclInvalidUsage|NCCL communicator (?:was"
        r"|encountered|aborted)|nccl.{0,20}unhandled (?:system|cuda) error|NCCL Error \d"
        r"|NCCL WARN .{0,80}(?:timed? ?out|refused|unreachable|No route|reset|failed)"
        r"|ibv_(?:reg|poll|post|create|modify|open|alloc)_\w{1,20} failed"
        r"|IBV_WC_RETRY_EXC_ERR|Got completion .{0,60}error \d{1,3}|RCCL error|HCCL error"
        r"|oneCCL|CCL_ERROR|ncclCommAbort",
        unless=r"out of memory|CUDA calloc|shmutils|/dev/shm|[Pp]ermission denied|No space left"
        r"|Duplicate GPU detected|Call to (?:ibv_|posix)\w{0,30} failed with error Success",
        sample="torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:1727, "
        "unhandled system error (run with NCCL_DEBUG=INFO for details), NCCL version "
        "2.19.4",
        near_miss="NCCL version 2.19.4+cuda12.1",
        framework="nccl, rccl",
        sentence="The processes of the group lost their connection (NCCL).",
        role=Role.FOLLOW_UP,
        confidence=0.8,
    ),
    Rule(
        id="nccl-duplicate-gpu",
        failure=FailureClass.INVALID_CONFIG,
        pattern=r"Duplicate GPU detected",
        sample="init.cc:521 NCCL WARN Duplicate GPU detected : rank 1 and rank 0 both on CUDA "
        "device 1000",
        near_miss="init.cc:521 NCCL INFO rank 1 and rank 0 on different devices",
        framework="nccl",
        sentence="Two processes of the group were given the same GPU.",
        confidence=0.85,
    ),
    Rule(
        id="gloo-error",
        failure=FailureClass.DISTRIBUTED_PEER_LOST,
        pattern=r"[Gg]loo (?:timeout|error|failure)"
        r"|\[.{0,80}gloo/transport/|gloo::(?:Io|Timeout)Exception|gloo::EnforceNotMet|App"
        r"lication timeout caused pair closure|Connection closed by (?:remote )?peer"
        r"|Timed out waiting \d{1,9}ms for (?:recv|send|connect)|Gloo connect",
        unless=r"NCCL WARN",
        sample="RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:598] Connection "
        "closed by peer [10.0.0.2]:24071",
        near_miss="INFO using gloo as backend",
        framework="gloo",
        sentence="The processes of the group lost their connection (Gloo).",
        role=Role.FOLLOW_UP,
        confidence=0.8,
    ),
    Rule(
        id="rendezvous-failed",
        failure=FailureClass.DISTRIBUTED_PEER_LOST,
        pattern=r"store[- ]based barrier|RendezvousTimeoutError|RendezvousConnectionError"
        r"|RendezvousGracefulExitError|RendezvousStateError|DistStoreError"
        r"|DistNetworkError|Socket Timeout|wait timeout after \d{1,9}ms"
        r"|client socket has (?:timed out|failed to connect)|TCPStore"
        r"|failed to recv, got 0 bytes|Broken pipe.{0,80}store"
        r"|[Hh]eartbeat from .{0,60}timed out|The worker group .{0,40}lost"
        r"|horovod\.common\.exceptions\.HorovodInternalError|HorovodInternalError"
        r"|mpirun (?:noticed|detected|has exited)|MPI_ERR_|ORTE (?:has lost|was unable)"
        r"|Timed out initializing process group|Barrier timed out|barrier timeout"
        r"|CoordinationService|coordination service|DistStoreTimeout",
        unless=r"INFO|store_based_barrier_key.{0,80}added|errno: 98|exited on signal (?:4|6|7|8|9"
        r"|11)\b",
        sample="torch.distributed.DistNetworkError: The client socket has timed out after "
        "60000ms while trying to connect to (10.0.0.1, 29500).",
        near_miss="INFO torch.distributed.distributed_c10d: Added key: store_based_barrier_key:1 "
        "to store for rank: 0",
        framework="torchrun, horovod, mpi, jax",
        sentence="The processes of the group did not find each other.",
        role=Role.FOLLOW_UP,
        confidence=0.8,
    ),
    Rule(
        id="rendezvous-closed",
        failure=FailureClass.NODE_LOST,
        pattern=r"RendezvousClosedError",
        sample="torch.distributed.elastic.rendezvous.api.RendezvousClosedError",
        near_miss="torch.distributed.elastic.rendezvous.api.RendezvousTimeoutError",
        framework="torchrun",
        sentence="The rendezvous was closed: the other node or its agent went away.",
        role=Role.FOLLOW_UP,
        confidence=0.6,
    ),
    Rule(
        id="child-failed-summary",
        failure=FailureClass.APPLICATION_ERROR,
        pattern=r"ChildFailedError|\(exitcode: [1-9]\d{0,2}\)|exitcode {0,4}: [1-9]\d{0,2} \(pid"
        r"|returned non-zero exit status [1-9]\d{0,2}|CalledProcessError"
        r"|ProcessRaisedException|ProcessExitedException|See root cause above"
        r"|WorkerProc initialization failed|Engine core initialization failed"
        r"|exits with return code = [1-9]|Primary job {1,4}terminated normally, but"
        r"|llama runner (?:process )?(?:has )?(?:exited|terminated)|npm ERR!"
        r"|make: \*\*\* |Command exiting with ret|EngineDeadError"
        r"|Engine process failed to start|Background loop (?:has errored|is not running)"
        r"|RayTaskError|exited with (?:code|status) [1-9]",
        sample="subprocess.CalledProcessError: Command '['python', 'train.py']' returned "
        "non-zero exit status 1.",
        near_miss="ERROR failed (exitcode: -15) local_rank: 0 (pid: 2410412) of binary: "
        "/usr/bin/python",
        framework="torchrun, deepspeed, accelerate, vllm, subprocess",
        sentence="A child process ended with an error; what the error was is not in the text.",
        role=Role.SUMMARY,
        confidence=0.35,
    ),
)
