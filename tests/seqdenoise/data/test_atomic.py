import os
import subprocess
import sys
from pathlib import Path

import pytest

from seqdenoise.data import atomic
from seqdenoise.data.atomic import (
    atomic_file,
    atomic_folder,
    remove_folder,
    remove_leftovers,
    replace_folder,
)

ROOT = Path(__file__).parents[3]
WRITER = """
import sys
from seqdenoise.data.atomic import atomic_file, atomic_folder

with atomic_folder(sys.argv[1] + "/a"), atomic_file(sys.argv[1] + "/b") as aside:
    aside.write_text("half")
    print("writing", flush=True)
    sys.stdin.read()
"""


def names(folder):
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture
def writer(tmp_path):
    """A process in the middle of writing a folder `a` and a file `b`."""
    process = subprocess.Popen(
        [sys.executable, "-c", WRITER, tmp_path],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(ROOT), "SEQDENOISE_DATA_ONLY": "1"},
    )
    with process:
        assert process.stdout.readline() == b"writing\n"
        yield process
        process.kill()


def test_what_a_killed_process_left_goes_with_the_next_output(writer, tmp_path):
    writer.kill()
    writer.wait()
    assert len(names(tmp_path)) == 2
    with atomic_folder(tmp_path / "a"):
        assert len(names(tmp_path)) == 2
    with atomic_file(tmp_path / "b"):
        pass
    assert names(tmp_path) == ["a", "b"]


def test_what_a_living_process_is_writing_stays(writer, tmp_path):
    before = names(tmp_path)
    remove_leftovers(tmp_path / "a")
    remove_leftovers(tmp_path / "b")
    assert names(tmp_path) == before
    writer.communicate(b"")
    assert writer.returncode == 0
    assert names(tmp_path) == ["a", "b"]
    assert (tmp_path / "b").read_text() == "half"


def test_only_leftovers_of_the_same_output_go(tmp_path):
    mine = [".a.0badcafe.tmp"]
    others = [".a.b.0badcafe.tmp", ".a.0badcafe", ".a.0badcaf.tmp", ".ab.0badcafe.tmp", "a"]
    for name in [*mine, *others]:
        (tmp_path / name).mkdir()
    remove_leftovers(tmp_path / "a")
    assert names(tmp_path) == sorted(others)
    remove_leftovers(tmp_path / "nowhere" / "a")


def test_one_taken_for_a_leftover_as_it_is_made_is_made_again(tmp_path, monkeypatch):
    lock, taken = atomic.lock, []

    def lock_too_late(path):
        if not taken:
            taken.append(path)
            path.rmdir()
            path.mkdir()
            path.rmdir()
            path.with_name("elsewhere").mkdir()
            return lock(path.with_name("elsewhere"))
        return lock(path)

    monkeypatch.setattr(atomic, "lock", lock_too_late)
    with atomic_folder(tmp_path / "a") as aside:
        (aside / "x").write_text("whole")
    assert (tmp_path / "a" / "x").read_text() == "whole"
    assert aside != taken[0]


def test_an_error_leaves_what_was_there(tmp_path):
    for make in (atomic_file, atomic_folder):
        path = tmp_path / make.__name__
        path.mkdir() if make is atomic_folder else path.write_text("old")
        with pytest.raises(KeyError), make(path):
            raise KeyError
    assert names(tmp_path) == ["atomic_file", "atomic_folder"]
    assert (tmp_path / "atomic_file").read_text() == "old"


def test_a_folder_takes_the_place_of_another(tmp_path):
    for name in ("new", "old"):
        (tmp_path / name).mkdir()
        (tmp_path / name / name).touch()
    replace_folder(tmp_path / "new", tmp_path / "old")
    assert names(tmp_path) == ["old"]
    assert names(tmp_path / "old") == ["new"]


def test_a_folder_is_gone_at_once(tmp_path, monkeypatch):
    (tmp_path / "a" / "b").mkdir(parents=True)
    # Killed before anything in it is removed.
    monkeypatch.setattr(atomic.shutil, "rmtree", lambda *_, **__: None)
    remove_folder(tmp_path / "a")
    assert not (tmp_path / "a").exists()
    monkeypatch.undo()
    remove_leftovers(tmp_path / "a")
    remove_folder(tmp_path / "a")
    assert names(tmp_path) == []
