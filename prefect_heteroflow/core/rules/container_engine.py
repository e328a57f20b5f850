"""Docker, containerd, registries: why a container never started."""

from __future__ import annotations

from prefect_heteroflow.core.failures import FailureClass
from prefect_heteroflow.core.rules.model import Role, Rule

RULES: tuple[Rule, ...] = (
    Rule(
        id="registry-rate-limit",
        failure=FailureClass.TRANSIENT_ERROR,
        pattern=r"toomanyrequests|exceeded (?:a |your )?pull rate limit"
        r"|reached your (?:unauthenticated )?pull rate limit"
        r"|429 Too Many Requests.{0,80}(?:manifests|blobs|registry)",
        sample="Error response from daemon: toomanyrequests: You have reached your pull rate "
        "limit.",
        near_miss="Error response from daemon: too many open files",
        framework="registry",
        sentence="The image registry's pull limit was reached; it opens again later.",
        at_start=True,
        confidence=0.93,
    ),
    Rule(
        id="registry-server-error",
        failure=FailureClass.TRANSIENT_ERROR,
        pattern=r"(?:unexpected (?:HTTP )?status(?: code)?|received unexpected HTTP status"
        r"|HTTP status):? .{0,160}\b50[0234]\b"
        r"|unexpected status code .{1,200}: 50[0234]\b|\b50[234] (?:Bad Gateway"
        r"|Service (?:Temporarily )?Unavailable|Gateway Time-?out)"
        r"|error parsing HTTP 50\d response body",
        sample="Error response from daemon: Get "
        "https://registry-1.docker.io/v2/library/busybox/manifests/latest: Received "
        "unexpected HTTP status: 500 Internal Server Error",
        near_miss="unexpected status from HEAD request to https://ghcr.io/v2/x/manifests/1: 403 "
        "Forbidden",
        framework="registry, http",
        sentence="The server was out of order (HTTP 5xx); that passes.",
        at_start=True,
        confidence=0.88,
    ),
    Rule(
        id="registry-token-expired",
        failure=FailureClass.IMAGE_PULL_BACK_OFF,
        pattern=r"[Aa]uthorization [Tt]oken has expired|error parsing HTTP 40[13] response body"
        r"|no basic auth credentials|unauthorized: |UNAUTHORIZED|pull access denied"
        r"|may require 'docker login'|requested access to the resource is denied"
        r"|denied: (?:denied|.{0,80}(?:access|permission|token|requested))"
        r"|incorrect username or password|authentication required|failed to authorize: "
        r"|insufficient_scope|status.{0,200}: 40[13] (?:Unauthorized|Forbidden)"
        r"|docker-credential-.{1,60}(?:not found|executable)|error getting credentials",
        unless=r"[Pp]od sandbox",
        sample="Error response from daemon: pull access denied for org/app, repository does not "
        "exist or may require 'docker login': denied: requested access to the resource is "
        "denied",
        near_miss="Error response from daemon: manifest for org/app:1 not found: manifest unknown",
        framework="registry",
        sentence="The registry refused the image: wrong name, or no right to pull it.",
        at_start=True,
        confidence=0.85,
    ),
    Rule(
        id="registry-certificate",
        failure=FailureClass.INVALID_CONFIG,
        pattern=r"x509: |server gave HTTP response to HTTPS client"
        r"|first record does not look like a TLS handshake",
        sample='Error response from daemon: Get "https://registry.corp/v2/": x509: certificate '
        "signed by unknown authority",
        near_miss='Error response from daemon: Get "https://registry.corp/v2/": net/http: TLS '
        "handshake timeout",
        framework="registry",
        sentence="The node does not trust the registry's certificate, or it speaks plain HTTP.",
        at_start=True,
        confidence=0.75,
    ),
    Rule(
        id="image-layer-damaged",
        failure=FailureClass.TRANSIENT_ERROR,
        pattern=r"layer verification failed for digest|failed commit on ref"
        r"|unexpected commit digest|failed size validation|archive/tar: invalid tar header"
        r"|failed to register layer: .{0,80}unexpected (?:EOF|end)",
        unless=r"[Nn]o space left",
        sample="filesystem layer verification failed for digest sha256:5f2c",
        near_miss="failed to register layer: no space left on device",
        framework="docker, containerd",
        sentence="A layer of the image arrived damaged; another pull may bring it whole.",
        at_start=True,
        confidence=0.7,
    ),
    Rule(
        id="image-not-found",
        failure=FailureClass.IMAGE_NOT_FOUND,
        pattern=r"manifest unknown|MANIFEST_UNKNOWN|No such image: |no such image\b"
        r"|manifest for .{1,200}not found|ImageNotFound|no matching manifest for "
        r"|repository .{1,200}not found|name unknown: |NAME_UNKNOWN"
        r"|failed to resolve reference .{1,200}: not found|image .{1,200} does not exist"
        r"|failed to pull and unpack image .{1,200}: not found|image not known"
        r"|image operating system .{1,60}cannot be used",
        sample="Error response from daemon: manifest for org/web:2 not found: manifest unknown",
        near_miss="Error response from daemon: network app_default not found",
        framework="docker, containerd, podman",
        sentence="The image does not exist under this name and tag.",
        at_start=True,
    ),
    Rule(
        id="docker-memory-floor",
        failure=FailureClass.INVALID_CONFIG,
        pattern=r"Minimum memory limit (?:allowed|can not be less)|Minimum memoryswap limit"
        r"|cannot start a container that has stopped|memory limit too low"
        r"|container init was OOM-killed",
        sample="Error response from daemon: Minimum memory limit allowed is 6MB.",
        near_miss="Error response from daemon: cannot start a stopped process",
        framework="docker",
        sentence="The memory limit is too small even to start a container.",
        at_start=True,
        confidence=0.85,
    ),
    Rule(
        id="container-gpu-driver",
        failure=FailureClass.CONTAINER_RUNTIME_ERROR,
        pattern=r"could not select device driver|nvidia-container-cli: "
        r"|unknown or invalid runtime name|[Uu]nknown runtime specified"
        r"|driver/library version mismatch|unresolvable CDI devices"
        r"|error gathering device information|no runtime for .{1,60} is configured"
        r"|libnvidia-ml\.so\.\d: cannot open|failed to (?:inject|discover) (?:CDI|GPU)",
        unless=r"nvidia-container-cli: requirement error",
        sample='could not select device driver "" with capabilities: [[gpu]]',
        near_miss="could not select a network driver option",
        framework="docker, nvidia-container-toolkit",
        sentence="The node cannot give GPUs to containers.",
        at_start=True,
        confidence=0.92,
    ),
    Rule(
        id="container-gpu-requirement",
        failure=FailureClass.INVALID_CONFIG,
        pattern=r"nvidia-container-cli: requirement error|unsatisfied condition: cuda",
        sample="nvidia-container-cli: requirement error: unsatisfied condition: cuda>=12.4, "
        "please update your driver to a newer version",
        near_miss="nvidia-container-cli: initialization error: driver rpc error",
        framework="nvidia-container-toolkit",
        sentence="The image wants a newer GPU driver than the node has.",
        at_start=True,
        confidence=0.7,
    ),
    Rule(
        id="container-command",
        failure=FailureClass.INVALID_CONFIG,
        pattern=r"executable file not found in \$PATH|exec format error"
        r"|exec: \\?\".{1,200}: (?:no such file or directory|permission denied"
        r"|is a directory)|exec .{1,200}: (?:no such file or directory|exec format error)"
        r"|stat .{1,200}: no such file or directory: unknown|no command specified"
        r"|OCI runtime .{0,200}(?:not found|permission denied|not a directory"
        r"|no such file)",
        unless=r"daemon socket|nvidia|failed to create shim task: .{0,40}mkdir",
        sample="OCI runtime create failed: container_linux.go:348: starting container process "
        'caused "exec: \\"db:create\\": executable file not found in $PATH": unknown',
        near_miss="OCI runtime create failed: unable to retrieve OCI runtime error",
        framework="docker, runc",
        sentence="The command cannot be run in this image.",
        at_start=True,
        confidence=0.88,
    ),
    Rule(
        id="docker-socket-permission",
        failure=FailureClass.PERMISSION_DENIED,
        pattern=r"permission denied while trying to connect to the (?:Docker|docker)"
        r"|Error while fetching server API version: .{0,80}Permission denied"
        r"|connect to the Docker daemon socket.{0,200}permission denied"
        r"|docker\.sock.{0,40}permission denied|containerd\.sock.{0,40}permission denied",
        sample="docker.errors.DockerException: Error while fetching server API version: "
        "('Connection aborted.', PermissionError(13, 'Permission denied'))",
        near_miss="Cannot connect to the Docker daemon at unix:///var/run/docker.sock. Is the "
        "docker daemon running?",
        framework="docker",
        sentence="The worker may not talk to the Docker daemon.",
        at_start=True,
        confidence=0.92,
    ),
    Rule(
        id="docker-daemon-unreachable",
        failure=FailureClass.CONTAINER_RUNTIME_ERROR,
        pattern=r"Cannot connect to the Docker daemon|Is the docker daemon running"
        r"|error during connect: |Error while fetching server API version"
        r"|dial unix .{1,120}\.sock: connect: |Docker daemon is not running"
        r"|containerd\.sock.{0,60}(?:connection refused|no such file)",
        unless=r"[Pp]ermission denied",
        sample="Cannot connect to the Docker daemon at unix:///var/run/docker.sock. Is the "
        "docker daemon running?",
        near_miss="docker daemon started",
        framework="docker",
        sentence="The container engine of the node does not answer.",
        at_start=True,
        confidence=0.9,
    ),
    Rule(
        id="container-invalid-request",
        failure=FailureClass.INVALID_CONFIG,
        pattern=r"Requested CPUs|invalid size: |"
        r"invalid mount config|invalid reference format|bind source path does not exist"
        r"|invalid volume specification|unknown flag: |invalid argument \".{0,120}\" for"
        r"|network .{1,120} not found|No such network|invalid (?:container )?(?:port"
        r"|hostname|name|env|ulimit|CPU|cpuset|restart)|Range of CPUs is from"
        r"|Invalid container name|conflicting options: |requested (?:CPUs|NUMA)"
        r"|[Dd]uplicate mount point|mounts denied|not a shared mount|(?:is"
        r"|are) not a directory: .{0,60}mount"
        r"|Are you trying to mount a directory onto a file|maximum (?:CPU|memory)"
        r"|invalid (?:repository|tag) (?:name|format)|cannot set memory"
        r"|Unsupported config option|unable to find user "
        r"|no matching entries in passwd file|includes invalid characters",
        sample='Error response from daemon: invalid mount config for type "bind": bind source '
        "path does not exist: /app.",
        near_miss="Error response from daemon: manifest for org/web:2 not found: manifest unknown",
        context=r"Error response from daemon|docker|Docker|OCI|invalid reference format"
        r"|bind source",
        framework="docker",
        sentence="The container was asked for in a way that the engine does not accept.",
        at_start=True,
        confidence=0.85,
    ),
    Rule(
        id="container-conflict",
        failure=FailureClass.CONTAINER_RUNTIME_ERROR,
        pattern=r"port is already allocated|is already in use by container"
        r"|[Cc]onflict\. The container name|address already in use.{0,120}(?:userland"
        r"|docker|expos)|driver failed programming external"
        r"|endpoint with name .{1,120} already exists"
        r"|removal of container .{1,120} is already in progress|ports are not available"
        r"|No such container: ",
        sample="Bind for 0.0.0.0:49161 failed: port is already allocated.",
        near_miss="the seat is already allocated",
        framework="docker",
        sentence="Something else on the node holds the container's name or port.",
        at_start=True,
        confidence=0.85,
    ),
    Rule(
        id="container-runtime-failed",
        failure=FailureClass.CONTAINER_RUNTIME_ERROR,
        pattern=r"failed to create shim|OCI runtime (?:create|start|exec) failed"
        r"|oci runtime error|shim disconnected|runc create failed"
        r"|failed to create task for container|container_linux\.go:\d"
        r"|unable to start container process|failed to start shim"
        r"|error creating overlay mount|failed to mount overlay"
        r"|unable to retrieve OCI runtime error|containerd: .{0,80}context deadline"
        r"|failed to set up container networking|failed to create endpoint"
        r"|iptables failed|error while (?:creating|removing) (?:mount source path"
        r"|container)|ttrpc: closed|cgroup.{0,80}device or resource busy"
        r"|context deadline exceeded: unknown|shim (?:exited|reaped)|OCI runtime",
        sample="failed to create shim task: OCI runtime create failed: unable to retrieve OCI "
        "runtime error: unknown",
        near_miss="INFO creating task for container finished",
        framework="runc, containerd",
        sentence="The container runtime of the node failed.",
        role=Role.FOLLOW_UP,
        at_start=True,
        confidence=0.75,
    ),
    Rule(
        id="container-engine-refused",
        failure=FailureClass.CONTAINER_RUNTIME_ERROR,
        pattern=r"Error response from daemon: |rpc error: code = |failed to register layer: ",
        sample="Error response from daemon: container 9f8a is marked for removal and cannot be "
        "started",
        near_miss="INFO response from daemon: ok",
        framework="docker, containerd",
        sentence="The container engine of the node refused the request.",
        role=Role.SUMMARY,
        at_start=True,
        confidence=0.4,
    ),
)
