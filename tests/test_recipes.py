"""The recipes of docs/plugging_in.md run as printed, in every Keras generation their host runs in.

All of one generation share a fresh process; what must hold afterwards is in recipes/checks.py.
"""

import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from recipes.page import PAGE, read_blocks

ROOT = Path(__file__).parents[1]
GENERATION = "legacy Keras" if os.environ.get("TF_USE_LEGACY_KERAS") == "1" else "Keras 3"
RECIPES = {name: block for name, block in read_blocks().items() if block.runs_in}
# What a recipe plugs into, where that is a package of its own.
PACKAGES = {
    "tfrs": "tensorflow_recommenders",
    "din": "deepctr",
    "bst": "deepctr",
    "keras_rs": "keras_rs",
}
MARKS = {
    "tensorflow_recommenders": pytest.mark.tfrs,
    "deepctr": pytest.mark.deepctr,
    "keras_rs": pytest.mark.keras_rs,
}
# Devices are split before TensorFlow starts.
OWN_PROCESS = ("distribute",)

pytestmark = pytest.mark.slow


def runs_here(name):
    package = PACKAGES.get(name)
    return GENERATION in RECIPES[name].runs_in and (
        package is None or importlib.util.find_spec(package) is not None
    )


def failures(names, output):
    """What went wrong with each recipe, in a process of their own."""
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT / "tests"),
        # DeepCTR asks a package registry for its newest version when it is imported; not in a test.
        "HTTPS_PROXY": "http://127.0.0.1:9",
    }
    command = [sys.executable, "-W", "error::UserWarning", "-m", "recipes.run", str(output), *names]
    process = subprocess.run(
        command, check=False, capture_output=True, text=True, cwd=ROOT, env=environment
    )
    assert process.returncode == 0, process.stderr[-3000:]
    return json.loads(output.read_text())


@pytest.fixture(scope="module")
def failure_of(tmp_path_factory):
    folder = tmp_path_factory.mktemp("recipes")
    here = [name for name in RECIPES if runs_here(name)]
    groups = [[name for name in here if name not in OWN_PROCESS]]
    groups += [[name] for name in here if name in OWN_PROCESS]
    found = {}
    for i, names in enumerate(groups):
        found |= failures(names, folder / f"{i}.json")
    return found


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[MARKS[PACKAGES[name]]] if name in PACKAGES else [])
        for name in RECIPES
    ],
)
def test_recipe_runs_and_holds_what_it_promises(name, failure_of):
    if GENERATION not in RECIPES[name].runs_in:
        pytest.skip(f"its host does not run in {GENERATION}")
    if not runs_here(name):
        pytest.skip(f"needs {PACKAGES[name]}")
    assert failure_of[name] is None, failure_of[name]


def test_the_table_says_where_each_recipe_runs():
    page = PAGE.read_text(encoding="utf-8")
    headings = {
        re.sub(r"[^a-z0-9 -]", "", heading.lower()).replace(" ", "-"): place
        for place, heading in ((m.start(), m[1]) for m in re.finditer(r"^## (.*)$", page, re.M))
    }
    rows = re.findall(r"^\| \[[^]]*\]\(#([^)]*)\) \| (yes|no) \| (yes|no) \|$", page, re.M)
    assert len(rows) > 5
    stated = {}
    for anchor, *answers in rows:
        generations = ("Keras 3", "legacy Keras")
        named = tuple(g for g, answer in zip(generations, answers, strict=True) if answer == "yes")
        stated[anchor] = named
    found = {}
    for name, block in RECIPES.items():
        place = page.index(f"<!-- block: {name} ")
        anchor = max((p, a) for a, p in headings.items() if p < place)[1]
        assert found.setdefault(anchor, block.runs_in) == block.runs_in
    assert found == stated
