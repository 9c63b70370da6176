"""What a benchmark ran on."""

import os
import platform
import re
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any


def machine() -> dict[str, Any]:
    """`processor`, `cores` and the `python` version of this machine."""
    name = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.is_file():
        match = re.search(r"^model name\s*:\s*(.+)$", cpuinfo.read_text("utf-8"), re.MULTILINE)
        name = name if match is None else match[1]
    return {"processor": name, "cores": os.cpu_count(), "python": platform.python_version()}


def versions(distributions: Sequence[str]) -> dict[str, str]:
    """The versions of those distributions that are installed."""
    found = {}
    for name in distributions:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found
