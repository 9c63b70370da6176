"""The sections of a run file that every job reads."""

from datetime import datetime
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from seqdenoise.data.sequence_rules import SequenceRules

TimeUnit = Literal["s", "ms", "us", "ns"]
Rate = Annotated[float, Field(ge=0, lt=1)]
Units = Annotated[int, Field(ge=1)]


class Section(BaseModel):
    """A part of a run file: unknown keys are refused, and nothing changes once it is read."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class LogConfig(Section):
    """Where the raw tables are.

    The folder holds `events.parquet` and `impressions.parquet`, and optionally `histories.parquet`,
    `items.parquet` and `users.parquet`, each a file or a folder of files. It may be a URL that
    `pyarrow.fs` or fsspec opens, such as `s3://bucket/log`.
    """

    folder: str = "log"
    time_unit: TimeUnit = "ms"


class SplitConfig(Section):
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


class PrepareConfig(Section):
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


class Cl4ctrConfig(Section):
    """CL4CTR (`pipelines.cl4ctr`), penalties on the embeddings of the candidate and `categorical`.

    `contrast` and `constraints` are the coefficients of its contrastive loss (alpha) and of feature
    alignment and field uniformity together (beta); `mask_rate` is the share of entries masked.
    """

    contrast: float = Field(default=1.0, ge=0)
    constraints: float = Field(default=0.01, ge=0)
    mask_rate: Rate = 0.5
    hidden_units: Units = 64


class ModelConfig(Section):
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


class DenoiserConfig(Section):
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


class TrainConfig(Section):
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


class AbConfig(Section):
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
