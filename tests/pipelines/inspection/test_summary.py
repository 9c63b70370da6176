import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipelines.inspection.summary import NUM_BINS, summarise
from pipelines.inspection.truth import NOISE, REAL, UNKNOWN, Truth, read_truth
from seqdenoise.errors import DataError


def scored_events(rows=60, seed=0):
    """A file's worth of keep scores, and whether each event is noise."""
    random = np.random.default_rng(seed)
    frames = []
    for row in range(rows):
        for kind in ("click", "cart"):
            size = random.integers(0, 5)
            frames.append(
                pd.DataFrame(
                    {
                        "row": row,
                        "user": row // 12,
                        "type": kind,
                        "item": random.integers(0, 9, size),
                        "event_timestamp": 1000 * row + np.arange(size),
                        # Ties, and the very ends of the range.
                        "keep_score": random.choice([0, 0.04, 0.2, 0.5, 0.5, 0.83, 1], size).astype(
                            np.float32
                        ),
                        "has_trusted": bool(row % 4),
                    }
                )
            )
    frame = pd.concat(frames, ignore_index=True)
    return frame, random.random(len(frame)) < 0.4


def write(path, frame, row_group_size=23):
    pq.write_table(pa.Table.from_pandas(frame), path, row_group_size=row_group_size)
    return path


def known(frame, is_noise):
    events = frame.rename(columns={"event_timestamp": "timestamp"})
    return Truth(events, pd.Series(is_noise, index=events.index))


def auc_by_loops(frame, is_noise):
    pairs = [
        (real > noise) + 0.5 * (real == noise)
        for real in frame["keep_score"][~is_noise]
        for noise in frame["keep_score"][is_noise]
    ]
    return np.mean(pairs)


def test_counts_histogram_and_auc_by_loops(tmp_path):
    frame, is_noise = scored_events()
    # Rows stay whole here; the job writes them so.
    path = write(tmp_path / "scores.parquet", frame, row_group_size=len(frame))
    summary = summarise(path, ["click", "cart"], num_users=3, truth=known(frame, is_noise))
    for kind, found in summary.types.items():
        of_type = frame[frame["type"] == kind]
        judged = of_type["has_trusted"]
        assert found.events == len(of_type)
        assert found.judged == judged.sum()
        assert found.dropped == (of_type["keep_score"][judged] < 0.5).sum()
        histogram = np.zeros((3, NUM_BINS), int)
        scores = of_type["keep_score"][judged]
        for score, noise in zip(scores, is_noise[scores.index], strict=True):
            histogram[NOISE if noise else REAL, min(int(score * NUM_BINS), NUM_BINS - 1)] += 1
        np.testing.assert_array_equal(found.histogram, histogram)
        np.testing.assert_allclose(
            found.auc, auc_by_loops(of_type[judged], is_noise[of_type.index][judged])
        )
    judged = frame["has_trusted"]
    np.testing.assert_allclose(summary.auc, auc_by_loops(frame[judged], is_noise[judged]))


def test_row_groups_do_not_matter(tmp_path):
    frame, is_noise = scored_events()
    truth = known(frame, is_noise)
    whole = summarise(
        write(tmp_path / "a.parquet", frame, len(frame)),
        ["click", "cart"],
        num_users=4,
        truth=truth,
    )
    path = tmp_path / "b.parquet"
    with pq.ParquetWriter(path, pa.Schema.from_pandas(frame)) as writer:
        for _, part in frame.groupby(frame["row"] // 7):
            writer.write_table(pa.Table.from_pandas(part, preserve_index=False).cast(writer.schema))
    parts = summarise(path, ["click", "cart"], num_users=4, truth=truth)
    assert parts.most_dropped == whole.most_dropped
    assert parts.most_kept == whole.most_kept
    np.testing.assert_allclose(parts.auc, whole.auc)
    for kind in ("click", "cart"):
        np.testing.assert_array_equal(parts.types[kind].histogram, whole.types[kind].histogram)


@pytest.mark.parametrize("dropped", [True, False])
def test_chosen_rows_are_the_largest_one_a_user(tmp_path, dropped):
    frame, _ = scored_events()
    summary = summarise(write(tmp_path / "a.parquet", frame, 10**6), ["click", "cart"], num_users=4)
    judged = frame[frame["has_trusted"]]
    counted = {}
    for row, user, score in zip(judged["row"], judged["user"], judged["keep_score"], strict=True):
        counted.setdefault((row, user), 0)
        counted[row, user] += (score < 0.5) == dropped
    best = {}
    for (row, user), count in sorted(counted.items()):
        if count > best.get(user, (0, None))[0]:
            best[user] = (count, row)
    expected = sorted(best.values(), key=lambda entry: (-entry[0], entry[1]))[:4]
    chosen = summary.most_dropped if dropped else summary.most_kept
    assert chosen == [row for _, row in expected]


def test_without_truth_or_events(tmp_path):
    frame, _ = scored_events()
    summary = summarise(write(tmp_path / "a.parquet", frame), ["click", "cart"], num_users=2)
    assert np.isnan(summary.auc)
    assert not summary.types["click"].histogram[[REAL, NOISE]].any()
    assert summary.types["click"].histogram[UNKNOWN].sum() == summary.types["click"].judged
    empty = summarise(write(tmp_path / "b.parquet", frame[:0]), ["click"], num_users=2)
    assert empty.types["click"].events == 0
    assert np.isnan(empty.types["click"].dropped_share)
    assert empty.most_dropped == empty.most_kept == []


def test_equal_events_of_which_one_is_real_are_real():
    events = pd.DataFrame(
        {"user": [1, 1, 2, 2], "type": "click", "item": 5, "timestamp": [7, 7, 7, 8]}
    )
    truth = Truth(events, pd.Series([True, False, True, False]))
    asked = pd.DataFrame(
        {
            "user": [2, 1, 2, 3, 2],
            "type": ["click"] * 4 + ["cart"],
            "item": 5,
            "timestamp": [7.0, 7.0, np.nan, 7.0, 7.0],  # NaN: an entry of a history
        }
    )
    np.testing.assert_array_equal(truth.of(asked), [NOISE, REAL, UNKNOWN, UNKNOWN, UNKNOWN])
    assert len(truth.of(asked[:0])) == 0


def test_read_truth(tmp_path):
    assert read_truth(tmp_path, ["click"]) is None
    events = pa.table(
        {
            "user": [1, 2],
            "type": pa.array(["click", "cart"]).dictionary_encode(),
            "item": [5, 5],
            "timestamp": [2**53 + 1, 3],
        }
    )
    pq.write_table(events, tmp_path / "events.parquet")
    pq.write_table(pa.table({"is_noise": [True, False]}), tmp_path / "truth.parquet")
    truth = read_truth(tmp_path, ["click"])
    asked = events.to_pandas()
    np.testing.assert_array_equal(truth.of(asked), [NOISE, UNKNOWN])
    asked["timestamp"] -= 1  # the same float64
    np.testing.assert_array_equal(truth.of(asked), [UNKNOWN, UNKNOWN])
    pq.write_table(pa.table({"is_noise": [True]}), tmp_path / "truth.parquet")
    with pytest.raises(DataError, match=r"truth\.parquet: expected a row for each of the 2 events"):
        read_truth(tmp_path, ["click"])
