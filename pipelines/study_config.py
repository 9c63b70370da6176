"""The section `study` of a run file, and the spaces that settings are searched for in."""

from typing import Annotated, Any

from pydantic import Discriminator, Field, Tag, model_validator

from pipelines.run_sections import Rate, Section


class Choices(Section):
    """Values of a setting, to try any of."""

    choices: list[Any] = Field(min_length=1)


class Span(Section):
    """Numbers from `low` to `high`, to try any of: whole ones if both ends are.

    With `log` as many below as above the geometric mean of the ends.
    """

    low: int | float
    high: int | float
    log: bool = False

    @model_validator(mode="after")
    def _is_a_span(self) -> "Span":
        if not self.low < self.high or (self.log and self.low <= 0):
            raise ValueError(
                "expected `low` below `high`, and above 0 where `log` is true. "
                f"Received: {self.low} to {self.high}"
            )
        return self


def _search_tag(value: Any) -> str:
    names = value if isinstance(value, dict) else getattr(value, "__dict__", {})
    return "choices" if "choices" in names else "span"


Search = Annotated[
    Annotated[Choices, Tag("choices")] | Annotated[Span, Tag("span")], Discriminator(_search_tag)
]
Space = dict[str, Search]


class StudyConfig(Section):
    """The study: a search for every arm's settings on validation rows, and then the final runs.

    The arms are those of the run file, `control` among them. Settings are searched for on the first
    of the `labels`, with the `tuning_seeds`, and used for all labels; the final runs have the
    `seeds`. First the host: `host_trials` of the `space`, on the control, whose best values all
    arms then have. Then `trials` of each arm's own space in `spaces`, and as many more of the
    control's. A space holds, by `section.key` of `model`, `denoiser` and `train`, either `choices`
    or `low` and `high`. `rivals` are arms that the best of the others is compared with.
    `noise_levels` are those at which control and best arm are scored again. `processes` is how many
    runs are trained at a time; by default what the machine bears. Intervals are made as `ab` says.
    """

    labels: list[str] = Field(min_length=1)
    seeds: list[int] = Field(default=[0, 1, 2, 3, 4], min_length=1)
    tuning_seeds: list[int] = Field(default=[100], min_length=1)
    space: Space = Field(default_factory=dict)
    host_trials: int = Field(default=1, ge=1)
    trials: int = Field(default=1, ge=1)
    spaces: dict[str, Space] = Field(default_factory=dict)
    rivals: list[str] = Field(default_factory=list)
    noise_levels: list[Rate] = Field(default_factory=list)
    processes: int | None = Field(default=None, ge=1)

    @model_validator(mode="after")
    def _names_are_single(self) -> "StudyConfig":
        for name in ("labels", "seeds", "tuning_seeds", "rivals"):
            values = getattr(self, name)
            if len(set(values)) < len(values):
                raise ValueError(f"`{name}` may name each once. Received: {values}")
        both = sorted(set(self.seeds) & set(self.tuning_seeds))
        if both:
            # The luck of a seed that chose the settings would be in the final runs too.
            raise ValueError(
                "`tuning_seeds` may hold none of `seeds`: settings are judged on other runs than "
                f"those they were chosen by. Received: {both}"
            )
        return self
