"""The interpreter of the flow, as its bodies are to see it: flags, arguments and main module."""

from __future__ import annotations

import os
import sys
from importlib.machinery import ModuleSpec


def interpreter_flags() -> list[str]:
    """Command-line options that give another interpreter the flags of this one.

    What `subprocess` and `multiprocessing` have for it is private and passes some of the `-X`
    options only. `-i` and `-u` are left out: the first is for a person, the second is not told.
    """
    flags = sys.flags
    counted = (
        (flags.debug, "d"),
        (flags.optimize, "O"),
        (flags.dont_write_bytecode, "B"),
        (flags.no_site, "S"),
        (flags.verbose, "v"),
        (flags.bytes_warning, "b"),
        (flags.quiet, "q"),
        (flags.isolated, "I"),
        (flags.ignore_environment and not flags.isolated, "E"),
        (flags.no_user_site and not flags.isolated, "s"),
        (getattr(flags, "safe_path", False) and not flags.isolated, "P"),  # since Python 3.11
    )
    options = [f"-{letter * int(count)}" for count, letter in counted if count]
    options += [f"-W{warning}" for warning in sys.warnoptions]
    for name, value in getattr(sys, "_xoptions", {}).items():
        options += ["-X", name if value is True else f"{name}={value}"]
    return options


def arguments() -> list[str]:
    """`sys.argv` as it is now."""
    return [str(argument) for argument in getattr(sys, "argv", ())]


def main_module() -> dict[str, str]:
    """Where this process has its main module from: its `file` and, after `python -m`, its `name`.

    Empty without a file that others can read, as in a notebook or after `python -c`.
    """
    module = sys.modules.get("__main__")
    file = getattr(module, "__file__", None)
    if not isinstance(file, str) or not os.path.isfile(file):
        return {}
    found = {"file": os.path.abspath(file)}
    name = getattr(getattr(module, "__spec__", None), "name", None)
    if isinstance(name, str):
        found["name"] = name
    return found


def show_main_module(found: dict[str, str]) -> None:
    """Let the `__main__` of this process say that it comes from there; nothing of it is run.

    `multiprocessing` has the processes that it spawns import that file as `__mp_main__`, where they
    find what a body sends them by its name.
    """
    if "file" not in found:
        return
    module = sys.modules["__main__"]
    module.__file__ = found["file"]
    if "name" in found:
        module.__spec__ = ModuleSpec(found["name"], None, origin=found["file"])
