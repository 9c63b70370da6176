"""The YAML run file: one schema for every job, unknown keys refused."""

from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import (
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    ValidationError,
    model_validator,
)

from seqdenoise.data.sequence_rules import SequenceRules

TimeUnit = Literal["s", "ms", "us", "ns"]
Rate = Annotated[float, Field(ge=0, lt=1)]
Units = Annotated[int, Field(ge=1)]


class ConfigError(ValueError):
    """A run file that cannot be used; the message names the file and the key."""


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class LogConfig(_Section):
    """Where the raw tables are.

    The folder holds `events.parquet` and `impressions.parquet`, and optionally `histories.parquet`,
    `items.parquet` and `users.parquet`, each a file or a folder of files. It may be a URL that
    `pyarrow.fs` or fsspec opens, such as `s3://bucket/log`.
    """

    folder: str = "log"
    time_unit: TimeUnit = "ms"


class SplitConfig(_Section):
    """Half-open ranges of impression time, in this order: train, valid, test.

    Train is `[train_from, valid_from - gap)`, valid `[valid_from, test_from - gap)`, test
    `[test_from, test_until)`. A time is a time stamp with a zone, or an integer in the log's unit,
    which is also that of `gap`: the horizon of a label that looks ahead, lest labels of training
    tell what happens in validation.
    """

    train_from: datetime | int | None = None
    valid_from: datetime | int
    test_from: datetime | int
    test_until: datetime | int | None = None
    gap: int = Field(default=0, ge=0)

    @model_validator(mode="after")
    def _zones(self) -> "SplitConfig":
        for name in ("train_from", "valid_from", "test_from", "test_until"):
            value = getattr(self, name)
            if isinstance(value, datetime) and value.tzinfo is None:
                raise ValueError(
                    f"`{name}` needs a time zone, for instance 2022-05-01T00:00:00+08:00. "
                    f"Received: {value.isoformat()}"
                )
        return self


class PrepareConfig(_Section):
    """Raw tables to one row an impression with point-in-time sequences.

    What a sequence holds is said by `seqdenoise.data.sequences.SequenceRules`, under the same
    names; `max_age` and `session_gap` are in the log's unit.
    """

    sequence_types: list[str] = Field(min_length=1)
    max_length: int = Field(default=50, ge=1)
    item_fields: list[str] = []
    event_fields: list[str] = []
    age: bool = False
    ties: Literal["exclude", "include"] = "exclude"
    deduplicate: Literal["exact", "consecutive", "item"] | None = None
    max_age: int | None = Field(default=None, ge=0)
    session_gap: int | None = Field(default=None, ge=0)
    user_fields: list[str] = []
    context_fields: list[str] = []
    labels: list[str] = Field(min_length=1)
    where: dict[str, list[int | str]] = {}
    split: SplitConfig

    @model_validator(mode="after")
    def _rules_hold(self) -> "PrepareConfig":
        self.rules()
        return self

    def rules(self) -> SequenceRules:
        """What the sequence builder is to do."""
        return SequenceRules(
            types=tuple(self.sequence_types),
            max_length=self.max_length,
            item_fields=tuple(self.item_fields),
            event_fields=tuple(self.event_fields),
            age=self.age,
            ties=self.ties,
            deduplicate=self.deduplicate,
            max_age=self.max_age,
            session_gap=self.session_gap,
        )


class Cl4ctrConfig(_Section):
    """CL4CTR (`pipelines.cl4ctr`), penalties on the embeddings of the candidate and `categorical`.

    `contrast` and `constraints` are the coefficients of its contrastive loss (alpha) and of feature
    alignment and field uniformity together (beta); `mask_rate` is the share of entries masked.
    """

    contrast: float = Field(default=1.0, ge=0)
    constraints: float = Field(default=0.01, ge=0)
    mask_rate: Rate = 0.5
    hidden_units: Units = 64


class ModelConfig(_Section):
    """The reference ranker: target attention over the sequences (DIN), side features, an MLP.

    `event_fields` are the item fields embedded, beside the item itself, for the candidate and for
    every event of a sequence, from one shared table a field. `categorical` and `numeric` are
    further columns of the impression: item, user or context fields. `cl4ctr: {}` trains with the
    penalties of CL4CTR, a rival of the plug-in.
    """

    label: str
    event_fields: list[str] = []
    categorical: list[str] = []
    numeric: list[str] = []
    embedding_dim: int = Field(default=16, ge=1)
    min_count: int = Field(default=1, ge=1)
    attention_units: list[Units] = Field(default=[32], min_length=1)
    mlp_units: list[Units] = [128, 64]
    dropout: Rate = 0.0
    embedding_l2: float = Field(default=0.0, ge=0)
    cl4ctr: Cl4ctrConfig | None = None


class DenoiserConfig(_Section):
    """Arguments of `seqdenoise.SequenceDenoiser`, under the same names, and whether to use it.

    Two things come from the prepared data: `mutual_information`, and `tau_plus` where
    `loss_options` says `tau_plus: estimated`. `positives` says which labels a loss that takes
    labels gets: none (`views`), the model's label (`same_label`), or that of positive rows alone
    (`same_positive_label`).

    `warm_start_epochs` go before the ranking, by the side loss alone (see `seqdenoise.warm_start`);
    with `weight: 0` that is all there is of it, and the default (docs/results.md says why).
    """

    enabled: bool = True
    weight: float = Field(default=0.0, ge=0)
    masking: Literal[
        "dimension",
        "event_dimension",
        "event",
        "field",
        "correlated_field",
        "crop_mask_reorder",
        "dropout",
    ] = "event"
    dropout: Rate | None = None
    num_positives: int = Field(default=1, ge=1)
    temperature: float | None = Field(default=None, gt=0)
    learn_temperature: bool = False
    loss: Literal[
        "info_nce",
        "nt_xent",
        "n_pair",
        "triplet",
        "simple",
        "debiased",
        "hard_negative",
        "multi_positive",
        "moco",
        "rocl",
    ] = "info_nce"
    loss_options: dict[str, bool | int | float | str] = {}
    positives: Literal["views", "same_label", "same_positive_label"] = "views"
    exclude: list[str] = ["search"]
    alignment: Literal["view", "type"] | None = None
    alignment_weight: float | None = Field(default=None, ge=0)
    trusted: str | list[str] | None = None
    transport: dict[str, int | float | None] | None = None
    gate: bool = False
    negatives: Literal["global", "local"] = "global"
    gradient_budget: float | None = Field(default=None, gt=0)
    project_conflicts: bool = False
    units: int = Field(default=32, ge=1)
    hidden_units: int = Field(default=64, ge=1)
    head_units: int | None = Field(default=None, ge=1)
    momentum: float | None = Field(default=None, ge=0, le=1)
    queue_size: int | None = Field(default=None, ge=1)
    attack: dict[str, bool | int | float] | None = None
    warmup_steps: int = Field(default=0, ge=0)
    warm_start_epochs: int = Field(default=5, ge=0)


class TrainConfig(_Section):
    """The optimisation of one run.

    With `cosine_decay` the learning rate falls to 0 along half a cosine over all `epochs`.
    `tensorboard` and `mlflow`, the name of an experiment, log the training there too.

    A training that was killed goes on from its last backup: one is made after every epoch and, of
    long ones, every `backup_minutes` (0 or null for epochs alone). `deterministic` has TensorFlow
    leave out everything whose result depends on timing, for the rest of the process: on a CPU runs
    are the same to the last bit without it, on a GPU they are not. `jit_compile` has XLA compile
    loss and gradients, on one device: some seconds more at the start, less time a step. On several
    replicas, whose sums it cannot compile, it has no effect.
    """

    batch_size: int = Field(default=512, ge=1)
    epochs: int = Field(default=10, ge=1)
    learning_rate: float = Field(default=1e-3, gt=0)
    cosine_decay: bool = False
    patience: int = Field(default=1, ge=0)
    pool_row_groups: int = Field(default=8, ge=1)
    deterministic: bool = False
    jit_compile: bool = False
    backup_minutes: float | None = Field(default=10, ge=0)
    tensorboard: bool = False
    mlflow: str | None = None


class AbConfig(_Section):
    """The A/B: which arms and seeds, by what they are judged, and how the interval is made.

    Beside `control` and `treatment` take part the `arms` named here, from the run file's `arms`
    section. With `slices` every metric is also compared within slices of the test rows (see
    `pipelines.run_slices`; `slice_by` names further columns), corrected for their number by
    `multiplicity`. `noise_levels` are shares of planted events at which all
    runs are scored again; none by default, since each costs a pass over the test rows a run.
    `train_noise` is planted into the training and validation rows of all arms. `noise_draw` says
    whether every item is as likely or popular ones more.
    `processes` is how many runs are trained at a time; by default what the machine bears.
    """

    seeds: list[int] = Field(default=[0, 1, 2], min_length=1)
    arms: list[str] = []
    metrics: list[str] = Field(
        default=["AUC", "GAUC", "log loss", "normalised entropy", "ECE", "NDCG@10"], min_length=1
    )
    num_resamples: int = Field(default=2000, ge=100)
    confidence: float = Field(default=0.95, gt=0.5, lt=1)
    slices: bool = True
    slice_by: list[str] = []
    multiplicity: Literal["holm", "benjamini-hochberg"] = "holm"
    noise_levels: list[Rate] = []
    train_noise: Rate = 0.0
    noise_draw: Literal["uniform", "popularity"] = "uniform"
    processes: int | None = Field(default=None, ge=1)


class HarmSetting(_Section):
    """One setting of the harm check: what it has in place of the run file's own.

    `train_fraction` is the share of the training rows, `label` short for `model: {label: ...}`.
    """

    train_fraction: float = Field(default=1.0, gt=0, le=1)
    label: str | None = None
    model: dict[str, Any] = {}
    train: dict[str, Any] = {}

    @model_validator(mode="after")
    def _one_label(self) -> "HarmSetting":
        if self.label is not None and "label" in self.model:
            raise ValueError(
                "expected one of `label` and `model.label`. "
                f"Received: {self.label!r} and {self.model['label']!r}"
            )
        return self


class HarmConfig(_Section):
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


class Choices(_Section):
    """Values of a setting, to try any of."""

    choices: list[Any] = Field(min_length=1)


class Span(_Section):
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


class StudyConfig(_Section):
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
    space: Space = {}
    host_trials: int = Field(default=1, ge=1)
    trials: int = Field(default=1, ge=1)
    spaces: dict[str, Space] = {}
    rivals: list[str] = []
    noise_levels: list[Rate] = []
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


class RunConfig(_Section):
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
    arms: dict[str, dict[Literal["model", "denoiser", "train"], dict[str, Any]]] = {}
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
        sections: dict[str, type[_Section]] = {
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
