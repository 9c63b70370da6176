import logging

import pyarrow.parquet as pq
import pytest

from pipelines import simulate
from pipelines.config import ConfigError
from seqdenoise.data.simulate import simulate_log

SMALL = {"num_users": 40, "num_items": 80, "num_categories": 6, "seed": 2}


def test_writes_every_table_and_says_how_many_rows(tmp_path, caplog):
    with caplog.at_level(logging.INFO):
        counts = simulate.write_simulated_log(tmp_path / "log", **SMALL, noise_rate=0.2)
    expected = simulate_log(**SMALL, noise_rate=0.2)
    assert {path.name for path in (tmp_path / "log").iterdir()} == {
        f"{name}.parquet" for name in expected
    }
    for name, table in expected.items():
        assert pq.read_table(tmp_path / "log" / f"{name}.parquet").equals(table), name
        assert counts[name] == table.num_rows
        assert f"{name}.parquet has {table.num_rows} rows" in caplog.text
    noise = sum(expected["truth"]["is_noise"].to_pylist())
    assert f"{noise} of {expected['truth'].num_rows} events are noise" in caplog.text
    assert [path.name for path in tmp_path.iterdir()] == ["log"]


def test_an_old_log_is_replaced_whole(tmp_path):
    (tmp_path / "log").mkdir()
    (tmp_path / "log" / "histories.parquet").write_bytes(b"old")
    simulate.write_simulated_log(tmp_path / "log", **SMALL)
    assert not (tmp_path / "log" / "histories.parquet").exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [({"noise_rate": 2.0}, "`noise_rate`.*Received: 2.0"), ({"users": 3}, "users")],
)
def test_bad_parameters_write_nothing(tmp_path, change, message):
    with pytest.raises(ConfigError, match=message):
        simulate.write_simulated_log(tmp_path / "log", **change)
    assert list(tmp_path.iterdir()) == []


def test_a_failed_write_leaves_nothing(tmp_path, monkeypatch):
    write = pq.write_table

    def fail_on_users(table, path, **options):
        if path.name == "users.parquet":
            raise OSError("disk full")
        write(table, path, **options)

    monkeypatch.setattr(simulate.pq, "write_table", fail_on_users)
    with pytest.raises(OSError, match="disk full"):
        simulate.write_simulated_log(tmp_path / "log", **SMALL)
    assert list(tmp_path.iterdir()) == []
