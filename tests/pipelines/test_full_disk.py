"""A full disk: what is there stays, the message says what to do, and running again works."""

import errno
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import small_log
import typer
import yaml

from pipelines.clear_error import one_clear_error
from pipelines.config import load_run_config
from pipelines.disk_space import needs_room
from pipelines.job_errors import DiskFullError
from pipelines.prepare import prepare

ROOT = Path(__file__).parents[2]
# A small disk of its own, in a namespace in which it may be mounted; it is enlarged for the second
# run, and what is on it is copied out.
SCRIPT = """
mount -t tmpfs -o size={small} tmpfs {disk} || exit 77
{command} && exit 1
ls -A {disk} > {out}/left
mount -o remount,size={large} {disk}
{command} || exit 1
cp -r {disk}/prepared {out}/prepared
"""


@pytest.mark.skipif(shutil.which("unshare") is None, reason="needs Linux' unshare")
@pytest.mark.parametrize("small", ["60k", "250k"])
def test_prepare_goes_on_once_there_is_room(small, tmp_path):
    small_log.write_log(tmp_path, small_log.tables())
    content = small_log.settings(tmp_path).model_dump(mode="json")
    run_file = tmp_path / "run.yaml"
    run_file.write_text(yaml.safe_dump({**content, "log": {"folder": str(tmp_path / "log")}}))
    disk = tmp_path / "disk"
    disk.mkdir()
    command = f"{sys.executable} -m pipelines prepare {run_file} --folder {disk} --bucket-rows 400"
    script = SCRIPT.format(small=small, large="4m", disk=disk, out=tmp_path, command=command)
    run = subprocess.run(
        ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", script],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    if run.returncode == 77 or "unshare failed" in run.stderr:
        pytest.skip("may not mount a disk here")
    assert run.returncode == 0, run.stderr
    error = next(line for line in run.stderr.splitlines() if line.startswith("error: "))
    expected = (
        f"error: {disk}: expected room for what `prepare` writes. Received: No space left on "
        f"device, N bytes free. What is finished is kept in {disk}/.prepare; make room and run "
        "again"
    )
    assert re.sub(r"[\d,]+ bytes", "N bytes", error) == expected
    assert (tmp_path / "left").read_text().split() == [".prepare"]

    prepare(load_run_config(run_file, tmp_path / "whole"), processes=1, bucket_rows=400)
    for path in (tmp_path / "whole" / "prepared").rglob("*"):
        if path.is_file():
            name = path.relative_to(tmp_path / "whole")
            assert (tmp_path / name).read_bytes() == path.read_bytes()


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG])
def test_every_way_to_have_no_room_is_said(number, tmp_path):
    place = tmp_path / "not" / "there" / "yet"

    def fail():
        with needs_room("the thing", place, "Then this"):
            raise OSError(number, "whatever the library says")

    pattern = rf"yet: expected room for the thing\. Received: {os.strerror(number)}, [\d,]+ bytes "
    with pytest.raises(DiskFullError, match=pattern + r"free\. Then this$"):
        fail()


def test_other_errors_pass():
    with pytest.raises(FileNotFoundError), needs_room("x", Path(), ""):
        Path("nowhere").read_text()


def test_a_command_that_says_nothing_of_its_own_says_that(capsys):
    def fail(number):
        with one_clear_error():
            raise OSError(number, os.strerror(number), "/data/report.html")

    with pytest.raises(typer.Exit):
        fail(errno.ENOSPC)
    expected = "error: /data/report.html: expected room to write. Received: No space left on device"
    assert capsys.readouterr().err == expected + "\n"
    with pytest.raises(PermissionError):
        fail(errno.EACCES)
