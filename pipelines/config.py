"""The YAML run file: one schema for every job, unknown keys refused."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import Field, ValidationError, model_validator

from pipelines.harm_config import HarmConfig
from pipelines.run_sections import (
    AbConfig,
    DenoiserConfig,
    LogConfig,
    ModelConfig,
    PrepareConfig,
    Section,
    TrainConfig,
)
from pipelines.study_config import Choices, Space, StudyConfig


class ConfigError(ValueError):
    """A run file that cannot be used; the message names the file and the key."""


class RunConfig(Section):
    """A whole run file. Relative folders are under `folder`, itself under the working directory.

    `arms` names variants: each holds the keys of `model`, `denoiser` and `train` in which it
    differs from the rest of the file. `harm` names the settings of `python -m pipelines harm`.
    """

    folder: Path
    log: LogConfig = LogConfig()
    prepare: PrepareConfig
    model: ModelConfig
    denoiser: DenoiserConfig = DenoiserConfig()
    train: TrainConfig = TrainConfig()
    ab: AbConfig = AbConfig()
    arms: dict[str, dict[Literal["model", "denoiser", "train"], dict[str, Any]]] = Field(
        default_factory=dict
    )
    harm: HarmConfig | None = None
    study: StudyConfig | None = None

    @model_validator(mode="after")
    def _columns_are_prepared(self) -> "RunConfig":
        prepare, model = self.prepare, self.model
        item, side = prepare.item_fields, prepare.user_fields + prepare.context_fields
        for key, used, known in (
            ("label", [model.label], prepare.labels),
            ("event_fields", model.event_fields, item),
            ("categorical", model.categorical, item + side),
            ("numeric", model.numeric, item + side),
        ):
            unknown = sorted(set(used) - set(known))
            if unknown:
                raise ValueError(
                    f"`model.{key}` may only name columns that `prepare` keeps, here {known}. "
                    f"Received: {unknown}"
                )
        uses = model.event_fields + model.categorical + model.numeric
        twice = sorted({column for column in uses if uses.count(column) > 1})
        if twice:
            raise ValueError(
                "A column may be in one of `model.event_fields`, `model.categorical` and "
                f"`model.numeric`, once. Received: {twice}"
            )
        return self

    @model_validator(mode="after")
    def _arms_are_runs(self) -> "RunConfig":
        taken = {"control", "treatment"}
        wrong = [name for name in self.ab.arms if name not in self.arms or name in taken]
        if wrong:
            raise ValueError(
                f"`ab.arms` may name {sorted(set(self.arms) - taken)}, from `arms`. "
                f"Received: {wrong}"
            )
        for name in self.arms:
            try:
                self.arm(name)
            except ValidationError as error:
                raise ValueError(f"arm `{name}`: {_describe(error)}") from None
        return self

    @model_validator(mode="after")
    def _settings_are_runs(self) -> "RunConfig":
        for name in self.harm.settings if self.harm is not None else ():
            try:
                self.harm_setting(name)
            except ValidationError as error:
                raise ValueError(f"harm setting `{name}`: {_describe(error)}") from None
        return self

    def _without_variants(self) -> dict[str, Any]:
        """The sections of a run by itself."""
        return self.model_dump(exclude={"arms": True, "harm": True, "study": True, "ab": {"arms"}})

    def arm(self, name: str) -> "RunConfig":
        """The run of one arm: this one with the arm's keys in place of its own.

        Args:
            name: A key of `arms`.

        Returns:
            A run without arms.

        Raises:
            ConfigError: There is no such arm.
        """
        if name not in self.arms:
            raise ConfigError(f"arms: expected one of {sorted(self.arms)}. Received: {name!r}")
        raw = self._without_variants()
        for section, keys in self.arms[name].items():
            raw[section] = {**raw[section], **keys}
        return RunConfig.model_validate(raw)

    def harm_setting(self, name: str) -> "RunConfig":
        """The run of one setting of the harm check, but for its share of the training rows.

        Args:
            name: A key of `harm.settings`.

        Returns:
            A run without arms, with the seeds of the harm check for those of its A/B.

        Raises:
            ConfigError: There is no such setting.
        """
        if self.harm is None or name not in self.harm.settings:
            known = sorted(self.harm.settings) if self.harm is not None else []
            raise ConfigError(f"harm.settings: expected one of {known}. Received: {name!r}")
        setting, raw = self.harm.settings[name], self._without_variants()
        label = {} if setting.label is None else {"label": setting.label}
        raw["model"] |= {**setting.model, **label}
        raw["train"] |= setting.train
        raw["ab"]["seeds"] = self.harm.seeds
        return RunConfig.model_validate(raw)

    @model_validator(mode="after")
    def _study_is_fair(self) -> "RunConfig":
        study = self.study
        if study is None:
            return self
        if "control" not in self.arms or self.arm("control").denoiser.enabled:
            raise ValueError(
                "study: expected among `arms` a control without the plug-in, "
                f"`control: {{denoiser: {{enabled: false}}}}`. Received: {self.arms.get('control')}"
            )
        others = sorted(set(self.arms) - {"control"})
        for key, used, known in (
            ("labels", study.labels, self.prepare.labels),
            ("rivals", study.rivals, others),
            ("spaces", study.spaces, others),
        ):
            unknown = sorted(set(used) - set(known))
            if unknown:
                raise ValueError(f"`study.{key}` may name {known}. Received: {unknown}")
        if set(others) <= set(study.rivals):
            raise ValueError(
                "study: expected an arm beside `control` and `rivals`. "
                f"Received: {sorted(self.arms)}"
            )
        self._check_space("study.space", "control", study.space)
        for arm, space in study.spaces.items():
            self._check_space(f"study.spaces.{arm}", arm, space)
        return self

    def _check_space(self, name: str, arm: str, space: Space) -> None:
        sections: dict[str, type[Section]] = {
            "model": ModelConfig,
            "denoiser": DenoiserConfig,
            "train": TrainConfig,
        }
        if arm == "control":
            del sections["denoiser"]
        for key, search in space.items():
            section, _, field = key.partition(".")
            if section not in sections or field not in sections[section].model_fields:
                raise ValueError(
                    f"{name}: expected `section.key`, a key of {list(sections)}. Received: {key!r}"
                )
            ends = search.choices if isinstance(search, Choices) else [search.low, search.high]
            for value in ends:
                try:
                    self.study_arm(arm, own={key: value})
                except ValidationError as error:
                    raise ValueError(f"{name}: {_describe(error)}") from None

    def study_arm(
        self,
        name: str,
        *,
        label: str | None = None,
        host: Mapping[str, Any] | None = None,
        own: Mapping[str, Any] | None = None,
    ) -> "RunConfig":
        """The run of one arm with settings that a search has found.

        What is named later wins: the run file, the host's settings, the arm's keys, its own
        settings.

        Args:
            name: A key of `arms`.
            label: In place of the run file's.
            host: Settings that all arms have, by `section.key`.
            own: The arm's own.

        Returns:
            A run without arms, with the seeds of the study and what it is compared by for its A/B.

        Raises:
            ConfigError: There is no such arm.
        """
        if name not in self.arms:
            raise ConfigError(f"arms: expected one of {sorted(self.arms)}. Received: {name!r}")
        raw = self._without_variants()
        of_arm = {
            f"{section}.{key}": value
            for section, keys in self.arms[name].items()
            for key, value in keys.items()
        }
        of_label = {} if label is None else {"model.label": label}
        for key, value in {**(host or {}), **of_arm, **(own or {}), **of_label}.items():
            section, _, field = key.partition(".")
            raw[section][field] = value
        if self.study is not None:
            raw["ab"] |= {"seeds": self.study.seeds, "metrics": ["AUC", "GAUC", "log loss"]}
        return RunConfig.model_validate(raw)

    def setting(self, key: str) -> Any:
        """The value of `section.key`, as in a run file."""
        section, _, field = key.partition(".")
        return self.model_dump()[section][field]

    def with_denoiser(self, enabled: bool) -> "RunConfig":
        """This run with the plug-in on or off."""
        denoiser = self.denoiser.model_copy(update={"enabled": enabled})
        return self.model_copy(update={"denoiser": denoiser})

    def without_side_loss(self) -> "RunConfig":
        """This run with what is left of the plug-in in serving: its keep scores and its gate."""
        # A warm start would need trainable encoders.
        off = {"weight": 0.0, "alignment": None, "warm_start_epochs": 0}
        denoiser = self.denoiser.model_copy(update=off)
        return self.model_copy(update={"denoiser": denoiser})

    @property
    def log_folder(self) -> Path:
        """Where the raw tables are, if they are on this machine."""
        return self.folder / self.log.folder

    def log_table(self, name: str) -> str:
        """The location of a raw table, for instance `events`."""
        remote = "://" in self.log.folder
        folder = self.log.folder.rstrip("/") if remote else str(self.log_folder)
        return f"{folder}/{name}.parquet"

    @property
    def prepared_folder(self) -> Path:
        """Where `prepare` writes the folders `train.parquet`, `valid.parquet`, `test.parquet`."""
        return self.folder / "prepared"


def _describe(error: ValidationError) -> str:
    lines = []
    for item in error.errors():
        key = ".".join(str(part) for part in item["loc"]) or "(top level)"
        if item["type"] == "extra_forbidden":
            lines.append(f"{key}: unknown key")
            continue
        # The input of a check of the whole file would be the whole file.
        whole = item["type"] == "missing" or not item["loc"]
        received = "" if whole else f". Received: {item['input']!r}"
        message = item["msg"].removeprefix("Value error, ")
        lines.append(f"{key}: {message}" + ("" if "Received:" in message else received))
    return "\n  ".join(lines)


def load_run_config(path: Path, folder: Path | None = None) -> RunConfig:
    """Reads and checks a run file.

    Args:
        path: The YAML file.
        folder: Replaces the file's `folder` where given.

    Returns:
        The checked configuration.

    Raises:
        ConfigError: The file is missing, is no YAML mapping, or has an unknown or invalid key.
    """
    try:
        raw: Any = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path}: expected a readable run file. Received: {error}") from error
    except yaml.YAMLError as error:
        raise ConfigError(f"{path}: expected YAML. Received: {error}") from error
    if not isinstance(raw, dict):
        raise ConfigError(f"{path}: expected a YAML mapping. Received: {type(raw).__name__}")
    if folder is not None:
        raw["folder"] = folder
    try:
        return RunConfig.model_validate(raw)
    except ValidationError as error:
        raise ConfigError(f"{path}:\n  {_describe(error)}") from error
