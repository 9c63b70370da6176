import pytest

from pipelines.job_errors import FolderInUseError
from pipelines.unfinished_run import BACKUPS, unfinished_run
from seqdenoise.errors import DataError


def leave(folder, fingerprint="a"):
    """What a killed run leaves: the work folder, with a backup in it."""
    work = folder.with_name(f".{folder.name}.unfinished")
    (work / BACKUPS / "step-1").mkdir(parents=True)
    (work / "fingerprint.txt").write_text(fingerprint)
    return work


def test_the_same_run_goes_on_in_what_a_killed_one_left(tmp_path):
    left = leave(tmp_path / "run")
    with unfinished_run(tmp_path / "run", "a", "name") as work:
        assert work == left
        assert (work / BACKUPS / "step-1").is_dir()
    assert not list(tmp_path.iterdir())


def test_another_run_starts_over_and_says_so(tmp_path, caplog):
    left = leave(tmp_path / "run")
    with caplog.at_level("INFO"), unfinished_run(tmp_path / "run", "b", "name") as work:
        assert [path.name for path in work.iterdir()] == ["fingerprint.txt"]
        assert (left / "fingerprint.txt").read_text() == "b"
    assert caplog.messages == ["name: what an unfinished run of something else left is removed"]


def test_the_mark_goes_first_when_a_folder_is_emptied(tmp_path, monkeypatch):
    # Killed while it empties: what is left must not pass for the whole of run `a`.
    left = leave(tmp_path / "run")

    def die(_):
        raise KeyboardInterrupt

    monkeypatch.setattr("pipelines.work_lock.shutil.rmtree", die)
    with pytest.raises(KeyboardInterrupt), unfinished_run(tmp_path / "run", "b", "name"):
        pass
    monkeypatch.undo()
    assert (left / BACKUPS / "step-1").is_dir()
    with unfinished_run(tmp_path / "run", "a", "name") as work:
        assert not (work / BACKUPS).exists()


def test_one_process_at_a_time(tmp_path):
    with unfinished_run(tmp_path / "run", "a", "name"):
        expected = r"\.run\.unfinished: expected no other process at work. Received"
        with (
            pytest.raises(FolderInUseError, match=expected),
            unfinished_run(tmp_path / "run", "a", "name"),
        ):
            pass
        # Another run beside it is no matter.
        with unfinished_run(tmp_path / "other", "a", "name"):
            pass
    with unfinished_run(tmp_path / "run", "a", "name"):
        pass


@pytest.mark.parametrize(
    ("error", "has_backup", "stays"),
    [
        (KeyboardInterrupt, True, True),
        (KeyboardInterrupt, False, False),
        (OSError, True, True),
        (DataError, True, False),  # the data will be other, hence the run
    ],
)
def test_what_an_error_leaves(error, has_backup, stays, tmp_path):
    def fail():
        with unfinished_run(tmp_path / "run", "a", "name") as work:
            (work / BACKUPS).mkdir()
            if has_backup:
                (work / BACKUPS / "step-1").mkdir()
            raise error

    with pytest.raises(error):
        fail()
    assert [path.name for path in tmp_path.iterdir()] == ([".run.unfinished"] if stays else [])


def test_leftovers_of_killed_processes_are_removed(tmp_path):
    for name in (".run.0badcafe.tmp", "..run.unfinished.0badcafe.tmp"):
        (tmp_path / name / "checkpoint").mkdir(parents=True)
    (tmp_path / ".another.0badcafe.tmp").mkdir()
    with unfinished_run(tmp_path / "run", "a", "name"):
        pass
    assert [path.name for path in tmp_path.iterdir()] == [".another.0badcafe.tmp"]
