"""Network and remote services: time-outs, DNS, TLS, throttling, servers out of order."""

from __future__ import annotations

from prefect_heteroflow.core.failures import FailureClass
from prefect_heteroflow.core.rules.model import Role, Rule

RULES: tuple[Rule, ...] = (
    Rule(
        id="address-is-a-placeholder",
        failure=FailureClass.APPLICATION_ERROR,
        pattern=r"(?:to host |host='|host=|resolve host:? |resolve '|ENOTFOUND |https?://|lookup )"
        r"(?:none|None|null|undefined)\b(?![.-])|host=''",
        context=r"[Cc]onnect|[Rr]esolve|getaddrinfo|ENOTFOUND|Error|error",
        sample="aiohttp.client_exceptions.ClientConnectorError: Cannot connect to host none:443 "
        "ssl:default [getaddrinfo failed]",
        near_miss="aiohttp.client_exceptions.ClientConnectorError: Cannot connect to host "
        "python.org:80 ssl:None [Network is unreachable]",
        framework="http clients",
        sentence="The address is empty: a setting was missing.",
        confidence=0.8,
    ),
    Rule(
        id="own-host-refused",
        failure=FailureClass.APPLICATION_ERROR,
        pattern=r"(?:localhost|127\.0\.0\.1|0\.0\.0\.0|\[::1\])(?:'|\"|:\d|, ?port"
        r"| port).{0,240}(?:[Cc]onnection refused|Max retries exceeded"
        r"|Connect call failed|refused|ECONNREFUSED)|(?:[Cc]onnection refused"
        r"|ECONNREFUSED|Connect call failed).{0,60}(?:localhost|127\.0\.0\.1|::1)",
        sample="requests.exceptions.ConnectionError: HTTPConnectionPool(host='127.0.0.1', "
        "port=18085): Max retries exceeded with url: / (Caused by "
        "NewConnectionError('Connection refused'))",
        near_miss="INFO serving on http://127.0.0.1:8080",
        framework="http clients",
        sentence="Nothing listens at an address of the job's own machine: a setting or a helper "
        "process is missing.",
        confidence=0.7,
    ),
    Rule(
        id="service-throttled",
        failure=FailureClass.TRANSIENT_ERROR,
        pattern=r"error occurred \((?:SlowDown|Throttling|ThrottlingException|ThrottledException"
        r"|RequestLimitExceeded|TooManyRequestsException"
        r"|ProvisionedThroughputExceededException|RequestThrottled|BandwidthLimitExceeded"
        r"|ServiceUnavailable|InternalError|InternalServerError|503|429)\)|SlowDown\b"
        r"|rateLimitExceeded|userRateLimitExceeded|RateLimitError|\b429 (?:Client Error"
        r"|Too Many)|Too Many Requests|HTTP (?:Error )?429|[Rr]ate limit(?:ed| exceeded"
        r"| reached)|Please reduce your request rate|ServerBusy|TooManyRequests|(?:status"
        r"|code)[=:] ?429|RESOURCE_EXHAUSTED: [Qq]uota|ThrottlingException"
        r"|ERROR_TOO_MANY_REQUESTS",
        sample="botocore.exceptions.ClientError: An error occurred (SlowDown) when calling the "
        "CompleteMultipartUpload operation (reached max retries: 4): Please reduce your "
        "request rate.",
        near_miss="botocore.exceptions.ClientError: An error occurred (AccessDenied) when "
        "calling the GetObject operation: Access Denied",
        framework="cloud sdks, http clients",
        sentence="A service asked for fewer requests; it answers again later.",
        confidence=0.9,
    ),
    Rule(
        id="server-error",
        failure=FailureClass.TRANSIENT_ERROR,
        pattern=r"\b50[0234] Server Error|\b50[0234] (?:Internal Server Error|Bad Gateway"
        r"|Service (?:Temporarily )?Unavailable|Gateway Time-?out)|HTTP (?:Error "
        r"|status )?50[0234]\b|(?:status|code)(?:=|: ?| )50[0234]\b|response 50[0234]\b"
        r"|HTTPError: 50[0234]\b|returned error: 50[0234]\b|HTTPStatusError: Server error '50\d"
        r"|StatusCode\.UNAVAILABLE|InternalServerError: |ServiceUnavailable(?:Error)?\b"
        r"|ServiceUnavailableError|The service is currently unavailable"
        r"|too many 50\d error responses|Backend Error|backendError",
        unless=r"exit status|exit code|exitcode|returned? code",
        sample="requests.exceptions.HTTPError: 503 Server Error: Service Unavailable for url: "
        "https://hub.example.com/api/models",
        near_miss="requests.exceptions.HTTPError: 404 Client Error: Not Found for url: "
        "https://hub.example.com/api/models",
        framework="http clients",
        sentence="A server was out of order (HTTP 5xx); that passes.",
        confidence=0.85,
    ),
    Rule(
        id="database-busy",
        failure=FailureClass.TRANSIENT_ERROR,
        pattern=r"too many clients already|[Tt]oo many connections|remaining connection slots"
        r"|DeadlockDetected|[Dd]eadlock (?:detected|found)|Lock wait timeout exceeded"
        r"|database is locked|connection due to administrator command"
        r"|database system is (?:starting up|shutting down|in recovery)",
        sample='psycopg2.OperationalError: connection to server at "db" (10.0.0.2), port 5432 '
        "failed: FATAL:  sorry, too many clients already",
        near_miss='psycopg2.errors.UndefinedTable: relation "runs" does not exist',
        framework="postgres, mysql, sqlite",
        sentence="The database was busy or being restarted; it answers again later.",
        confidence=0.75,
    ),
    Rule(
        id="address-in-use",
        failure=FailureClass.TRANSIENT_ERROR,
        pattern=r"[Aa]ddress already in use|EADDRINUSE|\[Errno 98\]|errno: 98\b"
        r"|failed to bind to any local network address",
        sample="RuntimeError: The server socket has failed to listen on any local network "
        "address. The server socket has failed to bind to [::]:29500 (errno: 98 - Address "
        "already in use).",
        near_miss="OSError: [Errno 99] Cannot assign requested address",
        framework="torchrun, servers",
        sentence="Another process of the node holds the network port.",
        confidence=0.8,
    ),
    Rule(
        id="dns-temporary",
        failure=FailureClass.NETWORK_TIMEOUT,
        pattern=r"Temporary failure in name resolution|EAI_AGAIN|\[Errno -3\]|getaddrinfo failed"
        r"|Name or service not known|NameResolutionError|nodename nor servname"
        r"|Could not resolve host|ENOTFOUND|\[Errno -[25]\]"
        r"|No address associated with hostname|UnknownHostException|no such host"
        r"|server misbehaving|lookup .{1,120}: i/o timeout|Failed to resolve|gaierror",
        sample="socket.gaierror: [Errno -3] Temporary failure in name resolution",
        near_miss="resolved host python.org to 151.101.0.223",
        framework="resolver",
        sentence="A host name could not be resolved.",
        confidence=0.8,
    ),
    Rule(
        id="tls-certificate",
        failure=FailureClass.APPLICATION_ERROR,
        pattern=r"CERTIFICATE_VERIFY_FAILED|certificate (?:has expired|is not trusted"
        r"|signed by unknown)|x509: |self[- ]signed certificate|WRONG_VERSION_NUMBER"
        r"|hostname mismatch, certificate",
        sample="ssl.SSLCertVerificationError: [SSL: CERTIFICATE_VERIFY_FAILED] certificate "
        "verify failed: unable to get local issuer certificate",
        near_miss="ssl.SSLEOFError: EOF occurred in violation of protocol (_ssl.c:1007)",
        framework="tls",
        sentence="A server's certificate is not accepted.",
        confidence=0.7,
    ),
    Rule(
        id="network-timeout",
        failure=FailureClass.NETWORK_TIMEOUT,
        pattern=r"\w{1,60}(?:Timeout|TimeoutError|TimeoutException): |\btimed out[,: ]"
        r"|CONNECTION FAILED|[Uu]nable to resolve host|[Ff]ailed to connect to"
        r"|[Uu]nable to connect to|[Cc]annot connect to (?:host|server)"
        r"|[Cc]ould not connect to|Can't connect to .{0,40}server|NoBrokersAvailable"
        r"|Connection(?:Failure|Failed)\b"
        r"|(?:Read|Connect|Write|Pool)Timeout(?:Error)?\b|[Rr]ead timed out"
        r"|[Cc]onnection timed out|[Tt]he read operation timed out"
        r"|[Tt]he handshake operation timed out|socket\.timeout|ETIMEDOUT|ESOCKETTIMEDOUT"
        r"|[Cc]onnection to .{1,120} timed out|TLS handshake timeout"
        r"|Client\.Timeout exceeded|request canceled while waiting for connection"
        r"|net/http: .{0,60}timeout|i/o timeout|Max retries exceeded with url"
        r"|Connect call failed|[Nn]etwork is unreachable|[Nn]o route to host|ENETUNREACH"
        r"|EHOSTUNREACH|Failed to establish a new connection|ServerTimeoutError"
        r"|TimeoutError: \[Errno 110\]|\[Errno 1(?:10|01|13)\]|ConnectTimeoutError"
        r"|ReadTimeoutError|EndpointConnectionError|Could not connect to the endpoint URL"
        r"|DEADLINE_EXCEEDED|[Dd]eadline [Ee]xceeded|Operation timed out"
        r"|timed out after \d{1,9}|SocketTimeoutException|ConnectionTimeoutError"
        r"|RequestTimeout\b|\bTimeoutError\b|Could not connect to server|curl: \((?:6|7"
        r"|28|35|52|55|56)\)|LocalEntryNotFoundError|couldn't connect to '?https?:"
        r"|We couldn't connect to|An error happened while trying to locate the file on th"
        r"e Hub|offline mode is enabled|context deadline exceeded",
        unless=r"NCCL|gloo|Gloo|Watchdog|store|Store|DistNetworkError|client socket has|endezvous",
        sample="httpx.ReadTimeout: The read operation timed out",
        near_miss="INFO set the read timeout to 30 s",
        framework="http clients, cloud sdks",
        sentence="A server could not be reached or did not answer in time.",
        confidence=0.85,
    ),
    Rule(
        id="connection-broken",
        failure=FailureClass.NETWORK_TIMEOUT,
        pattern=r"ConnectionResetError|[Cc]onnection reset by peer|ECONNRESET|RemoteDisconnected"
        r"|Remote end closed connection|[Cc]onnection aborted|IncompleteRead"
        r"|ChunkedEncodingError|ServerDisconnectedError|RemoteProtocolError"
        r"|ConnectionError: |ConnectError\b|ClientConnectorError|ClientOSError"
        r"|BrokenPipeError|SSLEOFError|EOF occurred in violation of protocol"
        r"|SSL_ERROR_SYSCALL|ContentTooShortError|[Cc]onnection refused|ECONNREFUSED"
        r"|socket hang up|unexpected EOF|ClientPayloadError|ProtocolError: "
        r"|server closed the connection unexpectedly|[Cc]onnection lost"
        r"|UNEXPECTED_EOF_WHILE_READING|early EOF|RPC failed; |The remote end hung up"
        r"|Server disconnected|ConnectionClosedError|Connection closed unexpectedly"
        r"|: EOF$",
        unless=r"NCCL|gloo|Gloo|Store|DistNetworkError|client socket has|remote peer"
        r"|MESSAGE_TASK_EXIT",
        sample="ConnectionResetError: [Errno 104] Connection reset by peer",
        near_miss="INFO connection pool opened",
        framework="http clients, sockets",
        sentence="A network connection broke.",
        confidence=0.75,
    ),
    Rule(
        id="retry-announced",
        failure=None,
        pattern=r"Retrying \(Retry\(total=|[Rr]etrying in \d|[Ww]ill retry|, retrying\b"
        r"|[Rr]etry(?:ing)? (?:attempt )?\d{1,4}(?:/| of )\d|Retrying \(|trying again in"
        r"|[Bb]acking off|Trying to resume download",
        sample="WARNING Retrying (Retry(total=3, connect=None)) after connection broken by "
        "'ConnectTimeoutError'",
        near_miss="ConnectTimeoutError: timed out",
        framework="urllib3, pip, huggingface_hub, downloaders",
        sentence="",
        role=Role.BENIGN,
    ),
)
