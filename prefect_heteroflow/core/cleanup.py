"""What may be removed before a retry: patterns that are judged, and a report of what was done."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from prefect_heteroflow.core.masking import mask_secrets
from prefect_heteroflow.core.valid_text import on_one_line

DEFAULT_PATTERNS: tuple[str, ...] = (
    "*.lock",
    "*.lck",
    # `torch.utils.cpp_extension` waits for ever for a file of this name that a killed build left.
    "lock",
    # Shared memory and sockets of NCCL, where NCCL_* or TMPDIR put them into the folder.
    "nccl-*",
)
"""Stale locks, at any depth."""

MAX_PATTERNS = 50
MAX_PATTERN_CHARACTERS = 200
MAX_ANY_DEPTH = 2
"""Each `**` more multiplies the work of one comparison."""
MAX_NAMED = 5
MAX_SAID_CHARACTERS = 400
MAX_HOOK_CHARACTERS = 2000

_FUNCTION = re.compile(r"(?P<module>[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*)[.:](?P<name>[A-Za-z_]\w*)")
_CALL = "import importlib, sys; getattr(importlib.import_module(sys.argv[1]), sys.argv[2])()"


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanupReport:
    """What was cleaned before a retry."""

    removed: tuple[str, ...] = ()
    """Paths, relative to the attempt's folders."""
    removed_bytes: int = 0
    ended_processes: int = 0
    gpu_wait_seconds: float | None = None
    """How long its GPU memory was waited for; `None` if it was free at once or not asked about."""
    hook: str | None = None
    """How the user's hook ended."""
    problems: tuple[str, ...] = ()
    """What could not be done; none of it keeps the retry from starting."""

    def text(self) -> str:
        """One sentence for the history row, on one line; empty if there was nothing to do."""
        parts = []
        if self.removed:
            named = ", ".join(_cut(path) for path in self.removed[:MAX_NAMED])
            more = len(self.removed) - MAX_NAMED
            rest = f" and {more} more" if more > 0 else ""
            parts.append(f"removed {named}{rest} ({self.removed_bytes} bytes)")
        if self.ended_processes:
            noun = "process" if self.ended_processes == 1 else "processes"
            parts.append(f"ended {self.ended_processes} leftover {noun}")
        if self.gpu_wait_seconds is not None:
            parts.append(f"waited {self.gpu_wait_seconds:.0f} s for GPU memory")
        if self.hook is not None:
            parts.append(self.hook)
        parts += [_cut(problem) for problem in self.problems[:MAX_NAMED]]
        more = len(self.problems) - MAX_NAMED
        parts += [f"and {more} problems more"] if more > 0 else []
        return on_one_line(f"Cleaned up: {'; '.join(parts)}.") if parts else ""


def _cut(text: str) -> str:
    return text if len(text) <= MAX_SAID_CHARACTERS else f"{text[:MAX_SAID_CHARACTERS]}..."


def parse_cleanup_patterns(values: Sequence[object]) -> tuple[str, ...]:
    """The patterns of a user, checked: none can reach outside of the attempt's own folders.

    A pattern without a slash is a name at any depth (`*.partial`); one with a slash is a path from
    the folder (`cache/*.tmp`), in which `**` stands for any number of folders.

    Raises:
        ValueError: A pattern cannot be used; the text names each and says what is allowed.
    """
    problems = [
        f"cleanup pattern {value!r:.80}: {problem}"
        for value in values
        if (problem := _problem(value)) is not None
    ]
    if len(values) > MAX_PATTERNS:
        problems.append(f"{len(values)} cleanup patterns: allowed are {MAX_PATTERNS}")
    if problems:
        raise ValueError(
            f"{'; '.join(problems)}. Allowed is a name like `*.partial` or a path within the"
            " attempt's own folders like `cache/**/*.tmp`."
        )
    return tuple(dict.fromkeys(str(value).strip() for value in values))


def _problem(value: object) -> str | None:
    if not isinstance(value, str):
        return "it is no text"
    text = value.strip()
    if not text:
        return "it is empty"
    if len(text) > MAX_PATTERN_CHARACTERS:
        return f"it is longer than {MAX_PATTERN_CHARACTERS} characters"
    if text.startswith(("/", "~")) or re.match(r"[A-Za-z]:", text):
        return "it leads out of the attempt's own folders (an absolute path)"
    parts = text.split("/")
    if ".." in parts:
        return "it leads out of the attempt's own folders (`..`)"
    if "" in parts or "." in parts:
        return "it has an empty part or a `.` in its path"
    if parts.count("**") > MAX_ANY_DEPTH:
        return f"it has `**` more than {MAX_ANY_DEPTH} times"
    if any(character in text for character in ("$", "\\", "\0", "\n")):
        return "variables, backslashes and line breaks are not replaced"
    return None


def hook_command(hook: str, *, python: str = "python") -> list[str]:
    """The words of the process that runs a user's hook.

    A text of the form `package.module.function` or `package.module:function` is a function
    without arguments; everything else is a command, without a shell.

    Args:
        hook: The text.
        python: The interpreter for functions.

    Raises:
        ValueError: It is blank or too long, has a NUL in it, or a quote is not closed.
    """
    if "\0" in hook:
        raise ValueError("cleanup hook has a NUL, which no command can have: leave it out.")
    if len(hook) > MAX_HOOK_CHARACTERS:
        raise ValueError(
            f"cleanup hook has {len(hook)} characters, allowed are {MAX_HOOK_CHARACTERS}: put it"
            " into a script."
        )
    if found := _FUNCTION.fullmatch(hook.strip()):
        return [python, "-c", _CALL, found["module"], found["name"]]
    try:
        words = shlex.split(hook)
    except ValueError as error:
        shown = mask_secrets(hook)[:MAX_PATTERN_CHARACTERS]
        raise ValueError(f"cleanup hook {shown!r}: {error}. Close the quote.") from error
    if not words:
        raise ValueError(
            f"cleanup hook {hook!r} is blank: give a command or package.module.function."
        )
    return words


def is_matched(path: str, patterns: Sequence[str]) -> bool:
    """Whether a path, relative to the attempt's folder, is to be removed."""
    parts = tuple(path.split("/"))
    return any(
        _is_match(parts, tuple(pattern.split("/")))
        if "/" in pattern
        else fnmatchcase(parts[-1], pattern)
        for pattern in patterns
    )


def _is_match(path: tuple[str, ...], pattern: tuple[str, ...]) -> bool:
    """Part by part; `**` takes any number of parts, none of them too."""
    if not pattern:
        return not path
    if pattern[0] == "**":
        return any(_is_match(path[skip:], pattern[1:]) for skip in range(len(path) + 1))
    return bool(path) and fnmatchcase(path[0], pattern[0]) and _is_match(path[1:], pattern[1:])
