"""The command line: `python -m pipelines --help`."""

import logging
import os
import sys
from pathlib import Path
from typing import Annotated, Literal

# TFRS refuses to load under Keras 3. This process is ours, so it may choose; the library never
# does.
os.environ["TF_USE_LEGACY_KERAS"] = "1"
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
# These jobs touch no tensor, and TensorFlow would cost them 600 MB and some seconds.
os.environ.setdefault(
    "SEQDENOISE_DATA_ONLY",
    str(
        int(
            __name__ == "__main__"
            and {*sys.argv[1:2]}
            <= {"simulate", "import", "prepare", "audit", "check", "compare", "coverage"}
        )
    ),
)

import typer
from rich.console import Console
from rich.logging import RichHandler
from rich.markdown import Markdown

from pipelines.bench_commands import benchmarks
from pipelines.clear_error import one_clear_error
from pipelines.config import load_run_config
from pipelines.import_commands import sources

app = typer.Typer(
    help="Raw logs to an A/B verdict and an exported model.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.add_typer(sources, name="import", no_args_is_help=True)
app.add_typer(benchmarks, name="bench", no_args_is_help=True)

RunFile = Annotated[Path, typer.Argument(help="The YAML run file.", show_default=False)]
Folder = Annotated[
    Path | None, typer.Option(help="Replaces the run file's `folder`.", show_default=False)
]


def _log_to_stderr() -> None:
    handler: logging.Handler
    if sys.stderr.isatty():
        handler = RichHandler(console=Console(stderr=True), show_path=False)
        form = "%(message)s"
    else:
        handler = logging.StreamHandler()
        form = "%(asctime)s %(message)s"
    logging.basicConfig(level=logging.INFO, format=form, datefmt="%H:%M:%S", handlers=[handler])
    for chatty in ("tensorflow", "absl"):
        logging.getLogger(chatty).setLevel(logging.ERROR)


def _print_markdown(text: str) -> None:
    if sys.stdout.isatty():
        Console().print(Markdown(text))
    else:
        print(text)


@app.command()
def simulate(
    log: Annotated[Path, typer.Argument(help="Where to write the log.", show_default=False)],
    users: Annotated[int, typer.Option(min=1, help="Number of users.")] = 4000,
    items: Annotated[int, typer.Option(min=10, help="Number of items.")] = 3000,
    noise_rate: Annotated[
        float, typer.Option(min=0, max=0.95, help="Share of click and cart events that are noise.")
    ] = 0.3,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the log.")] = 0,
) -> None:
    """Write a simulated log with known noise: the embedded data source."""
    from pipelines.simulate import write_simulated_log

    with one_clear_error():
        write_simulated_log(log, num_users=users, num_items=items, noise_rate=noise_rate, seed=seed)


@app.command()
def prepare(
    run_file: RunFile,
    folder: Folder = None,
    engine: Annotated[
        Literal["local", "spark"],
        typer.Option(help="Processes of this machine, or a Spark cluster."),
    ] = "local",
    processes: Annotated[
        int | None,
        typer.Option(min=1, help="Local processes. By default one a core.", show_default=False),
    ] = None,
    bucket_rows: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Events that a process holds at a time. By default 1,000,000.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Turn a log into one row an impression with point-in-time sequences, split by time."""
    from pipelines.preparation.plan import BUCKET_ROWS
    from pipelines.prepare import prepare

    with one_clear_error():
        prepare(
            load_run_config(run_file, folder),
            engine=engine,
            processes=processes,
            bucket_rows=bucket_rows or BUCKET_ROWS,
        )


@app.command()
def audit(
    run_file: RunFile,
    folder: Folder = None,
    sample: Annotated[
        float | None,
        typer.Option(
            help="Share of the users to check, above 0 and at most 1. By default as many as fit "
            "about 5 million raw events.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Check the prepared files against the raw log for leaks. Exit code 1 if there are any."""
    from pipelines.audit import audit

    with one_clear_error():
        report = audit(load_run_config(run_file, folder), sample)
    print(report)
    if not report.passed:
        raise typer.Exit(1)


@app.command()
def check(
    files: Annotated[
        list[str], typer.Argument(help="Files, folders, globs or URLs.", show_default=False)
    ],
    run_file: Annotated[
        Path | None,
        typer.Option(help="Run file that says what the columns are.", show_default=False),
    ] = None,
    size: Annotated[
        list[str] | None,
        typer.Option(help="COLUMN=SIZE: its ids must be below; may be repeated."),
    ] = None,
    as_warning: Annotated[
        list[str] | None, typer.Option(help="A code that shall not fail; may be repeated.")
    ] = None,
    json: Annotated[
        Path | None, typer.Option(help="JSON file of all findings.", show_default=False)
    ] = None,
    show: Annotated[int, typer.Option(min=0, help="Findings to print.")] = 50,
) -> None:
    """Validate prepared files or raw tables. Exit code 1 if there are errors."""
    from pipelines.check import check, sizes_of

    with one_clear_error():
        config = None if run_file is None else load_run_config(run_file)
        report = check(
            files, config=config, sizes=sizes_of(size or []), as_warnings=as_warning or []
        )
        if json is not None:
            report.write_json(json)
    if sys.stdout.isatty():
        Console().print(report.table(show))
        print(report.headline)
    else:
        print("\n".join(report.lines(show)))
    if not report.passed:
        raise typer.Exit(1)


@app.command()
def train(
    run_file: RunFile,
    output: Annotated[Path, typer.Option(help="Folder of the run.", show_default=False)],
    folder: Folder = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the run.")] = 0,
    denoise: Annotated[
        bool | None,
        typer.Option(
            help="Plug-in on or off; by default as the run file says.", show_default=False
        ),
    ] = None,
    arm: Annotated[
        str | None, typer.Option(help="Train this arm of the run file.", show_default=False)
    ] = None,
) -> None:
    """Train one model and score the test rows."""
    from pipelines.train import train

    with one_clear_error():
        config = load_run_config(run_file, folder)
        config = config if arm is None else config.arm(arm)
        config = config if denoise is None else config.with_denoiser(denoise)
        train(config, output, seed=seed, name=arm)


@app.command()
def arms(run_file: RunFile, folder: Folder = None) -> None:
    """Train every arm of the run file over its seeds and put their figures side by side."""
    from pipelines.arms import run_arms, to_markdown

    with one_clear_error():
        table = run_arms(load_run_config(run_file, folder))
    print(to_markdown(table))


@app.command()
def tune(run_file: RunFile, folder: Folder = None) -> None:
    """Search for the settings of every arm of a study on validation rows, same budget for all."""
    from pipelines.tuning import run_tuning, to_markdown

    with one_clear_error():
        tuning = run_tuning(load_run_config(run_file, folder))
    _print_markdown(to_markdown(tuning))


@app.command()
def study(run_file: RunFile, folder: Folder = None) -> None:
    """Tune every arm, train it over seeds and labels, and compare it with control and rivals."""
    from pipelines.study import run_study

    with one_clear_error():
        config = load_run_config(run_file, folder)
        run_study(config)
    _print_markdown((config.folder / "study" / "study.md").read_text(encoding="utf-8"))


@app.command()
def denoising(
    run_file: RunFile,
    folder: Folder = None,
    users: Annotated[int, typer.Option(min=1, help="Users of the simulated logs.")] = 2000,
    items: Annotated[int, typer.Option(min=10, help="Items of the simulated logs.")] = 2000,
    noise_rate: Annotated[
        list[float] | None,
        typer.Option(help="Share of noise; may be repeated. By default 0.1, 0.3, 0.5 and 0.7."),
    ] = None,
) -> None:
    """Measure keep scores on simulated logs, whose noise is known, before and after training."""
    from pipelines.denoising_study import NOISE_RATES, denoising_study, to_markdown

    with one_clear_error():
        table = denoising_study(
            load_run_config(run_file, folder),
            noise_rates=noise_rate or NOISE_RATES,
            num_users=users,
            num_items=items,
        )
    print(to_markdown(table))


@app.command()
def inspect(
    run: Annotated[Path, typer.Argument(help="Folder of a finished run.", show_default=False)],
    output: Annotated[Path, typer.Argument(help="Where to write.", show_default=False)],
    split: Annotated[str, typer.Option(help="Which rows: train, valid or test.")] = "test",
    users: Annotated[int, typer.Option(min=1, help="Users of each kind on the page.")] = 3,
) -> None:
    """Write the keep score of every event of a split, and a page that shows what was denoised."""
    from pipelines.inspection.job import inspect
    from pipelines.inspection.page import headline

    with one_clear_error():
        inspection = inspect(run, output, split=split, num_users=users)
    print(headline(inspection))


@app.command()
def ab(run_file: RunFile, folder: Folder = None) -> None:
    """Train control and treatments over the seeds, give the verdict and write a report."""
    from pipelines.ab import run_ab
    from seqdenoise.evaluation.verdict import headline

    with one_clear_error():
        config = load_run_config(run_file, folder)
        comparison = run_ab(config)
    table = (config.folder / "ab" / "ab.md").read_text(encoding="utf-8")
    if sys.stdout.isatty():
        Console().print(Markdown(table))
    else:
        print(table)
    for arm, one in comparison.arms.items():
        print(headline(one) if len(comparison.arms) == 1 else f"{arm}:\n{headline(one)}")
    print(f"report: {config.folder / 'ab' / 'report.html'}")


@app.command()
def harm(run_file: RunFile, folder: Folder = None) -> None:
    """Compare control and treatment in every setting of the run file: is it worse anywhere?"""
    from pipelines.harm_check import harm_check, to_markdown

    with one_clear_error():
        config = load_run_config(run_file, folder)
        table = harm_check(config)
    text = to_markdown(table, config.ab.confidence)
    if sys.stdout.isatty():
        Console().print(Markdown(text))
    else:
        print(text)
    print(f"figure: {config.folder / 'harm' / 'harm.svg'}")


@app.command()
def compare(
    files: Annotated[
        list[str],
        typer.Argument(
            help="An arm each, the control first: a parquet file with user, label, score and "
            "optionally weight; of several seeds a folder or a quoted glob of files, or NAME=FILE "
            "again and again.",
            show_default=False,
        ),
    ],
    slice_: Annotated[
        list[str] | None,
        typer.Option("--slice", help="Column of the first file to slice by; may be repeated."),
    ] = None,
    metric: Annotated[
        list[str] | None,
        typer.Option(help="AUC, GAUC, log loss, NDCG@10 and others; may be repeated."),
    ] = None,
    key: Annotated[
        str | None,
        typer.Option(
            help="Column that joins the rows of all files. By default `row` where the first file "
            "has it; without one all files have the same rows in the same order.",
            show_default=False,
        ),
    ] = None,
    multiplicity: Annotated[
        Literal["holm", "benjamini-hochberg"],
        typer.Option(help="How p values are corrected for the number of slices."),
    ] = "holm",
    resamples: Annotated[int, typer.Option(min=2, help="Draws of the users.")] = 2000,
    confidence: Annotated[float, typer.Option(help="Of the intervals.")] = 0.95,
    report: Annotated[
        Path | None, typer.Option(help="HTML file of the report.", show_default=False)
    ] = None,
    json: Annotated[
        Path | None, typer.Option(help="JSON file of all figures.", show_default=False)
    ] = None,
) -> None:
    """Compare anybody's score files: the verdict of `ab` on models trained elsewhere."""
    from pipelines.compare_files import METRICS, compare_files

    with one_clear_error():
        found = compare_files(
            files,
            slices=slice_ or (),
            metrics=metric or METRICS,
            key=key,
            multiplicity=multiplicity,
            num_resamples=resamples,
            confidence=confidence,
            report=report,
            json_file=json,
        )
    if sys.stdout.isatty():
        Console().print(Markdown(found.to_markdown()))
    else:
        print(found.to_markdown())
    print(found.headline())


@app.command()
def export(
    run: Annotated[Path, typer.Argument(help="Folder of a finished run.", show_default=False)],
    output: Annotated[Path, typer.Argument(help="Folder of the SavedModel.", show_default=False)],
) -> None:
    """Export a run's ranker, without the plug-in, as a SavedModel that takes raw ids."""
    from pipelines.export import export

    with one_clear_error():
        export(run, output)


@app.command()
def coverage(
    experiments: Annotated[
        int, typer.Option(min=20, help="A/Bs without a difference, and as many with one.")
    ] = 400,
    resamples: Annotated[int, typer.Option(min=2, help="Draws of the users in each.")] = 300,
    metric: Annotated[
        list[str] | None,
        typer.Option(help="Repeat for several; without it the six of `ab`.", show_default=False),
    ] = None,
    output: Annotated[
        Path | None, typer.Option(help="JSON file of all figures.", show_default=False)
    ] = None,
) -> None:
    """Count on simulated A/Bs how often intervals cover and promised gains are found."""
    from pipelines.coverage_study import METRICS, coverage_study, to_markdown

    with one_clear_error():
        report = coverage_study(
            metrics=metric or METRICS,
            num_experiments=experiments,
            num_resamples=resamples,
            output=output,
        )
    print(to_markdown(report))


if __name__ == "__main__":
    _log_to_stderr()
    app()
