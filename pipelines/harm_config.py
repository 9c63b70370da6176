"""The section `harm` of a run file."""

from typing import Annotated, Any

from pydantic import Field, model_validator

from pipelines.run_sections import Section


class HarmSetting(Section):
    """One setting of the harm check: what it has in place of the run file's own.

    `train_fraction` is the share of the training rows, `label` short for `model: {label: ...}`.
    """

    train_fraction: float = Field(default=1.0, gt=0, le=1)
    label: str | None = None
    model: dict[str, Any] = Field(default_factory=dict)
    train: dict[str, Any] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _one_label(self) -> "HarmSetting":
        if self.label is not None and "label" in self.model:
            raise ValueError(
                "expected one of `label` and `model.label`. "
                f"Received: {self.label!r} and {self.model['label']!r}"
            )
        return self


class HarmConfig(Section):
    """The harm check: in which settings control and treatment are compared, and with which seeds.

    The plug-in is that of the section `denoiser` in all of them. `processes` is how many runs of a
    setting are trained at a time; by default what the machine bears. Intervals are made as `ab`
    says.
    """

    seeds: list[int] = Field(default=[0, 1, 2], min_length=1)
    # Names are those of folders, and stand in a Markdown table.
    settings: dict[Annotated[str, Field(pattern=r"^[^./|\\\n][^/|\\\n]*$")], HarmSetting] = Field(
        min_length=1
    )
    processes: int | None = Field(default=None, ge=1)

    @model_validator(mode="after")
    def _seeds_are_single(self) -> "HarmConfig":
        if len(set(self.seeds)) < len(self.seeds):
            raise ValueError(f"`seeds` may name each once. Received: {self.seeds}")
        return self
