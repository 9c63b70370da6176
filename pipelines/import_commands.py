"""The command line of the importers: `python -m pipelines import --help`."""

from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Annotated

import typer

from pipelines.clear_error import one_clear_error

sources = typer.Typer(help="Published logs to event, impression and history tables.")

LogFolder = Annotated[Path, typer.Argument(help="Where to write the log.", show_default=False)]
Horizon = Annotated[
    int, typer.Option(min=1, help="Hours after a click or view in which a conversion counts.")
]


@sources.command()
def kuairand(
    source: Annotated[Path, typer.Argument(help="The folder of the published files.")],
    log: LogFolder,
) -> None:
    """Import KuaiRand-Pure: the published CSV files, or the adapted subset with histories."""
    from pipelines.sources.kuairand import import_kuairand

    with one_clear_error():
        import_kuairand(source, log)


@sources.command()
def otto(
    source: Annotated[Path, typer.Argument(help="The published .jsonl file, or its folder.")],
    log: LogFolder,
    horizon_hours: Horizon = 24,
) -> None:
    """Import OTTO: clicks as impressions, labelled by a later cart or order of the session."""
    from pipelines.sources.otto import import_otto

    with one_clear_error():
        import_otto(source, log, horizon=timedelta(hours=horizon_hours))


@sources.command()
def retailrocket(
    source: Annotated[Path, typer.Argument(help="The folder of the published files.")],
    log: LogFolder,
    horizon_hours: Horizon = 24,
    fields_at: Annotated[
        datetime | None,
        typer.Option(
            help="UTC; item fields are those known then, and impressions begin. "
            "By default the first snapshot.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Import RetailRocket: views as impressions, labelled by a later cart or purchase."""
    from pipelines.sources.retailrocket import import_retailrocket

    at = fields_at and fields_at.replace(tzinfo=timezone.utc)
    with one_clear_error():
        import_retailrocket(source, log, horizon=timedelta(hours=horizon_hours), fields_at=at)


@sources.command()
def movielens(
    source: Annotated[Path, typer.Argument(help="The folder of the unpacked files.")],
    log: LogFolder,
) -> None:
    """Import MovieLens: ratings as impressions, labelled by whether the film was liked."""
    from pipelines.sources.movielens import import_movielens

    with one_clear_error():
        import_movielens(source, log)
