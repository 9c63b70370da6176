"""How `denoise` finds tensors by name, and what it says when there is none."""

import plug_hosts
import pytest
import tensorflow as tf

from seqdenoise import denoise
from seqdenoise.functional_graph import FunctionalGraph
from seqdenoise.taps import Taps

layers = tf.keras.layers


@pytest.fixture
def model():
    """A table that three Inputs share, a layer of two outputs, and a nested model."""
    tf.keras.backend.clear_session()
    inputs = {
        "click": tf.keras.Input((6,), dtype="int32", name="click"),
        "cart": tf.keras.Input((6,), dtype="int32", name="cart"),
        "item": tf.keras.Input((), dtype="int32", name="item"),
        "length": tf.keras.Input((1,), dtype="int32", name="length"),
    }
    table = layers.Embedding(20, 4, name="table")
    click, cart, item = (table(inputs[name]) for name in ("click", "cart", "item"))
    inside = tf.keras.Input((6, 4), name="inside")
    tower = tf.keras.Model(inside, layers.Dense(4, name="hidden")(inside), name="tower")
    mixed = layers.Concatenate(name="mixed")([tower(click), cart])
    flat = layers.Flatten(name="flat")(mixed)
    gap = plug_hosts.Gap(name="gap")(item, other=layers.Dense(4, name="narrow")(flat))
    length = layers.Embedding(7, 4, name="lengths")(inputs["length"])
    out = layers.Concatenate(name="all")(
        [gap["sum"], gap["difference"], layers.Flatten(name="short")(length)]
    )
    return tf.keras.Model(inputs, layers.Dense(1, name="score")(out))


def outputs_of(model, layer, call=0):
    return tf.nest.flatten(model.get_layer(layer)._inbound_nodes[call].outputs)


def test_a_tap_is_found_by_layer_by_input_by_name_or_as_it_is(model):
    taps = Taps(FunctionalGraph(model))
    (click,), (cart,), (item,) = (outputs_of(model, "table", call) for call in range(3))
    assert taps.sequence("click", "table/click") is click
    assert taps.sequence("cart", "table/cart") is cart
    assert taps.sequence("item", "table/item") is item
    assert taps.sequence("click", click) is click
    assert taps.sequence("click", outputs_of(model, "mixed")[0].name) is taps.sequence("c", "mixed")
    # The nested model's output by its name; its inner layers are none of this model's.
    tower = tf.nest.flatten(FunctionalGraph(model).maker(taps.sequence("click", "tower")).outputs)
    assert taps.sequence("click", "tower/click") is tower[0]
    one, two = outputs_of(model, "gap")
    assert taps.sequence("click", one.name) is one
    assert taps.sequence("click", two.name) is two
    fields = taps.sequence("click", {"a": "table/click", "b": "mixed"})
    assert list(fields) == ["a", "b"]
    assert taps.mask("click", "length") is model.get_layer("length").output
    assert taps.rows("sample_ids", "item") is model.get_layer("item").output


def test_a_call_that_depends_on_one_input_alone_comes_before_one_of_several(model):
    dense = layers.Dense(4, name="shared")
    (alone,), (other,) = (outputs_of(model, "table", call) for call in (0, 1))
    first, both = dense(alone), dense(layers.Add(name="sum")([alone, other]))
    score = layers.Flatten(name="end")(layers.Add(name="total")([first, both]))
    inputs = [x for x in model.inputs if x.name in ("click", "cart")]
    taps = Taps(FunctionalGraph(tf.keras.Model(inputs, score)))
    assert taps.sequence("click", "shared/click") is first
    assert taps.sequence("click", "shared/cart") is both


EXPECTED_SEQUENCE = r"float of shape \[B, L, D\] or, if pooled, \[B, D\], with D known; there are "


@pytest.mark.parametrize(
    ("call", "message"),
    [
        # The likest first; only what could be a sequence is listed.
        (
            {"sequences": {"click": "tabel"}},
            r"Sequence `click` must be a tensor of the model, " + EXPECTED_SEQUENCE
            + r"\['table/(item|cart|click)'.*Received: 'tabel'$",
        ),
        (
            {"sequences": {"click": "table"}},
            r"Sequence `click` must be one tensor, named like "
            r"\['table/cart', 'table/click', 'table/item'\], or the tensor itself. "
            r"Received: 'table', which are 3$",
        ),
        (
            {"sequences": {"click": "gap"}},
            r"must be one tensor, named like \[.*Received: 'gap', which are 2",
        ),
        (
            {"sequences": {"click": "click"}},
            "Sequence `click` must be " + EXPECTED_SEQUENCE
            + r"\[.*'table/click'.*Received: 'click', int32 of shape \(None, 6\)$",
        ),
        (
            {"sequences": {"click": {"item": "table/cart", "brand": "table/length"}}},
            r"Sequence `click.brand` must be a tensor of the model, .*Received: 'table/length'$",
        ),
        (
            {"sequences": {"click": "hidden"}},
            r"Received: 'hidden', inside `tower`, of which only the output can be used$",
        ),
        (
            {"sequences": {"click": 3}},
            "must be a symbolic tensor of the model, or the name of a layer or tensor. Received: "
            "int$",
        ),
        (
            {"sequences": {"click": "mixed"}, "mask": {"click": "table/click"}},
            r"The mask of `click` must be bool \[B, L\], or int: .*there are \['(click|cart)'.*"
            r"Received: 'table/click', float32 of shape \(None, 6, 4\)$",
        ),
        (
            {"sequences": {"click": "mixed"}, "sample_ids": "click"},
            r"`sample_ids` must be of shape \[B\] or \[B, 1\]; there are \[.*'item'.*"
            r"Received: 'click', int32 of shape \(None, 6\)$",
        ),
        (
            {"sequences": {"click": "mixed"}, "sample_ids": "user"},
            r"`sample_ids` must be a tensor of the model, of shape .*Received: 'user'$",
        ),
        (
            {"sequences": {"click": "mixed"}, "mask": {"cart": "cart"}},
            r"`mask` has keys that `sequences` has not. Received: \['cart'\], with sequences "
            r"\['click'\]",
        ),
        ({"sequences": {}}, "must map at least one sequence's name .*Received: {}"),
        ({"sequences": "mixed"}, "must map at least one sequence's name .*Received: 'mixed'"),
        (
            {"sequences": {"click": "mixed"}, "trusted": "buy", "gate": True},
            r"call a `SequenceDenoiser\(gate=\.\.\.\)` on the sequences where the model is made. "
            "Received: gate=True",
        ),
        (
            {"sequences": {"search": "mixed"}},
            r"nothing is left to denoise. Received: sequences \['search'\]",
        ),
        ({"sequences": {"click": "mixed"}, "weight": -1}, "`weight` must be at least 0"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_named_with_what_would(model, call, message):
    with pytest.raises(ValueError, match=message):
        denoise(model, **call)


def test_a_tensor_of_another_model_is_refused(model):
    other = plug_hosts.made("sequential").model
    tap = FunctionalGraph(other).calls[1].outputs[0]
    with pytest.raises(ValueError, match=r"must be a tensor of the model.*Received: the tensor '"):
        denoise(model, {"click": tap})


def test_long_lists_of_names_are_cut():
    x = tf.keras.Input((4,), name="x")
    total = x
    for number in range(30):
        total = layers.Dense(4, name=f"layer_{number}")(total)
    with pytest.raises(ValueError, match=r"\['layer_2\d', .* and 11 more. Received: 'layer_290'"):
        denoise(tf.keras.Model(x, total), {"click": "layer_290"})


class Subclassed(tf.keras.Model):
    def call(self, x):
        return x


def test_models_without_a_graph_or_with_no_layer_are_refused():
    with pytest.raises(ValueError, match=r"must be functional: .*Received: Subclassed '"):
        denoise(Subclassed(), {"click": "x"})
    with pytest.raises(ValueError, match=r"must be functional: .*Received: Sequential '"):
        denoise(tf.keras.Sequential([layers.Dense(1)]), {"click": "x"})
    x = tf.keras.Input((4, 2), name="x")
    with pytest.raises(ValueError, match=r"must have an output that a layer makes.*\['x'\]"):
        denoise(tf.keras.Model(x, x), {"click": "x"})


@pytest.mark.skipif(hasattr(tf.keras, "ops"), reason="Keras 3 adds no symbolic losses")
def test_a_symbolic_loss_is_not_lost_silently():
    x = tf.keras.Input((4, 2), name="x")
    y = layers.Flatten(name="flat")(x)
    model = tf.keras.Model(x, layers.Dense(1, name="score")(y))
    model.add_loss(tf.reduce_mean(y))
    with pytest.raises(ValueError, match=r"would be lost, as is `model.add_loss`.*\['add_loss"):
        denoise(model, {"click": x})
