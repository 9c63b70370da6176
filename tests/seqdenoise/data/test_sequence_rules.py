import pytest

from seqdenoise.data.sequence_rules import SequenceRules


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"types": ()}, "at least one type"),
        ({"types": "click"}, "types: expected a tuple of names. Received: 'click'"),
        ({"item_fields": ["brand"]}, "item_fields: expected a tuple"),
        ({"max_length": 0}, "max_length >= 1"),
        ({"ties": "both"}, "ties: expected 'exclude' or 'include'. Received: 'both'"),
        ({"deduplicate": "items"}, "deduplicate: expected None, 'exact'.*Received: 'items'"),
        ({"max_age": -1}, r"max_age: expected 0 to 2\*\*63 - 1 ticks. Received: -1"),
        ({"session_gap": 2**63}, "session_gap: expected 0 to"),
        ({"types": ("click", "click")}, "distinct names. Received: .*click__item"),
        ({"item_fields": ("item",)}, "distinct names. Received: .*click__item"),
        ({"event_fields": ("age",), "age": True}, "distinct names. Received: .*click__age"),
    ],
    ids=str,
)
def test_bad_rules_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        SequenceRules(**({"types": ("click",), "max_length": 3} | changes))


def test_columns_come_in_one_order():
    rules = SequenceRules(
        types=("click",),
        max_length=3,
        item_fields=("brand",),
        event_fields=("price",),
        age=True,
        session_gap=0,
    )
    names = ["item", "brand", "price", "timestamp", "age", "session"]
    assert rules.columns("click") == [f"click__{name}" for name in names]
