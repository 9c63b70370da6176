"""How far a training has come."""

import json
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Progress:
    """All of a training that is not in the model's variables.

    Which epoch was the best, and whether to stop, follows from the history, so neither can be
    forgotten.

    Attributes:
        steps: Batches consumed, over all epochs: where reading goes on.
        history: Of each finished epoch what was measured.
        seconds: Time spent, but for what was lost.
    """

    steps: int = 0
    history: list[dict[str, float]] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def epoch(self) -> int:
        """The epoch at work, from 0 on."""
        return len(self.history)

    @property
    def best_epoch(self) -> int:
        """The first of the finished epochs with the highest validation AUC, from 0 on.

        The last one where that is not measured: a warm start has nothing to validate.
        """
        quality = [epoch.get("valid_auc", number) for number, epoch in enumerate(self.history)]
        return quality.index(max(quality))

    def is_over(self, *, epochs: int, patience: int) -> bool:
        """Whether there are all epochs, or `patience` of them, at least one, without a new best."""
        if not self.history:
            return False
        without = self.epoch - 1 - self.best_epoch
        return self.epoch >= epochs or without >= max(patience, 1)

    def to_json(self) -> str:
        """The progress as JSON, to the last bit."""
        content = {"steps": self.steps, "history": self.history, "seconds": self.seconds}
        return json.dumps({"format": 1, **content})

    @classmethod
    def from_json(cls, text: str) -> "Progress":
        """The inverse of `to_json`.

        Raises:
            ValueError: The text is something else.
        """
        content: Any = json.loads(text)
        try:
            if content.pop("format") != 1:
                raise ValueError("expected format 1")
            return cls(**content)
        except (TypeError, KeyError, AttributeError) as error:
            raise ValueError(f"expected a training's progress. Received: {error!r}") from error
