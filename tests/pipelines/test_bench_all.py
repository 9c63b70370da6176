import json
import sys
from dataclasses import dataclass

import pytest
from typer.testing import CliRunner

from pipelines.bench_all import BENCHMARKS, Benchmark, bench_all, to_markdown
from pipelines.config import ConfigError


@dataclass(frozen=True)
class Scripted(Benchmark):
    """A program of a few lines in the place of a benchmark."""

    code: str = ""

    def command(self, *, quick):
        return ["-c", self.code, *(self.quick if quick else ())]


REPORTS = """
import json, pathlib, sys
arguments = sys.argv[1:]
output = pathlib.Path(arguments[arguments.index("--output") + 1])
output.write_text(json.dumps({"arguments": arguments}))
if "--figure" in arguments:
    pathlib.Path(arguments[arguments.index("--figure") + 1]).write_text("<svg/>")
print("| a | table |")
"""
FAILS = "import sys; print('half a table'); sys.exit('error: no room left')"


def headline(report):
    return f"{len(report['arguments'])} arguments"


PROGRAMS = (
    Scripted("one", headline, ("--small",), figure="one.svg", code=REPORTS),
    Scripted("broken", headline, (), code=FAILS),
    Scripted("two", headline, (), code=REPORTS),
)


def test_all_are_run_and_one_page_is_written(tmp_path, capfd, monkeypatch):
    monkeypatch.chdir(tmp_path)
    report = bench_all(tmp_path.relative_to(tmp_path) / "out", quick=True, benchmarks=PROGRAMS)
    folder = tmp_path / "out"
    assert {path.name for path in folder.iterdir()} == {
        "benchmarks.json", "benchmarks.md", "one.json", "one.svg", "two.json",
    }  # fmt: skip
    assert json.loads((folder / "benchmarks.json").read_text("utf-8")) == report
    rows = report["benchmarks"]
    assert list(rows) == ["one", "broken", "two"]
    assert rows["one"]["report"]["arguments"][0] == "--small"
    assert rows["one"]["headline"] == "5 arguments"
    assert rows["broken"]["error"] == "exit status 1: error: no room left"
    assert "error: no room left" in capfd.readouterr().err
    page = (folder / "benchmarks.md").read_text("utf-8")
    assert "| one | 5 arguments | " in page
    assert "| broken | failed: exit status 1: error: no room left | " in page
    assert "\nhalf a table" not in page
    assert "| a | table |\n\n![one](one.svg)\n" in page
    assert "A quick run of 0 minutes on " in page
    assert str(tmp_path) not in page
    assert page.startswith("# Benchmarks\n\n" + to_markdown(report))


def test_some_alone(tmp_path):
    report = bench_all(tmp_path, only=["two"], benchmarks=PROGRAMS)
    assert list(report["benchmarks"]) == ["two"]
    assert report["benchmarks"]["two"]["report"]["arguments"][0] == "--output"
    with pytest.raises(ConfigError, match=r"only: expected names of .* Received: \['three'\]"):
        bench_all(tmp_path, only=["three"], benchmarks=PROGRAMS)


def test_one_that_leaves_no_report_has_failed_and_the_others_run(tmp_path):
    (tmp_path / "silent.json").write_text('{"arguments": []}')  # of another run
    silent = Scripted("silent", headline, (), code="pass")
    rows = bench_all(tmp_path, benchmarks=(silent, PROGRAMS[2]))["benchmarks"]
    assert rows["silent"]["error"].startswith("exit status 0")
    assert "error" not in rows["two"]


@pytest.mark.tfrs
@pytest.mark.parametrize("one", BENCHMARKS, ids=lambda one: one.name)
@pytest.mark.parametrize("quick", [False, True])
def test_the_command_line_takes_what_is_asked_of_it(one, quick, tmp_path, monkeypatch):
    """Its options are read and handed on; the work itself is left out."""
    from pipelines.bench_commands import benchmarks

    given = {}

    def measure(*arguments, **options):
        given.update(options)
        return {}

    module = __import__(f"pipelines.bench_{one.name}", fromlist=["to_markdown"])
    monkeypatch.setattr(module, f"bench_{one.name}", measure)
    printer = sys.modules["pipelines.contest"] if not hasattr(module, "to_markdown") else module
    monkeypatch.setattr(printer, "to_markdown", lambda report: "a table")
    *_, name = one.command(quick=False)
    assert name == one.name
    arguments = [*one.command(quick=quick)[3:], "--output", str(tmp_path / "a.json")]
    if one.figure is not None:
        arguments += ["--figure", str(tmp_path / one.figure)]
    result = CliRunner().invoke(benchmarks, arguments)
    assert result.exit_code == 0, result.output
    assert "a table" in result.output
    assert given["output"] == tmp_path / "a.json"
    if "--rounds" in one.quick and quick:
        assert given["rounds"] == int(one.quick[one.quick.index("--rounds") + 1])


def test_a_failure_is_the_commands_exit_code(tmp_path, monkeypatch):
    from pipelines import bench_all as job
    from pipelines.bench_commands import benchmarks

    for rows, status in (
        ({"one": {"headline": "fine", "seconds": 1.0}}, 0),
        ({"one": {"error": "exit status 1: no", "seconds": 1.0}}, 1),
    ):
        report = {
            "machine": {"cores": 2, "processor": "chip", "python": "3", "settings": {}},
            "versions": {}, "quick": False, "seconds": 60.0, "benchmarks": rows,
        }  # fmt: skip
        monkeypatch.setattr(job, "bench_all", lambda *_, report=report, **__: report)
        result = CliRunner().invoke(benchmarks, ["all", str(tmp_path)])
        assert result.exit_code == status
        assert "A run of 1 minutes" in result.output
