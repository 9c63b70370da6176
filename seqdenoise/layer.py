"""`SequenceDenoiser`: an identity layer with a contrastive side loss on behaviour sequences."""

import re
import zlib
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from seqdenoise.aligner import Aligner
from seqdenoise.contrast import Contrast
from seqdenoise.encoders import FixedEncoder, ViewEncoder, update_momentum_encoder
from seqdenoise.gradient_budget import forked_sequences
from seqdenoise.health import health_metrics
from seqdenoise.inputs import events_and_mask, row_vector, whole
from seqdenoise.judgement import Judgement
from seqdenoise.key_queue import KeyQueue
from seqdenoise.kinds import Kinds
from seqdenoise.learned_temperature import to_parameter
from seqdenoise.masking import Masking
from seqdenoise.numerics import Tensor, masked_mean, masked_pool
from seqdenoise.objective import Objective
from seqdenoise.options import check_options
from seqdenoise.recording import Seen, current, is_recording, record
from seqdenoise.replicas import GlobalBatch, own_losses
from seqdenoise.row_weighting import current_row_weights
from seqdenoise.side_weight import is_on, to_config, to_weight, weight_at
from seqdenoise.views import view_seed


@tf.keras.utils.register_keras_serializable(package="seqdenoise")
class SequenceDenoiser(tf.keras.layers.Layer):
    r"""Returns behaviour sequences unchanged and, in training, adds a loss that denoises them.

    Each denoised sequence is seen through two views, by default complementary halves of its events,
    drawn anew for every row and step. One encoder per sequence
    *type*, shared by both views and all rows, turns the views into unit vectors, and an in-batch
    contrastive loss pulls the two views of a row together. The added loss is

    $$ weight \cdot warmup(step) \cdot \frac{1}{|S|} \sum_{s \in S} \frac{L_s}{\log candidates_s} $$

    over the denoised sequences `S`. InfoNCE of uninformative vectors is the logarithm of the number
    of candidates (valid rows), so the quotient starts near 1 and `weight` means the same at any
    batch size and for any number of types. Losses that do not grow with the number of candidates
    (`triplet`, `simple`) are not divided. The gradient reaches whatever made the sequences, usually
    the host model's embeddings.

    With `alignment`, `alignment_weight` times the mean transport cost of the aligned sequences
    joins that mean, behind `weight` and the warm-up. With `trusted`, `keep_scores` says of every
    event how well the trusted events of its row match it, and `gate` multiplies the events by that.

    Outside training, and with `weight=0`, the layer does no work (unless it is a gate), adds no
    loss and draws no random number. Its own randomness comes from `seed` and the step alone, so the
    host's initialisers, dropout and shuffling are the same with and without it.

    Args:
        weight: Coefficient of the side loss, at least 0; or a schedule of it, a
            `tf.keras.optimizers.schedules.LearningRateSchedule` (`PolynomialDecay`, `CosineDecay`,
            `PiecewiseConstantDecay` or one of your own), evaluated at the layer's step, the number
            of training steps that it made. At 0 the encoders are not trainable; a schedule always
            counts as more than 0.
        masking: What is complementary. `"event"`: events; `"dimension"`: dimensions of the pooled
            sequence; `"event_dimension"`: dimensions of each event; `"field"`: fields of
            the events, which must come by field; `"correlated_field"`: a random field and those
            that say most about it, against the others; `"crop_mask_reorder"`: nothing, each view is
            another edit of the events (CL4SRec); `"dropout"`: nothing, the views differ by dropout
            alone. None is `"event"`, and `"dimension"` for a sequence that comes already pooled.
        dropout: Rate of dropout on each view, after the mask. None is 0, and 0.1 with
            `masking="dropout"`.
        mutual_information: With `masking="correlated_field"`, for each type a mapping from field to
            field to how much one says about the other (`pipelines prepare` measures it).
        num_positives: Number of positives of each row: view B, and this many less one further ones
            under masks of their own. Those share features with view A, as view B does not, so they
            are easier: good for an estimate (`"debiased"`), but a loss that one close positive can
            satisfy (`"multi_positive"`) learns less. Above 1 for losses that take `more_positives`.
        temperature: Temperature of the contrastive loss, above 0. None is the loss's own default,
            0.1 for `"info_nce"`.
        learn_temperature: Whether each type learns its temperature, between 0.01 and 1, from
            `temperature` on.
        exclude: Types passed through untouched. Search states an explicit intent, so it is the
            default.
        types: Optional mapping from a sequence's name to its type, where they differ (`click_7d`
            and `click_30d` are both `click`). Sequences of one type share an encoder and must have
            the same number of dimensions.
        loss: `"info_nce"`, `"nt_xent"`, `"n_pair"`, `"triplet"`, `"simple"`, `"debiased"`,
            `"hard_negative"`, `"multi_positive"`, `"moco"` or `"rocl"` (see `seqdenoise.losses`);
            or a callable `(view_a, view_b, *, mask, ids, weights, **loss_options) -> scalar`. One
            that has parameters `temperature`, `labels` or `more_positives` gets those too.
        loss_options: Optional further keyword arguments of the loss, for instance `{"symmetric":
            True}`. A mapping from type to value in place of a value gives each type its own.
        alignment: Optional optimal transport beside the loss. `"view"`: all rows' views A onto all
            rows' views B, for each denoised sequence. `"type"`: the events of each noisy sequence
            onto the trusted events of the same row, relaxed, so that an event which nothing
            matches is left alone.
        alignment_weight: Coefficient of the transport cost, at least 0; it counts times `weight`.
            None is 1 for `"type"` and 0.1 for `"view"`: the same vector for every row makes views
            cost nothing, and at 1 that was where training went (`effective_rank` shows it).
        trusted: Optional type, or types, whose events are taken for signal (a purchase, a like),
            excluded ones too; `"candidate"` for the item that is ranked. The denoised sequences of
            all other types are the noisy ones, whose events are scored. All these must have the
            same fields and dimensions: the comparison is of the events' own vectors.
        transport: Optional options of the transport: `epsilon` (0.1), `relaxation` (0.3, of noisy
            and trusted marginals alike), `num_iterations` (20), `tolerance` (None), see
            `seqdenoise.transport.sinkhorn`; and `looks` (2): whether keep scores come from the
            trusted events alone (1), or also from the noisy events that those match (2).
        gate: Whether to return the events of the noisy sequences times their keep scores, in
            training and serving alike. The gate is then part of the model and of what is exported,
            and a model with it does not start as the bare one. No gradient flows through the
            scores.
        negatives: Under a `tf.distribute` strategy, which rows a row is contrasted with.
            `"global"`: those of all replicas, whose vectors are gathered; loss, gradients and masks
            are then those of one device with the whole batch, however the rows are spread.
            `"local"`: those of its replica alone, and nothing is gathered. On one device both are
            the same. See docs/clusters.md.
        gradient_budget: Optional largest length of the side loss's gradient on the sequences, above
            0, as a share of the length of the host's own, over all sequences of the side loss
            together and for each step anew. What is above is scaled down, so that no `weight` lets
            the side loss drown the ranking. The host has to read the sequences that this layer
            returns.
        project_conflicts: Whether to take out of that gradient what points against the host's
            (PCGrad, the host's left as it is).
        units: Length of the vectors.
        hidden_units: Width of the encoders' hidden layer.
        head_units: Length of what a projection head makes of the vectors for the loss alone
            (SimCLR, MoCo v2); None for no head.
        momentum: With `loss="moco"`, how much of the key encoder stays at each step; None is 0.999.
        queue_size: With `loss="moco"`, the number of past keys that are negatives; None is 4096.
        attack: With `loss="rocl"`, the arguments of `pgd_attack` on view A's features; None is
            `{"epsilon": 0.01, "num_steps": 3}`.
        warmup_steps: Number of steps over which the weight rises linearly to its full value, or to
            what its schedule says.
        seed: Seed of the masks and of the encoders' initial weights.
        **kwargs: Arguments of `tf.keras.layers.Layer`; `dtype` is that of the encoders.

    Call arguments:
        sequences: Mapping from a sequence's name to its embedded events, float `[B, L, D]`; or to a
            mapping from field to float `[B, L, D_f]`; or to an already pooled float `[B, D]`.
        mask: Optional mapping from a name to bool `[B, L]` (`[B]` for a pooled sequence), True for
            a real event. A name that is left out takes the Keras mask that its tensor carries, and
            without one all its events count as real. Padded slots may hold anything.
        sample_ids: Optional int or string `[B]` or `[B, 1]`. Rows with equal ids, usually of one
            user, are not each other's negatives.
        sample_weight: Optional non-negative float `[B]` or `[B, 1]`, weights of the anchors. None
            takes those of the `row_weights` around the call, if any.
        labels: Optional int `[B]` or `[B, 1]`, for losses that take labels. Rows of equal labels
            are each other's positives; a negative label is none.
        candidate: float `[B, D]`, or a mapping from field to such: the vector of the item that is
            ranked, with `trusted="candidate"` and only then.
        training: Whether to add the side loss.

    Returns:
        `sequences`, unchanged; with `gate`, the noisy ones times their keep scores (padded slots as
        they were).

    Raises:
        ValueError: An argument, a shape or a key does not fit, or nothing is left to denoise.

    Metrics:
        For each denoised sequence, `{layer}/{sequence}/` followed by `loss` (not divided),
        `alignment`, `uniformity`, `effective_rank`, `valid_rate` (share of rows with a real event
        in both views), `false_negative_rate` (share of pairs dropped by `sample_ids` and
        `max_similarity`), with a debiased loss `clamped_rate` (share of anchors whose estimate is
        at its floor) and with `learn_temperature` `temperature`. With `alignment`, of the aligned
        sequences, `transport_cost` and `marginal_error` (how far from solved, the largest in the
        batch), and for `"type"` `transported_mass` (share of the events' mass that found a match)
        and `judged_rate` (share of rows with events on both sides). NaN in `evaluate`, where
        nothing is measured; absent with `weight=0`.

    Example:
        >>> denoiser = SequenceDenoiser(weight=0.1, seed=1)
        >>> click = tf.random.stateless_normal([4, 5, 8], seed=[0, 1])
        >>> out = denoiser({"click": click, "search": click}, training=True)
        >>> bool(tf.reduce_all(out["click"] == click)), len(denoiser.losses)
        (True, 1)
    """

    def __init__(
        self,
        *,
        weight: Any = 0.1,
        masking: str | None = None,
        dropout: float | None = None,
        mutual_information: Mapping[str, Mapping[str, Mapping[str, float]]] | None = None,
        num_positives: int = 1,
        temperature: float | None = None,
        learn_temperature: bool = False,
        exclude: Sequence[str] = ("search",),
        types: Mapping[str, str] | None = None,
        loss: str | Callable[..., Tensor] = "info_nce",
        loss_options: Mapping[str, Any] | None = None,
        alignment: str | None = None,
        alignment_weight: float | None = None,
        trusted: str | Sequence[str] | None = None,
        transport: Mapping[str, Any] | None = None,
        gate: bool = False,
        negatives: str = "global",
        gradient_budget: float | None = None,
        project_conflicts: bool = False,
        units: int = 32,
        hidden_units: int = 64,
        head_units: int | None = None,
        momentum: float | None = None,
        queue_size: int | None = None,
        attack: Mapping[str, Any] | None = None,
        warmup_steps: int = 0,
        seed: int = 0,
        **kwargs: Any,
    ) -> None:
        # A mixed-precision policy is the encoders' alone. This layer would cast the sequences by
        # it, and they would not come out as they went in; and it would read weights in half
        # precision, which a moving average of them does not survive.
        policy = kwargs.pop("dtype", None) or tf.keras.mixed_precision.global_policy()
        super().__init__(**{"autocast": False, **kwargs, "dtype": "float32"})
        self._encoder_dtype = str(getattr(policy, "name", policy))
        self.supports_masking = True
        self.weight = to_weight(weight)
        self.masking = masking
        self.dropout = dropout
        self.num_positives = num_positives
        self.temperature = temperature
        self.learn_temperature = learn_temperature
        if isinstance(exclude, str):
            raise ValueError(f"`exclude` must be a sequence of types. Received: {exclude!r}")
        self.exclude = tuple(exclude)
        self.types = dict(types or {})
        self._kinds = Kinds(dict(types or {}), tuple(exclude))
        self.loss = loss
        self.loss_options = dict(loss_options or {})
        self.alignment = alignment
        self.alignment_weight = alignment_weight
        self.trusted = trusted if trusted is None or isinstance(trusted, str) else tuple(trusted)
        self.transport = transport
        self.gate = gate
        self.negatives = negatives
        self.gradient_budget = gradient_budget
        self.project_conflicts = project_conflicts
        self.units = units
        self.hidden_units = hidden_units
        self.head_units = head_units
        self.momentum = momentum
        self.queue_size = queue_size
        self.attack = attack
        self.warmup_steps = warmup_steps
        self.seed = seed
        # From the plain mappings: Keras wraps those that a layer keeps.
        self._objective = Objective(loss, dict(loss_options or {}))
        self._masking = Masking(masking, dropout, mutual_information)
        self._aligner = Aligner(alignment, trusted, None if transport is None else dict(transport))
        check_options(
            self._objective,
            num_positives=num_positives,
            temperature=temperature,
            learn_temperature=learn_temperature,
            momentum=momentum,
            queue_size=queue_size,
            attack=attack,
            alignment_weight=alignment_weight,
            trusted=trusted,
            gate=gate,
            negatives=negatives,
            gradient_budget=gradient_budget,
            warmup_steps=warmup_steps,
        )
        self._temperature = (
            self._objective.default_temperature if temperature is None else float(temperature)
        )
        if learn_temperature:
            to_parameter(self._temperature)  # says so if it cannot be learned from there
        self._momentum = 0.999 if momentum is None else momentum
        self._queue_size = 4096 if queue_size is None else queue_size
        if alignment_weight is None:
            alignment_weight = 0.1 if alignment == "view" else 1.0
        self._alignment_weight = float(alignment_weight)
        self._attack = {"epsilon": 0.01, "num_steps": 3} if attack is None else dict(attack)

    def build(self, input_shape: Any) -> None:
        """Creates one encoder a type, what the loss needs to remember, and the metrics."""
        if not isinstance(input_shape, Mapping):
            raise ValueError(
                "`sequences` must be a mapping from a sequence's name to its tensor. "
                f"Received: {type(input_shape).__name__}"
            )
        self._denoised = self._kinds.denoised(input_shape)
        self._types = {name: self._kinds.of(name) for name in sorted(input_shape)}
        self._aligner.check(self._types, self._denoised, input_shape)
        self._noisy = self._aligner.noisy(self._types, self._denoised)
        for name in self._denoised:
            self._masking.check(name, self._types[name], input_shape[name])
            self._objective.options_of(self._types[name])  # says so if one lacks the type
        self._pooled = tuple(name for name in self._denoised if _is_pooled(input_shape[name]))
        sizes = self._kinds.sizes(input_shape)
        # With weight 0 nothing is trained or measured, and Keras would warn about weights that no
        # gradient ever reaches.
        active = is_on(self.weight)
        self._encoders = {
            kind: self._new_encoder("encoder", kind, size, trainable=active)
            for kind, size in sizes.items()
        }
        self._key_encoders, self._queues = {}, {}
        if active and self._objective.declares("queue"):
            # The same seed as the encoders: the twins start equal.
            self._key_encoders = {
                kind: self._new_encoder("key_encoder", kind, size, trainable=False)
                for kind, size in sizes.items()
            }
            self._queues = {
                name: KeyQueue(
                    self._queue_size, self.head_units or self.units, name=f"queue_{_safe(name)}"
                )
                for name in self._denoised
            }
        self._temperatures = {}
        if active and self.learn_temperature:
            self._temperatures = {
                kind: self.add_weight(
                    name=f"temperature_{_safe(kind)}",
                    shape=(),
                    dtype="float32",
                    initializer=tf.keras.initializers.Constant(to_parameter(self._temperature)),
                )
                for kind in sizes
            }
        # A TensorFlow checkpoint of a Keras 3 model does not look into dictionaries.
        for role in ("encoders", "key_encoders", "queues", "temperatures"):
            for name, state in getattr(self, f"_{role}").items():
                setattr(self, f"_{role}_{_safe(name)}", state)
        further = ["clamped_rate"] if self._objective.declares("tau_plus") else []
        further += ["temperature"] if self.learn_temperature else []
        self._health = {
            name: health_metrics(
                f"{self.name}/{name}",
                self.head_units or self.units,
                [*further, *self._alignment_metrics(name)],
            )
            for name in (self._denoised if active else ())
        }
        self.step = self.add_weight(
            name="step", shape=(), dtype="int64", initializer="zeros", trainable=False
        )
        super().build(input_shape)

    def call(
        self,
        sequences: Mapping[str, Any],
        mask: Mapping[str, Tensor] | None = None,
        sample_ids: Tensor | None = None,
        sample_weight: Tensor | None = None,
        labels: Tensor | None = None,
        candidate: Any = None,
        training: bool | None = None,
    ) -> Mapping[str, Any]:
        """Returns `sequences`; see the class."""
        if tf.is_tensor(training):
            training = tf.get_static_value(training)
            if training is None:
                raise ValueError(
                    "`training` must be known when the graph is made. Received: a tensor"
                )
        unknown = set(mask or {}) - set(sequences)
        if unknown:
            raise ValueError(
                f"`mask` has keys that `sequences` has not. Received: {sorted(unknown)}, with "
                f"sequences {sorted(sequences)}"
            )
        if labels is not None and not self._objective.takes("labels"):
            raise ValueError(
                "`labels` must be None with a loss that takes none; 'multi_positive' and 'triplet' "
                f"do. Received: labels with loss {self._objective.name!r}"
            )
        adds_loss = bool(training) and is_on(self.weight)
        if is_recording():
            record(self._seen(sequences, mask or {}, candidate, adds_loss))
        returned, judgement = sequences, None
        if adds_loss and (self.gradient_budget is not None or self.project_conflicts):
            returned, sequences = self._forked(sequences)
        if self.gate or (adds_loss and self.alignment == "type"):
            judgement = self._judge(sequences, mask, candidate)
        if adds_loss:
            if sample_weight is None:
                sample_weight = current_row_weights()
            rows = {
                name: row_vector(name, x)
                for name, x in (
                    ("sample_ids", sample_ids), ("sample_weight", sample_weight), ("labels", labels)
                )
                if x is not None
            }  # fmt: skip
            self._add_side_loss(sequences, mask or {}, rows, judgement)
        return returned if judgement is None or not self.gate else judgement.gated(returned)

    def encode(
        self, sequences: Mapping[str, Any], mask: Mapping[str, Tensor] | None = None
    ) -> dict[str, Tensor]:
        """Encodes the whole, unmasked sequences, for rankers that want the vectors as features.

        Args:
            sequences: As in a call.
            mask: As in a call.

        Returns:
            Mapping from the name of each denoised sequence to unit vectors `[B, units]`; a zero
            vector for a row without a real event.

        Raises:
            ValueError: The layer was not built yet: call it on the sequences first.
        """
        if not self.built:
            raise ValueError(
                "`encode` needs the encoders: call the denoiser on the sequences first. "
                "Received: a layer that is not built"
            )
        vectors = {}
        for name in self._denoised:
            events, real = events_and_mask(name, sequences[name], (mask or {}).get(name))
            encoded = self._encoders[self._types[name]].represent(masked_pool(whole(events), real))
            not_empty = tf.reduce_any(real, axis=1, keepdims=True)
            vectors[name] = tf.where(not_empty, encoded, tf.zeros_like(encoded))
        return vectors

    def keep_scores(
        self,
        sequences: Mapping[str, Any],
        mask: Mapping[str, Tensor] | None = None,
        candidate: Any = None,
    ) -> dict[str, Tensor]:
        """How well the trusted events of a row match each event of its noisy sequences.

        Args:
            sequences: As in a call.
            mask: As in a call.
            candidate: As in a call.

        Returns:
            Mapping from the name of each noisy sequence to scores `[B, L]` in [0, 1], float32 or
            float64: 0 for noise and padding, 1 for a real event of a row without trusted events.
            See `seqdenoise.transport.keep_scores`.

        Raises:
            ValueError: The layer has no `trusted`, or was not built yet.
        """
        if not self._aligner.trusted_types:
            raise ValueError(
                "`keep_scores` needs `trusted`, the types whose events are taken for signal. "
                "Received: trusted=None"
            )
        if not self.built:
            raise ValueError(
                "`keep_scores` needs to know the sequences: call the denoiser on them first. "
                "Received: a layer that is not built"
            )
        return self._judge(sequences, mask, candidate).keep_scores()

    def compute_output_shape(self, input_shape: Any, **_: Any) -> Any:
        """The shapes of the sequences."""
        return input_shape

    def compute_mask(self, sequences: Mapping[str, Any], mask: Any = None) -> Mapping[str, Any]:
        """The Keras mask of each sequence that comes out: its own, or else that of `mask`.

        Keras would hand out the masks it was given in turn, which are fewer than the tensors if a
        sequence has none or several fields.
        """
        given = mask or {}

        def of_fields(fields: Mapping[str, Any], masks: Any) -> Mapping[str, Any]:
            masks = masks if isinstance(masks, Mapping) else dict.fromkeys(fields, masks)
            return _like(fields, {key: _own_mask(x, masks.get(key)) for key, x in fields.items()})

        return _like(
            sequences,
            {
                name: of_fields(x, given.get(name))
                if isinstance(x, Mapping)
                else _own_mask(x, given.get(name))
                for name, x in sequences.items()
            },
        )

    def compute_output_spec(self, sequences: Mapping[str, Any], *_: Any, **__: Any) -> Any:
        """The sequences' shapes and their own dtypes, for Keras 3, which would say this layer's."""
        return tf.nest.map_structure(
            lambda x: tf.keras.KerasTensor(x.shape, dtype=x.dtype), sequences
        )

    def get_config(self) -> dict[str, Any]:
        """Arguments of the constructor."""
        return {
            **super().get_config(),
            "dtype": self._encoder_dtype,
            "weight": to_config(self.weight),
            "masking": self.masking,
            "dropout": self.dropout,
            "mutual_information": self._masking.mutual_information,
            "num_positives": self.num_positives,
            "temperature": self.temperature,
            "learn_temperature": self.learn_temperature,
            "exclude": list(self.exclude),
            "types": dict(self.types),
            "loss": self._objective.name,
            "loss_options": dict(self._objective.options),
            "alignment": self.alignment,
            "alignment_weight": self.alignment_weight,
            "trusted": list(self.trusted) if isinstance(self.trusted, tuple) else self.trusted,
            "transport": None if self.transport is None else dict(self.transport),
            "gate": self.gate,
            "negatives": self.negatives,
            "gradient_budget": self.gradient_budget,
            "project_conflicts": self.project_conflicts,
            "units": self.units,
            "hidden_units": self.hidden_units,
            "head_units": self.head_units,
            "momentum": self.momentum,
            "queue_size": self.queue_size,
            "attack": None if self.attack is None else dict(self.attack),
            "warmup_steps": self.warmup_steps,
            "seed": self.seed,
        }

    def masking_of(self, name: str) -> str:
        """The kind of views of a denoised sequence; the layer is built."""
        return str(self._masking.of_sequence(is_pooled=name in self._pooled).name)

    def _seen(
        self, sequences: Mapping[str, Any], mask: Mapping[str, Tensor], candidate: Any, adds: bool
    ) -> Seen:
        masks = {
            name: events_and_mask(name, sequences[name], mask.get(name))[1]
            for name, kind in self._types.items()
            if name in self._denoised or kind in self._aligner.trusted_types
        }
        return Seen(self, sequences, masks, candidate, adds)

    def _forked(self, sequences: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """The sequences for the host, and those for the side loss."""
        trusted = self._aligner.trusted_types
        return forked_sequences(
            sequences,
            [
                name
                for name, kind in self._types.items()
                if name in self._denoised or kind in trusted
            ],
            budget=self.gradient_budget,
            project_conflicts=self.project_conflicts,
            is_global=self.negatives == "global",
        )

    def _alignment_metrics(self, name: str) -> tuple[str, ...]:
        if self.alignment == "view":
            return ("transport_cost", "marginal_error")
        if self.alignment == "type" and name in self._noisy:
            return ("transport_cost", "marginal_error", "transported_mass", "judged_rate")
        return ()

    def _judge(
        self, sequences: Mapping[str, Any], mask: Mapping[str, Tensor] | None, candidate: Any
    ) -> Judgement:
        return self._aligner.judge(sequences, mask or {}, candidate, self._types, self._denoised)

    def _new_encoder(self, role: str, kind: str, size: int, *, trainable: bool) -> ViewEncoder:
        encoder = (ViewEncoder if trainable else FixedEncoder)(
            units=self.units,
            hidden_units=self.hidden_units,
            head_units=self.head_units,
            seed=zlib.crc32(f"{self.seed}/{kind}".encode()),
            name=f"{role}_{_safe(kind)}",
            dtype=self._encoder_dtype,
        )
        encoder.build((None, size))
        return encoder

    def _add_side_loss(
        self,
        sequences: Mapping[str, Any],
        mask: Mapping[str, Tensor],
        rows: Mapping[str, Tensor],
        judgement: Judgement | None,
    ) -> None:
        for kind, keys in self._key_encoders.items():
            update_momentum_encoder(keys, self._encoders[kind], self._momentum)
        # Each replica counts its own steps and keeps its own queue and slow encoders: they see the
        # same gathered rows, so these are the same everywhere, and nobody need send them.
        step = tf.convert_to_tensor(self.step)
        inputs = {
            name: events_and_mask(name, sequences[name], mask.get(name)) for name in self._denoised
        }
        _, real = inputs[self._denoised[0]]
        with own_losses(self):
            batch = GlobalBatch.around(real, is_global=self.negatives == "global")
            rows = dict(zip(rows, batch.gather(list(rows.values())), strict=True))
            shares = {
                name: self._contrast(name).share(
                    events, real, rows, view_seed(self.seed, name, step), batch
                )
                for name, (events, real) in inputs.items()
            }
            side_loss = tf.add_n(list(shares.values())) / len(shares)
            if self.alignment == "type" and judgement is not None:
                costs = [self._type_cost(name, judgement, rows, batch) for name in self._noisy]
                side_loss += self._alignment_weight * tf.add_n(costs) / len(costs)
        warmup = tf.constant(1.0)
        if self.warmup_steps:
            warmup = tf.minimum((tf.cast(step, tf.float32) + 1) / self.warmup_steps, 1.0)
        self.step.assign_add(1)
        added = weight_at(self.weight, step) * warmup * side_loss
        self.add_loss(added)
        seen = current()
        if seen is not None:
            seen.rows, seen.shares, seen.side_loss, seen.added = rows, shares, side_loss, added

    def _contrast(self, name: str) -> Contrast:
        kind = self._types[name]
        return Contrast(
            name=name,
            kind=kind,
            masking=self._masking.of_sequence(is_pooled=name in self._pooled),
            objective=self._objective,
            aligner=self._aligner,
            alignment_weight=self._alignment_weight,
            encoder=self._encoders[kind],
            keys=self._key_encoders.get(kind),
            queue=self._queues.get(name),
            temperature=self._temperature,
            parameter=self._temperatures.get(kind),
            num_positives=self.num_positives,
            attack=self._attack,
            health=self._health[name],
        )

    def _type_cost(
        self, name: str, judgement: Judgement, rows: Mapping[str, Tensor], batch: GlobalBatch
    ) -> Tensor:
        """The mean cost of moving a noisy sequence's events onto the trusted ones."""
        costs, errors, moved, judged = batch.gather(judgement.by_row(name))
        cost = masked_mean(costs, judged, rows.get("sample_weight"))
        health = self._health[name]
        health["transport_cost"].update_state(cost)
        health["marginal_error"].update_state(tf.reduce_max(errors))
        health["transported_mass"].update_state(masked_mean(moved, judged))
        health["judged_rate"].update_state(tf.cast(judged, tf.float32))
        return tf.cast(cost, tf.float32)


def _like(original: Mapping[str, Any], content: dict[str, Any]) -> Mapping[str, Any]:
    """In the order in which Keras goes through the original."""
    return OrderedDict(content) if isinstance(original, OrderedDict) else content


def _own_mask(tensor: Any, given: Any) -> Any:
    own = getattr(tensor, "_keras_mask", None)
    return given if own is None else own


def _is_pooled(shape: Any) -> bool:
    first = next(iter(shape.values())) if isinstance(shape, Mapping) else shape
    return len(tuple(first)) == 2


def _safe(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9_.-]", "_", name)
