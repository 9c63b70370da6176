"""The plug-in of a run: the run file's options, and what they need of the prepared data."""

import json
from typing import Any

import seqdenoise
from pipelines.config import ConfigError, RunConfig
from seqdenoise.errors import DataError


def _statistics(config: RunConfig) -> dict[str, Any]:
    path = config.prepared_folder / "statistics.json"
    try:
        loaded: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, json.JSONDecodeError) as error:
        raise DataError(
            f"{path}: expected the statistics that `prepare` writes. Received: {error}"
        ) from error
    missing = sorted(set(_denoised_types(config)) - set(loaded))
    if missing:
        raise DataError(f"{path}: expected types {missing}. Received: {sorted(loaded)}")
    return {kind: loaded[kind] for kind in _denoised_types(config)}


def _denoised_types(config: RunConfig) -> list[str]:
    return [kind for kind in config.prepare.sequence_types if kind not in config.denoiser.exclude]


def build_denoiser(config: RunConfig, *, seed: int) -> seqdenoise.SequenceDenoiser:
    """Builds the plug-in.

    Args:
        config: The run.
        seed: Its seed.

    Returns:
        The layer.

    Raises:
        ConfigError: The options do not go together.
        DataError: `statistics.json` is needed, and is missing or damaged.
    """
    options = config.denoiser.model_dump(exclude={"enabled", "positives", "warm_start_epochs"})
    if config.denoiser.warm_start_epochs and not options["weight"]:
        options["weight"] = 1.0  # the warm start leaves it out, and after that nobody asks for it
    if config.denoiser.masking == "correlated_field":
        fields = ["item", *config.model.event_fields]
        options["mutual_information"] = {
            kind: {
                one: {other: of_type["mutual_information"][one][other] for other in fields}
                for one in fields
            }
            for kind, of_type in _statistics(config).items()
        }
    tau_plus = options["loss_options"].get("tau_plus")
    if tau_plus == "estimated":
        # Rows of one user are no negatives in this model, so only false negatives among other
        # users' rows are left for the correction.
        options["loss_options"]["tau_plus"] = {
            kind: of_type["tau_plus"]["same_sequence_of_other_user"]
            for kind, of_type in _statistics(config).items()
        }
    try:
        return seqdenoise.SequenceDenoiser(**options, seed=seed, name="denoiser")
    except (TypeError, ValueError) as error:
        raise ConfigError(f"denoiser: {error}") from error
