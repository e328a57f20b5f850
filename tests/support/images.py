"""The images of the container tests: Debian with Python, with and without Prefect.

No registry is at hand, so they are built from Debian's and Python's packages: once per machine,
into tar files in `cache_folder()`, named by a hash of their recipe. Before the tests run,
`python -m tests.support.images` fills that cache (about two minutes, as root).
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import importlib.metadata
import inspect
import io
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import docker
import docker.errors

BASE_IMAGE = "heteroflow-test/base:1"
"""Python 3.11 and this interpreter's Prefect in `/opt/venv`, without `prefect_heteroflow`."""

PLAIN_IMAGE = "heteroflow-test/python:1"
"""Python 3.11 and nothing else."""

TINY_IMAGE = "heteroflow-test/tiny:1"
"""One text file: nothing to run, but pushed to a registry and pulled in no time."""

SUITE = "bookworm"
PYTHON = "3.11"
"""The Python of `SUITE`."""
MIRROR = "http://deb.debian.org/debian"
PACKAGES = ("python3", "python3-venv", "ca-certificates")
VENV = "opt/venv"

DROPPED = (
    "./dev/*",
    "./proc/*",
    "./sys/*",
    "./run/*",
    "./tmp/*",
    "./boot/*",
    "./usr/share/doc/*",
    "./usr/share/info/*",
    "./usr/share/locale/*",
    "./usr/share/man/*",
    "./var/cache/*",
    "./var/lib/apt/lists/*",
    "./var/log/*",
)
"""What the tar files leave out, as patterns of `tar --exclude`."""

BIN = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
CHANGES = {
    BASE_IMAGE: [f"ENV PATH=/{VENV}/bin:{BIN}", "ENV PYTHONUNBUFFERED=1"],
    PLAIN_IMAGE: [f"ENV PATH={BIN}", "ENV PYTHONUNBUFFERED=1"],
}


def cache_folder() -> Path:
    """Where the tar files are kept: `HETEROFLOW_TEST_CACHE`, else a folder in `/var/cache`."""
    return Path(os.environ.get("HETEROFLOW_TEST_CACHE", "/var/cache/prefect-heteroflow-tests"))


def why_not_buildable(name: str) -> str | None:
    """Why the image can be neither taken from the cache nor built, or `None` when it can."""
    if name == TINY_IMAGE or tar_path(name).exists():
        return None
    if os.geteuid() != 0:
        return "building the test images needs root"
    missing = [tool for tool in ("debootstrap", "chroot", "tar") if not shutil.which(tool)]
    return f"not installed: {', '.join(missing)}" if missing else None


def tar_path(name: str) -> Path:
    """The cache's file for an image; it exists once the image was built here."""
    values = (SUITE, PYTHON, MIRROR, PACKAGES, VENV, DROPPED, _prefect())
    steps = [inspect.getsource(step) for step in (_build, _add_prefect, _move_scripts, _pack)]
    recipe = hashlib.sha256(repr((values, steps)).encode()).hexdigest()[:16]
    return cache_folder() / f"{name.partition('/')[2].replace(':', '-')}-{recipe}.tar"


def ensure_image(client: docker.DockerClient, name: str) -> str:
    """Import an image into the engine unless it is there, building it if need be; gives `name`."""
    try:
        client.images.get(name)
    except docker.errors.ImageNotFound:
        repository, _, tag = name.partition(":")
        if name == TINY_IMAGE:
            client.api.import_image_from_data(_tiny(), repository=repository, tag=tag)
        else:
            client.api.import_image_from_file(
                str(built(name)), repository=repository, tag=tag, changes=CHANGES[name]
            )
        client.images.get(name)
    return name


def built(name: str) -> Path:
    """The image's tar file, made now if the cache lacks it; other processes wait meanwhile."""
    path = tar_path(name)
    if not path.exists():
        with _lock():
            if not path.exists():
                _build()
    return path


def _tiny() -> bytes:
    content = b"an image to push and pull\n"
    member = tarfile.TarInfo("about.txt")
    member.size = len(content)
    with io.BytesIO() as made:
        with tarfile.open(fileobj=made, mode="w") as tar:
            tar.addfile(member, io.BytesIO(content))
        return made.getvalue()


def _prefect() -> str:
    return importlib.metadata.version("prefect")


@contextlib.contextmanager
def _lock() -> Iterator[None]:
    cache_folder().mkdir(parents=True, exist_ok=True)
    with (cache_folder() / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _build() -> None:
    """Make both tar files, and drop those of older recipes."""
    with tempfile.TemporaryDirectory(dir=cache_folder(), prefix="build-") as folder:
        root = Path(folder) / "root"
        _run(
            "debootstrap",
            "--variant=minbase",
            f"--include={','.join(PACKAGES)}",
            SUITE,
            str(root),
            MIRROR,
        )
        plain = _pack(root, Path(folder) / "plain.tar")
        _add_prefect(root)
        base = _pack(root, Path(folder) / "base.tar")
        for old in cache_folder().glob("*.tar"):
            old.unlink()
        plain.replace(tar_path(PLAIN_IMAGE))
        base.replace(tar_path(BASE_IMAGE))


def _add_prefect(root: Path) -> None:
    """Install Prefect into `/opt/venv` of the new system, by the pip of this machine.

    The pip inside knows neither this machine's index nor its certificates.
    """
    _run("chroot", str(root), "python3", "-m", "venv", f"/{VENV}")
    packages = root / VENV / "lib" / f"python{PYTHON}" / "site-packages"
    _run(
        *(sys.executable, "-m", "pip", "install", "--quiet", "--no-compile"),
        *("--root-user-action=ignore", f"--python-version={PYTHON}", "--only-binary=:all:"),
        *(f"--target={packages}", f"prefect=={_prefect()}"),
    )
    _move_scripts(packages / "bin", root / VENV / "bin")
    # Without compiled files each container would spend seconds on compiling what it imports.
    # It ends with 1 for files that are meant for a later Python, and compiles all the others.
    compileall = (f"/{VENV}/bin/python", "-m", "compileall", "-q", f"/{VENV}/lib")
    _run("chroot", str(root), *compileall, accepted=(0, 1))


def _move_scripts(source: Path, target: Path) -> None:
    """Move the console scripts from where `pip --target` puts them, and name the right Python."""
    for script in source.iterdir():
        content = script.read_bytes()
        first, newline, rest = content.partition(b"\n")
        if first.startswith(b"#!") and b"python" in first:
            content = f"#!/{VENV}/bin/python".encode() + newline + rest
        moved = target / script.name
        moved.write_bytes(content)
        moved.chmod(0o755)
    shutil.rmtree(source)


def _pack(root: Path, tar: Path) -> Path:
    excludes = [f"--exclude={pattern}" for pattern in DROPPED]
    _run(
        "tar", "--create", f"--file={tar}", "--numeric-owner", *excludes, f"--directory={root}", "."
    )
    return tar


def _run(*command: str, accepted: Sequence[int] = (0,)) -> None:
    done = subprocess.run(
        command, check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    if done.returncode not in accepted:
        tail = "\n".join(done.stdout.splitlines()[-30:])
        raise RuntimeError(f"{command[0]} ended with {done.returncode}\n{tail}")


def main(names: Sequence[str] = (PLAIN_IMAGE, BASE_IMAGE)) -> None:
    """Fill the cache, and say what it holds."""
    for name in names:
        path = built(name)
        print(f"{name}: {path} ({path.stat().st_size // 2**20} MiB)")


if __name__ == "__main__":
    main()
