"""Makes `.venv` with this package in it. Runs with any Python, to say which one is too old.

Standard library only, and no syntax newer than Python 3.6: an old interpreter has to get as far as
the message.
"""

import os
import subprocess
import sys

OLDEST = (3, 10)
ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
VENV = os.path.join(ROOT, ".venv")
PYTHON = os.path.join(VENV, "bin", "python")
PROJECT = os.path.join(ROOT, "pyproject.toml")
# `make test` leaves the first, this script the second; each means "installed, and newer than
# pyproject.toml".
MARKS = (os.path.join(VENV, "installed"), os.path.join(VENV, "installed-demo"))


def main() -> int:
    """Set up what is missing; the exit status is 0 when the demo can start."""
    if sys.version_info[:2] < OLDEST:
        return _refuse(
            f"{sys.executable} is Python {sys.version_info[0]}.{sys.version_info[1]}, and Prefect 3"
            " needs 3.10 or newer. Name another one:\n    make demo PYTHON=python3.12"
        )
    if _is_installed():
        return 0
    if not os.path.exists(PYTHON):
        print("Setting up .venv with", sys.executable)
        sys.stdout.flush()
        if subprocess.call([sys.executable, "-m", "venv", VENV]) != 0:
            return _refuse(
                "The virtual environment could not be made. On Debian and Ubuntu the module for it"
                " is a package of its own:\n    apt install python3-venv"
            )
    print("Installing prefect-heteroflow and Prefect into .venv (once, about a minute)")
    sys.stdout.flush()
    pip = [PYTHON, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    if subprocess.call([*pip, "--editable", ROOT]) != 0:
        return _refuse(
            "pip could not install the package; its own words are above. Behind a proxy or with a"
            " package index of your own, set HTTPS_PROXY or PIP_INDEX_URL and run `make demo`"
            " again."
        )
    with open(MARKS[1], "w"):
        pass
    return 0


def _is_installed() -> bool:
    if not os.path.exists(PYTHON):
        return False
    changed = os.path.getmtime(PROJECT)
    return any(os.path.exists(mark) and os.path.getmtime(mark) >= changed for mark in MARKS)


def _refuse(text: str) -> int:
    sys.stderr.write(text + "\n")
    return 1


if __name__ == "__main__":
    sys.exit(main())
