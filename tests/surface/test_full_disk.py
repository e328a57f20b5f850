"""A node whose temporary folder is full keeps its runs waiting; it does not end them."""

from __future__ import annotations

import itertools
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import wait_until
from tests.support.prefect_server import PrefectServer
from tests.support.workers import Api, Worker

POOL = "full-disk"


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system for 50 files and folders."""
    place = tmp_path / "small"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m,nr_inodes=50", "tmpfs", str(place)]
    subprocess.run(mount, check=True)
    yield place
    subprocess.run(["umount", "--lazy", str(place)], check=True)


def fill(folder: Path) -> None:
    """Files up to the last one that there is room for."""
    for number in itertools.count():
        (folder / str(number)).touch()


def test_run_that_a_full_disk_kept_from_starting_is_tried_again(
    server: PrefectServer, api: Api, tmp_path: Path, small_disk: Path
) -> None:
    """Its own values are in order: nothing says that it would fail again."""
    api.create_pool(POOL, "heteroflow-process")
    variables = {"memory_mb": 64, "command": "true", "retry_delay": 3, "retry_jitter": 0}
    flow = api.deploy("sleepy", POOL, name="full", job_variables=variables)
    settings, rest = {"TMPDIR": str(small_disk)}, small_disk / "rest"
    rest.mkdir()
    with Worker(server, tmp_path, pool=POOL, node="full", memory_mb=512, settings=settings):
        with pytest.raises(OSError, match="No space left"):
            fill(rest)
        run = api.submit(flow)
        wait_until(lambda: len(api.rows(run)) == 2, what="planned retry")
        shutil.rmtree(rest)
        assert api.wait_end(run).name == "Completed"
    first = api.rows(run)[0]
    assert (first["failure"], first["status"]) == ("DiskPressure", "failed")
    assert "No space left on device" in first["reason"]
