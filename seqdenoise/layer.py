"""`SequenceDenoiser`: an identity layer with a contrastive side loss on behaviour sequences."""

import re
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from seqdenoise import metrics
from seqdenoise.encoders import ViewEncoder
from seqdenoise.losses import info_nce_loss, negative_pairs
from seqdenoise.numerics import Tensor, masked_pool
from seqdenoise.views import dimension_views, view_seed

_LOSSES: dict[str, Callable[..., Tensor]] = {"info_nce": info_nce_loss}
_MASKINGS = ("dimension",)

# Uniformity and the share of false negatives are monitored on the first rows of a batch only: they
# are means over pairs, and all pairs of a large batch would cost as much as the loss itself.
_MONITORED_ROWS = 512


def _resolve_loss(loss: str | Callable[..., Tensor]) -> Callable[..., Tensor]:
    if callable(loss):
        return loss
    found = _LOSSES.get(loss) or tf.keras.utils.get_registered_object(loss)
    if found is None:
        raise ValueError(
            f"`loss` must be one of {sorted(_LOSSES)}, or a callable (registered for Keras "
            f"serialisation if the layer is to be saved). Received: {loss!r}"
        )
    return found


def _last_dimension(name: str, shape: Any) -> int:
    """The number of features of a sequence, summed over its fields where it has some."""
    if isinstance(shape, Mapping):
        return sum(_last_dimension(f"{name}.{field}", shape[field]) for field in sorted(shape))
    shape = tuple(shape)
    if len(shape) not in (2, 3) or shape[-1] is None:
        raise ValueError(
            f"Sequence `{name}` must have shape [B, L, D] or, if pooled, [B, D], with D known. "
            f"Received: shape {shape}"
        )
    return int(shape[-1])


@tf.keras.utils.register_keras_serializable(package="seqdenoise")
class SequenceDenoiser(tf.keras.layers.Layer):
    r"""Returns behaviour sequences unchanged and, in training, adds a loss that denoises them.

    Each denoised sequence is pooled over its real events, and its dimensions are split between two
    complementary views (each sees exactly half, drawn anew for every row and step). One encoder per
    sequence *type*, shared by both views and all rows, turns the views into unit vectors, and an
    in-batch contrastive loss pulls the two views of a row together. The added loss is

    $$ weight \cdot warmup(step) \cdot \frac{1}{|S|} \sum_{s \in S} \frac{L_s}{\log candidates_s} $$

    over the denoised sequences `S`. InfoNCE of uninformative vectors is the logarithm of the number
    of candidates (valid rows), so the quotient starts near 1 and `weight` means the same at any
    batch size and for any number of types. The gradient reaches whatever made the sequences,
    usually the host model's embeddings.

    Outside training, and with `weight=0`, the layer does no work, adds no loss and draws no random
    number. Its own randomness comes from `seed` and the step alone, so the host's initialisers,
    dropout and shuffling are the same with and without it.

    Args:
        weight: Coefficient of the side loss, at least 0. At 0 the encoders are not trainable.
        masking: What is complementary. `"dimension"`: dimensions of the pooled sequence.
        temperature: Temperature of the contrastive loss, above 0.
        exclude: Types passed through untouched. Search states an explicit intent, so it is the
            default.
        types: Optional mapping from a sequence's name to its type, where they differ (`click_7d`
            and `click_30d` are both `click`). Sequences of one type share an encoder and must have
            the same number of dimensions.
        loss: `"info_nce"`, or a callable `(view_a, view_b, *, mask, ids, weights, temperature,
            **loss_options) -> scalar`.
        loss_options: Optional further keyword arguments of the loss, for instance `{"symmetric":
            True}`.
        units: Length of the vectors.
        hidden_units: Width of the encoders' hidden layer.
        warmup_steps: Number of steps over which the weight rises linearly to its full value.
        seed: Seed of the masks and of the encoders' initial weights.
        **kwargs: Arguments of `tf.keras.layers.Layer`.

    Call arguments:
        sequences: Mapping from a sequence's name to its embedded events, float `[B, L, D]`; or to a
            mapping from field to float `[B, L, D_f]`; or to an already pooled float `[B, D]`.
        mask: Optional mapping from a name to bool `[B, L]` (`[B]` for a pooled sequence), True for
            a real event. A name that is left out takes the Keras mask that its tensor carries, and
            without one all its events count as real. Padded slots may hold anything.
        sample_ids: Optional int or string `[B]` or `[B, 1]`. Rows with equal ids, usually of one
            user, are not each other's negatives.
        sample_weight: Optional non-negative float `[B]` or `[B, 1]`, weights of the anchors.
        training: Whether to add the side loss.

    Returns:
        `sequences`, unchanged.

    Raises:
        ValueError: An argument, a shape or a key does not fit, or nothing is left to denoise.

    Metrics:
        For each denoised sequence, `{layer}/{sequence}/` followed by `loss` (not divided),
        `alignment`, `uniformity`, `effective_rank`, `valid_rate` (share of rows with a real event)
        and `false_negative_rate` (share of pairs dropped by `sample_ids`). NaN in `evaluate`, where
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
        weight: float = 0.1,
        masking: str = "dimension",
        temperature: float = 0.1,
        exclude: Sequence[str] = ("search",),
        types: Mapping[str, str] | None = None,
        loss: str | Callable[..., Tensor] = "info_nce",
        loss_options: Mapping[str, Any] | None = None,
        units: int = 32,
        hidden_units: int = 64,
        warmup_steps: int = 0,
        seed: int = 0,
        **kwargs: Any,
    ) -> None:
        # Without this a mixed-precision policy would cast the sequences, and they would not come
        # out as they went in.
        kwargs.setdefault("autocast", False)
        super().__init__(**kwargs)
        if not weight >= 0:
            raise ValueError(f"`weight` must be at least 0. Received: {weight}")
        if masking not in _MASKINGS:
            raise ValueError(f"`masking` must be one of {list(_MASKINGS)}. Received: {masking!r}")
        if not temperature > 0:
            raise ValueError(f"`temperature` must be above 0. Received: {temperature}")
        if isinstance(exclude, str):
            raise ValueError(f"`exclude` must be a sequence of types. Received: {exclude!r}")
        if warmup_steps < 0:
            raise ValueError(f"`warmup_steps` must be at least 0. Received: {warmup_steps}")
        self.supports_masking = True
        self.weight = float(weight)
        self.masking = masking
        self.temperature = float(temperature)
        self.exclude = tuple(exclude)
        self.types = dict(types or {})
        self.loss = loss
        self.loss_options = dict(loss_options or {})
        self.units = units
        self.hidden_units = hidden_units
        self.warmup_steps = warmup_steps
        self.seed = seed
        self._loss_fn = _resolve_loss(loss)

    def build(self, input_shape: Any) -> None:
        """Creates one encoder a type, the metrics and the step counter."""
        if not isinstance(input_shape, Mapping):
            raise ValueError(
                "`sequences` must be a mapping from a sequence's name to its tensor. "
                f"Received: {type(input_shape).__name__}"
            )
        self._denoised = tuple(
            name for name in sorted(input_shape) if self._type(name) not in self.exclude
        )
        if not self._denoised:
            raise ValueError(
                f"Every sequence is of an excluded type, so nothing is left to denoise. "
                f"Received: sequences {sorted(input_shape)}, exclude {list(self.exclude)}"
            )
        sizes: dict[str, int] = {}
        for name in self._denoised:
            size = _last_dimension(name, input_shape[name])
            if sizes.setdefault(self._type(name), size) != size:
                raise ValueError(
                    f"Sequences of type `{self._type(name)}` share an encoder and must have the "
                    "same number of dimensions. "
                    f"Received: {sizes[self._type(name)]} and, for `{name}`, {size}"
                )
        encoders = {}
        for kind, size in sizes.items():
            encoders[kind] = ViewEncoder(
                units=self.units,
                hidden_units=self.hidden_units,
                seed=zlib.crc32(f"{self.seed}/{kind}".encode()),
                name="encoder_" + re.sub(r"[^A-Za-z0-9_.-]", "_", kind),
                dtype=self.dtype_policy,
            )
            encoders[kind].build((None, size))
            # With weight 0 no gradient would ever reach them, and Keras would warn about it.
            encoders[kind].trainable = self.weight > 0
        self._encoders = encoders
        measured = self._denoised if self.weight > 0 else ()
        self._health = {name: self._new_metrics(name) for name in measured}
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
        if training and self.weight > 0:
            self._add_side_loss(sequences, mask or {}, sample_ids, sample_weight)
        return sequences

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
            pooled, valid = self._pool(name, sequences[name], (mask or {}).get(name))
            encoded = self._encoders[self._type(name)](pooled)
            vectors[name] = tf.where(valid[:, tf.newaxis], encoded, tf.zeros_like(encoded))
        return vectors

    def compute_output_shape(self, input_shape: Any, **_: Any) -> Any:
        """The shapes of the sequences."""
        return input_shape

    def get_config(self) -> dict[str, Any]:
        """Arguments of the constructor."""
        loss = (
            self.loss
            if isinstance(self.loss, str)
            else tf.keras.utils.get_registered_name(self.loss)
        )
        return {
            **super().get_config(),
            "weight": self.weight,
            "masking": self.masking,
            "temperature": self.temperature,
            "exclude": list(self.exclude),
            "types": dict(self.types),
            "loss": loss,
            "loss_options": dict(self.loss_options),
            "units": self.units,
            "hidden_units": self.hidden_units,
            "warmup_steps": self.warmup_steps,
            "seed": self.seed,
        }

    def _type(self, name: str) -> str:
        return str(self.types.get(name, name))

    def _new_metrics(self, name: str) -> dict[str, Any]:
        prefix = f"{self.name}/{name}"
        means = ("loss", "alignment", "uniformity", "valid_rate", "false_negative_rate")
        return {
            **{key: metrics.MeasuredMean(name=f"{prefix}/{key}") for key in means},
            "effective_rank": metrics.EffectiveRank(self.units, name=f"{prefix}/effective_rank"),
        }

    def _pool(self, name: str, sequence: Any, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        """The pooled features `[B, D]` of a sequence, and which rows have a real event `[B]`."""
        fields = (
            [sequence[field] for field in sorted(sequence)]
            if isinstance(sequence, Mapping)
            else [sequence]
        )
        if isinstance(mask, Mapping):
            # Keras fills in the masks itself, one a field; all fields of an event share theirs.
            mask = next((one for one in mask.values() if one is not None), None)
        if mask is None:
            mask = getattr(fields[0], "_keras_mask", None)
        features = tf.concat(fields, axis=-1) if len(fields) > 1 else fields[0]
        expected = features.shape[:-1]
        if mask is None:
            mask = tf.ones(tf.shape(features)[:-1], tf.bool)
        if mask.dtype != tf.bool or not mask.shape.is_compatible_with(expected):
            raise ValueError(
                f"The mask of `{name}` must be bool of shape {expected}, True for a real event. "
                f"Received: {mask.dtype.name} of shape {mask.shape}"
            )
        if features.shape.rank == 2:
            # A pooled sequence is a sequence of one event.
            features, mask = features[:, tf.newaxis], mask[:, tf.newaxis]
        return masked_pool(features, mask), tf.reduce_any(mask, axis=1)

    def _add_side_loss(
        self,
        sequences: Mapping[str, Any],
        mask: Mapping[str, Tensor],
        sample_ids: Tensor | None,
        sample_weight: Tensor | None,
    ) -> None:
        ids = None if sample_ids is None else _row_vector("sample_ids", sample_ids)
        weights = None if sample_weight is None else _row_vector("sample_weight", sample_weight)
        step = tf.convert_to_tensor(self.step)
        shares = []
        for name in self._denoised:
            pooled, valid = self._pool(name, sequences[name], mask.get(name))
            views = dimension_views(pooled, seed=view_seed(self.seed, name, step))
            # One product for both views: they share the encoder.
            encoded = self._encoders[self._type(name)](tf.concat(views, axis=0))
            view_a, view_b = tf.split(encoded, 2, axis=0)
            loss = self._loss_fn(
                view_a,
                view_b,
                mask=valid,
                ids=ids,
                weights=weights,
                temperature=self.temperature,
                **self.loss_options,
            )
            candidates = tf.reduce_sum(tf.cast(valid, loss.dtype))
            shares.append(tf.cast(loss / tf.math.log(tf.maximum(candidates, 2.0)), tf.float32))
            self._measure(self._health[name], loss, view_a, view_b, valid, ids)
        warmup = tf.constant(1.0)
        if self.warmup_steps:
            warmup = tf.minimum((tf.cast(step, tf.float32) + 1) / self.warmup_steps, 1.0)
        self.step.assign_add(1)
        self.add_loss(self.weight * warmup * tf.add_n(shares) / len(shares))

    def _measure(
        self,
        health: Mapping[str, Any],
        loss: Tensor,
        view_a: Tensor,
        view_b: Tensor,
        valid: Tensor,
        ids: Tensor | None,
    ) -> None:
        view_a, view_b = tf.stop_gradient(view_a), tf.stop_gradient(view_b)
        health["loss"].update_state(loss)
        health["alignment"].update_state(metrics.alignment(view_a, view_b, mask=valid))
        health["valid_rate"].update_state(tf.cast(valid, tf.float32))
        health["effective_rank"].update_state(view_a, valid)
        few, few_valid = view_a[:_MONITORED_ROWS], valid[:_MONITORED_ROWS]
        health["uniformity"].update_state(metrics.uniformity(few, mask=few_valid))
        kept = negative_pairs(few_valid, None if ids is None else ids[:_MONITORED_ROWS])
        pairs = negative_pairs(few_valid)
        dropped = 1 - tf.math.divide_no_nan(
            tf.reduce_sum(tf.cast(kept, tf.float32)), tf.reduce_sum(tf.cast(pairs, tf.float32))
        )
        any_pair = tf.cast(tf.reduce_any(pairs), tf.float32)
        health["false_negative_rate"].update_state(dropped * any_pair)


def _row_vector(name: str, x: Tensor) -> Tensor:
    x = tf.convert_to_tensor(x)
    if x.shape.rank == 2 and x.shape[1] == 1:
        x = x[:, 0]
    if x.shape.rank != 1:
        raise ValueError(f"`{name}` must have shape [B] or [B, 1]. Received: shape {x.shape}")
    return x
