"""A command's way to the Prefect API, and one line for what can go wrong on it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from prefect.client.orchestration import PrefectClient

EXIT_FAILED = 1
EXIT_REFUSED = 2
"""Bad input: nothing was started or created."""
_NO_API = (
    "No Prefect API is configured: start a server with `prefect server start` and set its address"
    " with `prefect config set PREFECT_API_URL=http://127.0.0.1:4200/api`."
)


class CommandError(Exception):
    """A command cannot go on; its text is the whole message for the user.

    Args:
        message: What is wrong and what to do, in one line.
        exit_code: 1 when something failed, 2 when the input was refused before anything started.
    """

    def __init__(self, message: str, *, exit_code: int = EXIT_FAILED) -> None:
        super().__init__(message)
        self.exit_code = exit_code


@asynccontextmanager
async def api_client() -> AsyncIterator[PrefectClient]:
    """A client of the API that the settings name, in the environment or in a profile.

    Without one Prefect's own `get_client` starts a temporary server, and a command would answer
    about a world in which there is nothing.

    Raises:
        CommandError: The settings name none; the text says how to set one.
    """
    # Imported here: `heteroflow --help` must not pay for it.
    from prefect.client.orchestration import get_client
    from prefect.settings import get_current_settings

    # No `determine_server_type`: it takes an empty address for a server, `get_client` for none.
    if not get_current_settings().api.url:
        raise CommandError(_NO_API)
    async with get_client() as client:
        yield client


@contextmanager
def api_errors() -> Iterator[None]:
    """End the command with one line on standard error when the API fails or a `CommandError` comes.

    Works as `with api_errors():` and as a decorator of a synchronous command (not of a coroutine
    function: wrap the function that runs it). What is not known here goes on as it is: a traceback
    that nobody expected is worth more than a vague line.
    """
    try:
        yield
    except CommandError as error:
        _end(str(error), error.exit_code, error)
    except Exception as error:
        message = api_error_text(error)
        if message is None:
            raise
        _end(message, EXIT_FAILED, error)


def _end(message: str, exit_code: int, cause: Exception) -> None:
    typer.secho(f"Error: {message}", fg="red", err=True)
    raise typer.Exit(exit_code) from cause


def api_error_text(error: BaseException) -> str | None:
    """One line for an error of the API or on the way to it; `None` for any other error."""
    # Imported only after something failed: `heteroflow --help` must not pay for them.
    import httpx
    from prefect.exceptions import ObjectNotFound

    # `ExceptionGroup` is no builtin on Python 3.10, so it is known by its attribute.
    inner = getattr(error, "exceptions", None)
    if isinstance(inner, tuple) and len(inner) == 1:
        return api_error_text(inner[0])
    if isinstance(error, ObjectNotFound):
        return str(error.help_message or "The Prefect API does not know it (404 Not Found).")
    if isinstance(error, httpx.HTTPStatusError):
        return _status_text(error)
    if isinstance(error, (httpx.TransportError, httpx.InvalidURL)):
        return _unreachable_text(str(error) or type(error).__name__)
    # Prefect's client has no class of its own for it.
    if isinstance(error, RuntimeError) and str(error).startswith("Failed to reach API at"):
        return _unreachable_text(str(error).rstrip("."))
    return None


def _status_text(error: object) -> str:
    import httpx

    assert isinstance(error, httpx.HTTPStatusError)
    status = error.response.status_code
    if status in (401, 403):
        return (
            f"The Prefect API at {_api_url()} refused us ({status}). Set PREFECT_API_KEY (Cloud)"
            " or PREFECT_API_AUTH_STRING (your own server)."
        )
    detail = " ".join(error.response.text.split())[:300]
    request = error.request
    return f"The Prefect API answered {status} to {request.method} {request.url.path}: {detail}"


def _unreachable_text(cause: str) -> str:
    return (
        f"The Prefect API at {_api_url()} cannot be reached ({cause}). Start one with"
        " `prefect server start`, or set PREFECT_API_URL to another."
    )


def _api_url() -> str:
    """The API's address without a password in it."""
    from urllib.parse import urlsplit

    from prefect.settings import get_current_settings

    parts = urlsplit(str(get_current_settings().api.url))
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()
