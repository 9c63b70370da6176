"""`denoise` on hosts of many kinds: what stays as it was, and what is added."""

import numpy as np
import plug_hosts
import pytest
import tensorflow as tf
from plug_hosts import assert_same_bits, scores

from seqdenoise import SequenceDenoiser, denoise, denoisers_in

every_host = pytest.mark.parametrize("name", plug_hosts.HOSTS)


def plugged_into(host, **options):
    return denoise(host.model, host.taps, **host.call, **options)


@every_host
def test_scores_names_and_weights_are_the_hosts_own(name):
    host = plug_hosts.made(name)
    before, config = scores(host.model, host), host.model.get_config()
    plugged = plugged_into(host)
    assert_same_bits(scores(plugged, host), before)
    assert plugged.name == host.model.name
    assert [x.name for x in plugged.inputs] == [x.name for x in host.model.inputs]
    if not isinstance(host.model, tf.keras.Sequential):
        assert plugged.output_names == host.model.output_names
    (denoiser,) = denoisers_in(plugged)
    own = {id(w) for w in denoiser.weights}
    assert own
    assert {id(w) for w in plugged.weights} - own == {id(w) for w in host.model.weights}
    # The host itself is what it was.
    assert_same_bits(scores(host.model, host), before)
    assert host.model.get_config() == config
    assert not denoisers_in(host.model)


@every_host
def test_the_side_loss_is_that_of_the_same_sequences_by_hand(name):
    host = plug_hosts.made(name)
    plugged = plugged_into(host, weight=0.3, seed=5)
    scores(plugged, host, training=True)
    (side,) = plugged.losses
    assert float(side) > 0
    sequences = {
        name: tf.nest.map_structure(lambda tap: tapped(host.model, tap), taps)
        for name, taps in host.taps.items()
    }
    reader = tf.keras.Model(host.model.inputs, tf.nest.flatten(sequences))
    sequences = tf.nest.pack_sequence_as(sequences, tf.nest.flatten(scores(reader, host)))
    features = plug_hosts.batch()
    by_hand = SequenceDenoiser(weight=0.3, seed=5)
    by_hand(
        sequences,
        mask={
            name: tf.constant(features[name] != 0)
            for name, events in sequences.items()
            if tf.nest.flatten(events)[0].shape.rank == 3
        },
        sample_ids=features["user"] if "sample_ids" in host.call else None,
        training=True,
    )
    np.testing.assert_allclose(float(side), float(by_hand.losses[0]), rtol=1e-6)


def tapped(model, tap):
    """The tensor of a tap: of a shared layer, the call on the Input of that name."""
    layer, _, source = tap.partition("/")
    calls = [tf.nest.flatten(node.outputs) for node in model.get_layer(layer)._inbound_nodes]
    return calls[["click", "search"].index(source) if source else 0][0]
