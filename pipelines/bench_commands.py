"""The command line of the benchmarks: `python -m pipelines bench --help`."""

from pathlib import Path
from typing import Annotated

import typer

from pipelines.clear_error import one_clear_error

benchmarks = typer.Typer(help="What our code costs, beside others where there are any.")

Output = Annotated[Path | None, typer.Option(help="JSON file of all figures.", show_default=False)]


@benchmarks.command()
def transport(
    sizes: Annotated[
        str, typer.Option(help="Comma-separated: 512 (square) or 512x50x50 (512 problems).")
    ] = "512,1024,2048,4096,512x50x50",
    rounds: Annotated[int, typer.Option(min=1, help="Turns of each solver at each size.")] = 5,
    memory: Annotated[bool, typer.Option(help="Measure memory too.")] = True,
    output: Output = None,
) -> None:
    """Time our Sinkhorn solver beside POT, OTT-JAX and GeomLoss, whichever are installed."""
    from pipelines.bench_transport import bench_transport
    from pipelines.contest import to_markdown

    with one_clear_error():
        report = bench_transport(sizes.split(","), rounds=rounds, memory=memory, output=output)
    print(to_markdown(report))


@benchmarks.command()
def step(
    rows: Annotated[
        list[int] | None,
        typer.Option(
            min=2, help="Rows of the batch; repeat for several.", show_default="1024 and 4096"
        ),
    ] = None,
    rounds: Annotated[int, typer.Option(min=1, help="Turns of each.")] = 7,
    output: Output = None,
) -> None:
    """Time training steps of the reference ranker with the plug-in and without."""
    from pipelines.bench_step import BATCH_SIZES, bench_step, to_markdown

    with one_clear_error():
        report = bench_step(rows or BATCH_SIZES, rounds=rounds, output=output)
    print(to_markdown(report))


@benchmarks.command()
def losses(
    rows: Annotated[
        list[int] | None,
        typer.Option(
            min=2,
            help="Rows of the batch; repeat for several.",
            show_default="1024, 4096, 16384 and 32768",
        ),
    ] = None,
    rounds: Annotated[int, typer.Option(min=1, help="Turns of each loss at each size.")] = 5,
    memory: Annotated[bool, typer.Option(help="Measure memory too.")] = True,
    output: Output = None,
) -> None:
    """Time our InfoNCE beside TensorFlow's, TFRS' and torch's, whichever are installed."""
    from pipelines.bench_losses import ROWS, bench_losses
    from pipelines.contest import to_markdown

    with one_clear_error():
        report = bench_losses(rows or ROWS, rounds=rounds, memory=memory, output=output)
    print(to_markdown(report))


@benchmarks.command()
def serving(
    rows: Annotated[
        list[int] | None,
        typer.Option(
            min=1, help="Rows of a request; repeat for several.", show_default="1, 64 and 1024"
        ),
    ] = None,
    rounds: Annotated[int, typer.Option(min=6, help="How often each is loaded and timed.")] = 30,
    output: Output = None,
) -> None:
    """Compare exports of stripped models with those of models that were never plugged."""
    from pipelines.bench_serving import BATCH_SIZES, bench_serving, to_markdown

    with one_clear_error():
        report = bench_serving(rows or BATCH_SIZES, rounds=rounds, output=output)
    print(to_markdown(report))


@benchmarks.command()
def scaling(
    rows: Annotated[
        list[int] | None,
        typer.Option(
            help="Rows of the batch; repeat for several.", show_default="256, 512, ... 8192"
        ),
    ] = None,
    length: Annotated[
        list[int] | None,
        typer.Option(
            help="Slots of a sequence; repeat for several.", show_default="10, 25, 50, 100 and 200"
        ),
    ] = None,
    types: Annotated[
        list[int] | None,
        typer.Option(
            help="Sequence types; repeat for several.", show_default="1, 2, 3, 4, 6 and 8"
        ),
    ] = None,
    fields: Annotated[
        list[int] | None,
        typer.Option(help="Fields of an event; repeat for several.", show_default="1, 2, 4 and 8"),
    ] = None,
    rounds: Annotated[int, typer.Option(min=1, help="Turns of each at each size.")] = 7,
    memory: Annotated[bool, typer.Option(help="Measure memory too.")] = True,
    output: Output = None,
    figure: Annotated[
        Path | None, typer.Option(help="SVG file of the figure.", show_default=False)
    ] = None,
) -> None:
    """Measure how time and memory of a training step grow, one size at a time."""
    from pipelines.bench_scaling import SIZES, bench_scaling, to_markdown

    given = {"num_rows": rows, "length": length, "num_types": types, "num_fields": fields}
    with one_clear_error():
        report = bench_scaling(
            {axis: sizes or SIZES[axis] for axis, sizes in given.items()},
            rounds=rounds,
            memory=memory,
            output=output,
            figure=figure,
        )
    print(to_markdown(report))


@benchmarks.command()
def metrics(
    rows: Annotated[int, typer.Option(min=1000, help="Rows of the table.")] = 10_000_000,
    loop_rows: Annotated[
        int, typer.Option(min=1000, help="Rows for scikit-learn's loops.")
    ] = 200_000,
    rounds: Annotated[int, typer.Option(min=1, help="Turns of each.")] = 3,
    output: Output = None,
) -> None:
    """Time every metric on a large table, beside scikit-learn where it has it."""
    from pipelines.bench_metrics import bench_metrics, to_markdown

    with one_clear_error():
        report = bench_metrics(rows=rows, loop_rows=loop_rows, rounds=rounds, output=output)
    print(to_markdown(report))


@benchmarks.command()
def sequences(
    events: Annotated[int, typer.Option(min=1, help="Events of the log.")] = 20_000_000,
    impressions: Annotated[int, typer.Option(min=1, help="Impressions of it.")] = 2_000_000,
    rounds: Annotated[int, typer.Option(min=1, help="Turns of each contender.")] = 3,
    folder: Annotated[
        Path | None, typer.Option(help="Where to write meanwhile.", show_default=False)
    ] = None,
    output: Output = None,
) -> None:
    """Build sequences beside pandas, Polars and DuckDB, whichever are installed."""
    from pipelines.bench_sequences import bench_sequences, to_markdown

    with one_clear_error():
        report = bench_sequences(
            events=events, impressions=impressions, rounds=rounds, folder=folder, output=output
        )
    print(to_markdown(report))


@benchmarks.command()
def reader(
    rows: Annotated[int, typer.Option(min=1, help="Rows to read.")] = 200_000,
    batch_size: Annotated[int, typer.Option(min=1, help="Rows of a batch.")] = 1024,
    rounds: Annotated[int, typer.Option(min=1, help="Turns of each contender.")] = 5,
    folder: Annotated[
        Path | None, typer.Option(help="Where to write meanwhile.", show_default=False)
    ] = None,
    output: Output = None,
) -> None:
    """Read prepared rows beside TFRecord, Hugging Face and pandas, whichever are installed."""
    from pipelines.bench_reader import bench_reader, to_markdown

    with one_clear_error():
        report = bench_reader(
            rows=rows, batch_size=batch_size, rounds=rounds, folder=folder, output=output
        )
    print(to_markdown(report))


@benchmarks.command("all")
def all_benchmarks(
    folder: Annotated[
        Path, typer.Argument(help="Where to write the page and the figures.", show_default=False)
    ],
    quick: Annotated[bool, typer.Option(help="Small sizes and few turns: some minutes.")] = False,
    only: Annotated[list[str] | None, typer.Option(help="Run this one; may be repeated.")] = None,
) -> None:
    """Run every benchmark in turn and write one page. Exit code 1 if one fails."""
    from pipelines.bench_all import bench_all, to_markdown

    with one_clear_error():
        report = bench_all(folder, quick=quick, only=only)
    print(to_markdown(report))
    if any("error" in one for one in report["benchmarks"].values()):
        raise typer.Exit(1)
