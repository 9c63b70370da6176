import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from pipelines.inspection.samples import draw_rows, take_rows


def write(path, users, row_group_size=7):
    table = pa.table({"user": users, "place": np.arange(len(users))})
    pq.write_table(table, path, row_group_size=row_group_size)
    return path


def test_the_last_row_of_each_user_drawn(tmp_path):
    users = np.random.default_rng(0).integers(0, 40, 200)
    path = write(tmp_path / "a.parquet", users)
    rows = draw_rows(path, 10, seed=0)
    assert len({users[row] for row in rows}) == len(rows) == 10
    for row in rows:
        assert row == np.flatnonzero(users == users[row])[-1]
    assert set(draw_rows(path, 1000, seed=0)) == {
        np.flatnonzero(users == user)[-1] for user in np.unique(users)
    }


def test_the_draw_depends_on_seed_and_users_alone(tmp_path):
    users = np.random.default_rng(0).integers(0, 40, 200)
    drawn = [users[row] for row in draw_rows(write(tmp_path / "a.parquet", users), 10, seed=0)]
    mixed = np.random.default_rng(1).permutation(np.repeat(users, 2))
    again = [mixed[row] for row in draw_rows(write(tmp_path / "b.parquet", mixed, 90), 10, seed=0)]
    assert again == drawn
    fewer = draw_rows(tmp_path / "a.parquet", 4, seed=0)
    assert [users[row] for row in fewer] == drawn[:4]
    other = [users[row] for row in draw_rows(tmp_path / "a.parquet", 10, seed=1)]
    assert other != drawn


def test_users_are_drawn_alike(tmp_path):
    path = write(tmp_path / "a.parquet", np.arange(2000), row_group_size=300)
    one, other = (draw_rows(path, 500, seed=seed) for seed in (0, 1))
    # Hypergeometric: 50 of each 200 neighbours, deviation 5.8, and 125 of 500 twice, deviation 8.4;
    # five deviations either way.
    counts = np.bincount(np.array(one) // 200, minlength=10)
    assert counts.min() > 20
    assert counts.max() < 80
    assert 83 < len(set(one) & set(other)) < 167


def test_users_may_be_strings(tmp_path):
    users = np.array(["b", "a", "c", "a", "<script>"])
    rows = draw_rows(write(tmp_path / "a.parquet", users.tolist()), 9, seed=0)
    assert sorted(rows) == [0, 2, 3, 4]


def test_take_rows_in_any_order_and_twice(tmp_path):
    path = write(tmp_path / "a.parquet", np.arange(30) % 4)
    rows = [29, 0, 13, 13, 7, 6]
    assert take_rows(path, rows)["place"].to_pylist() == rows
    table = take_rows(path, rows, ["user"])
    assert table.schema.names == ["user"]
    assert table["user"].to_pylist() == [row % 4 for row in rows]
    assert len(take_rows(path, [])) == 0
    pd.testing.assert_frame_equal(take_rows(path, range(30)).to_pandas(), pd.read_parquet(path))
