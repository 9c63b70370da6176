"""The file of everything that a job measured."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from seqdenoise.data.atomic import atomic_file


def write_json_report(report: Mapping[str, Any], output: Path | None) -> None:
    """Writes a report as JSON, whole or not at all; nothing where there is no `output`.

    Args:
        report: What was measured, of plain types.
        output: The file; its folder is made where missing.
    """
    if output is None:
        return
    with atomic_file(output) as aside:
        aside.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
