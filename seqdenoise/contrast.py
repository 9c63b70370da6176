"""The term of one sequence in the side loss."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from seqdenoise.adversary import pgd_attack
from seqdenoise.aligner import Aligner
from seqdenoise.encoders import ViewEncoder
from seqdenoise.health import MONITORED_ROWS, update_health
from seqdenoise.inputs import whole_number_ids
from seqdenoise.key_queue import KeyQueue
from seqdenoise.learned_temperature import to_temperature
from seqdenoise.losses import clamped_rate, info_nce_loss
from seqdenoise.losses.info_nce import num_blocks
from seqdenoise.masking import Masking
from seqdenoise.numerics import Tensor
from seqdenoise.objective import Objective
from seqdenoise.recording import current
from seqdenoise.replicas import GlobalBatch
from seqdenoise.views import fold_in


@dataclass(frozen=True)
class Contrast:
    """Two views of a sequence, and the loss that draws those of a row together.

    Attributes:
        name: The sequence's name.
        kind: Its type.
        masking: What makes the views.
        objective: The loss.
        aligner: What aligns the views, if it does.
        alignment_weight: Coefficient of the transport cost.
        encoder: The type's encoder.
        keys: Its slow twin, of a loss with a queue.
        queue: The sequence's past keys, likewise.
        temperature: Of losses that take one.
        parameter: The trained parameter of the temperature, if it is learnt.
        num_positives: Number of positives of each row.
        attack: Arguments of `pgd_attack`.
        health: The sequence's metrics.
    """

    name: str
    kind: str
    masking: Masking
    objective: Objective
    aligner: Aligner
    alignment_weight: float
    encoder: ViewEncoder
    keys: ViewEncoder | None
    queue: KeyQueue | None
    temperature: float
    parameter: Any
    num_positives: int
    attack: Mapping[str, Any]
    health: Mapping[str, Any]

    def share(
        self,
        events: Any,
        mask: Tensor,
        rows: Mapping[str, Tensor],
        seed: Tensor,
        batch: GlobalBatch,
    ) -> Tensor:
        """The loss over its chance level, and the cost of aligning the views.

        Args:
            events: float `[B, L, D]`, or a mapping from field to float `[B, L, D_f]`.
            mask: bool `[B, L]`, True for a real event.
            rows: Those of `sample_ids`, `sample_weight` and `labels` that are given, gathered,
                `[N]` each.
            seed: int `[2]`.
            batch: The `N` rows among which these `B` stand.

        Returns:
            A float32 scalar. The queue takes up the batch's keys, the metrics the batch.
        """
        objective, encoder = self.objective, self.encoder
        first_row = batch.first_row
        features_a, features_b, valid = self.masking.views(
            self.kind, events, mask, seed, first_row=first_row
        )
        seen = current()
        if seen is not None:
            seen.views[self.name] = (features_a, features_b, valid)
        further = [
            self.masking.views(
                self.kind, events, mask, fold_in(seed, 10 * number), first_row=first_row
            )[1]
            for number in range(1, self.num_positives)
        ]
        if self.keys is None:
            # One product for all views: they share the encoder.
            together = encoder(tf.concat([features_a, features_b, *further], axis=0))
            view_a, view_b, *more = tf.split(together, 2 + len(further), axis=0)
        else:
            view_a, more = encoder(features_a), []
            view_b = tf.stop_gradient(self.keys(features_b))
        view_a, view_b, valid, *more = batch.gather([view_a, view_b, valid, *more])

        ids = rows.get("sample_ids")
        if self.queue is not None and ids is not None:
            ids = whole_number_ids(ids)
        arguments: dict[str, Any] = {
            "mask": valid,
            "ids": ids,
            "weights": rows.get("sample_weight"),
            **objective.options_of(self.kind),
        }
        means = {}
        if objective.takes("temperature"):
            arguments["temperature"] = self.temperature
            if self.parameter is not None:
                temperature = to_temperature(tf.convert_to_tensor(self.parameter))
                arguments["temperature"] = means["temperature"] = temperature
        if "labels" in rows:
            arguments["labels"] = rows["labels"]
        if more:
            arguments["more_positives"] = tf.stack(more, axis=1)
        queue, queued = self.queue, None
        if queue is not None:
            arguments["queue"] = tf.cast(queue.vectors, view_a.dtype)
            arguments["queue_mask"] = queue.filled
            arguments["queue_ids"] = None if ids is None else tf.convert_to_tensor(queue.ids)
            queued = tf.reduce_sum(tf.cast(queue.filled, view_a.dtype))
        if objective.declares("adversarial"):
            attacked = self._attacked(features_a, view_b, arguments, fold_in(seed, 3), batch)
            (arguments["adversarial"],) = batch.gather([encoder(attacked)])
        loss = objective.fn(view_a, view_b, **arguments)
        if queue is not None:
            queue.push(view_b, mask=valid, ids=ids)

        if objective.declares("tau_plus"):
            means["clamped_rate"] = self._clamped_rate(view_a, view_b, arguments)
        update_health(
            self.health,
            view_a,
            view_b,
            mask=valid,
            ids=ids,
            max_similarity=arguments.get("max_similarity"),
            loss=loss,
            **means,
        )
        number = tf.reduce_sum(tf.cast(valid, loss.dtype))
        level = objective.chance_level(number, queued, num_blocks=self._num_blocks(valid))
        share = tf.cast(loss / level, tf.float32)
        if self.aligner.alignment == "view":
            weights = rows.get("sample_weight")
            transport = self.aligner.view_transport(view_a, view_b, mask=valid, weights=weights)
            share += self.alignment_weight * tf.cast(transport.cost, tf.float32)
            self.health["transport_cost"].update_state(transport.cost)
            self.health["marginal_error"].update_state(transport.marginal_error)
        return share

    def _attacked(
        self,
        features: Tensor,
        view_b: Tensor,
        arguments: Mapping[str, Any],
        seed: Tensor,
        batch: GlobalBatch,
    ) -> Tensor:
        """View A's features moved to where the instance-level loss is worse."""
        passed = ("mask", "ids", "weights", "temperature", "max_similarity")
        options = {name: arguments[name] for name in passed if name in arguments}
        target = tf.stop_gradient(view_b)
        return pgd_attack(
            lambda x: info_nce_loss(batch.gather([self.encoder(x)])[0], target, **options),
            features,
            seed=seed,
            first_row=batch.first_row,
            **self.attack,
        )

    def _num_blocks(self, valid: Tensor) -> Tensor | int:
        most = self.objective.options_of(self.kind).get("max_negatives")
        if most is None or self.objective.fn is not info_nce_loss:
            return 1
        return num_blocks(tf.shape(valid)[0], most)

    def _clamped_rate(self, view_a: Tensor, view_b: Tensor, arguments: Mapping[str, Any]) -> Tensor:
        few = {
            name: x[:MONITORED_ROWS] if tf.is_tensor(x) and x.shape.rank else x
            for name, x in {**self.objective.defaults, **arguments}.items()
            if name != "weights"
        }
        views = (tf.stop_gradient(view[:MONITORED_ROWS]) for view in (view_a, view_b))
        return clamped_rate(*views, **few)
