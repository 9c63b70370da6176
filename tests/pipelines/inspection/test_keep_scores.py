import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

pytestmark = pytest.mark.tfrs


def judged_directly(run, path, *, by_candidate=False):
    """`SequenceDenoiser.keep_scores` of all rows of a prepared file at once."""
    rows = pq.read_metadata(path).num_rows
    batch = next(iter(run.dataset(path, rows)))
    candidate, sequences, masks = run.ranker.embed(batch)
    candidate = candidate if by_candidate else None
    scores = run.denoiser.keep_scores(sequences, mask=masks, candidate=candidate)
    return {kind: of_type.numpy() for kind, of_type in scores.items()}


def rows_by_loops(path, scores, kinds, trusted):
    """What the file of keep scores should hold."""
    rows = []
    for number, row in enumerate(pq.read_table(path).to_pylist()):
        has_trusted = any(row[f"{kind}__item"] for kind in trusted)
        for kind in kinds:
            for place, item in enumerate(row[f"{kind}__item"]):
                rows.append(
                    {
                        "row": number,
                        "user": row["user"],
                        "timestamp": row["timestamp"],
                        "type": kind,
                        "position": place,
                        "item": item,
                        "event_timestamp": row[f"{kind}__timestamp"][place],
                        "keep_score": scores[kind][number, place],
                        "has_trusted": has_trusted,
                    }
                )
    return pd.DataFrame(rows)


def assert_same(actual, expected):
    exact = [name for name in expected if name != "keep_score"]
    assert list(actual) == list(expected)
    pd.testing.assert_frame_equal(actual[exact], expected[exact], check_dtype=False)
    np.testing.assert_allclose(actual["keep_score"], expected["keep_score"], atol=2e-6)


def test_the_file_holds_the_denoisers_scores_of_every_event(run, prepared, keep_scores):
    path, counts = keep_scores
    expected = rows_by_loops(prepared, judged_directly(run, prepared), ["click"], ["cart"])
    actual = pq.read_table(path)
    assert actual.schema.field("keep_score").type == pa.float32()
    assert_same(actual.to_pandas(), expected)
    frame = pd.read_parquet(prepared)
    assert counts.rows == len(frame)
    assert counts.rows_without_trusted == (frame["cart__item"].str.len() == 0).sum() > 0
    assert counts.events == len(expected) > 1000
    judged = expected.loc[expected["has_trusted"], "keep_score"]
    assert judged.min() < 0.5 < judged.max()  # there is something to see


def test_a_row_without_trusted_events_keeps_everything(keep_scores):
    frame = pd.read_parquet(keep_scores[0])
    alone = frame[~frame["has_trusted"]]
    assert len(alone)
    assert (alone["keep_score"] == 1).all()


def test_batches_of_any_size_give_the_same_file(run, prepared, keep_scores, tmp_path, monkeypatch):
    from pipelines.inspection import keep_scores as module

    whole = pq.read_table(prepared)
    pq.write_table(whole, tmp_path / "prepared.parquet", row_group_size=50)
    monkeypatch.setattr(module, "_BATCH_ROWS", 37)  # neither divides the other
    counts = module.write_keep_scores(run, tmp_path / "prepared.parquet", tmp_path / "out.parquet")
    assert counts == keep_scores[1]
    assert pq.read_metadata(tmp_path / "out.parquet").num_row_groups > 5
    assert_same(pd.read_parquet(tmp_path / "out.parquet"), pd.read_parquet(keep_scores[0]))


def test_lists_longer_than_the_model_sees_and_histories_without_times(run, prepared, tmp_path):
    from pipelines.inspection.keep_scores import write_keep_scores

    table = pq.read_table(prepared).slice(0, 40)
    lists = table["click__timestamp"].to_pylist()
    lists = [[None, *times[1:]] for times in lists]
    index = table.schema.get_field_index("click__timestamp")
    table = table.set_column(index, "click__timestamp", pa.array(lists, pa.list_(pa.int64())))
    for name in ("click__item", "click__category", "click__price", "click__timestamp"):
        column = table[name].to_pylist()
        older = [[values[0]] * 3 + values if values else [] for values in column]
        index = table.schema.get_field_index(name)
        table = table.set_column(index, name, pa.array(older, table.schema.field(index).type))
    pq.write_table(table, tmp_path / "prepared.parquet")
    write_keep_scores(run, tmp_path / "prepared.parquet", tmp_path / "out.parquet")
    frame = pd.read_parquet(tmp_path / "out.parquet")
    for number, of_row in frame.groupby("row"):
        row = table.slice(number, 1).to_pylist()[0]
        assert of_row["item"].tolist() == row["click__item"][-8:]
        assert of_row["position"].tolist() == list(range(len(of_row)))
        times = of_row["event_timestamp"].astype("Int64").tolist()
        assert [None if pd.isna(t) else t for t in times] == row["click__timestamp"][-8:]
    assert frame["event_timestamp"].isna().any()
    assert frame["position"].max() == 7


def test_prepared_rows_without_event_times(run, prepared, keep_scores, tmp_path):
    from pipelines.inspection.keep_scores import write_keep_scores

    table = pq.read_table(prepared).drop_columns(["click__timestamp"])
    pq.write_table(table, tmp_path / "prepared.parquet")
    write_keep_scores(run, tmp_path / "prepared.parquet", tmp_path / "out.parquet")
    frame = pd.read_parquet(tmp_path / "out.parquet")
    assert frame["event_timestamp"].isna().all()
    np.testing.assert_array_equal(frame["item"], pd.read_parquet(keep_scores[0])["item"])


def test_the_candidate_judges_every_row(judging_config, run_folder, prepared, tmp_path):
    from pipelines.inspection.finished_run import load_finished_run
    from pipelines.inspection.keep_scores import write_keep_scores

    content = judging_config.model_dump()
    content["denoiser"] |= {"trusted": "candidate", "transport": {"looks": 1}}
    for path in run_folder.iterdir():
        (tmp_path / path.name).symlink_to(path)
    (tmp_path / "run.json").unlink()
    changed = type(judging_config).model_validate(content)
    (tmp_path / "run.json").write_text(changed.model_dump_json())
    run = load_finished_run(tmp_path)
    assert run.noisy_types == ("click", "cart")
    path = tmp_path / "out.parquet"
    counts = write_keep_scores(run, prepared, path)
    assert counts.rows_without_trusted == 0
    frame = pd.read_parquet(path)
    scores = judged_directly(run, prepared, by_candidate=True)
    expected = rows_by_loops(prepared, scores, ["click", "cart"], [])
    assert_same(frame, expected.assign(has_trusted=True))
    # One trusted event and no events that vouch: scores fall with the distance to it.
    batch = next(iter(run.dataset(prepared, 64)))
    candidate, sequences, _ = run.ranker.embed(batch)
    candidate = np.concatenate([candidate[field] for field in ("item", "category")], axis=-1)
    unit = candidate / np.linalg.norm(candidate, axis=1, keepdims=True)
    for number, of_row in frame[frame["type"] == "click"].groupby("row"):
        if number == 64:
            break
        events = np.concatenate(
            [sequences["click"][field][number] for field in ("item", "category")], axis=-1
        )[: len(of_row)]
        cosine = events @ unit[number] / np.linalg.norm(events, axis=1)
        order = np.argsort(cosine)
        scores = of_row["keep_score"].to_numpy()[order]
        assert (np.diff(scores) > -1e-5).all()


def test_untrained_weights_are_those_before_the_first_step(run, prepared):
    batch = next(iter(run.dataset(prepared, 4)))
    untrained, trained = (r.embed(batch)[0] for r in (run.untrained_ranker(), run.ranker))
    assert list(untrained) == ["item", "category"]
    for field in untrained:  # the fixture's run has a learning rate that moves nothing
        np.testing.assert_array_equal(untrained[field], trained[field])
        assert np.abs(untrained[field]).max() > 0
