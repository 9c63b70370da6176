"""Runs recipes of docs/plugging_in.md in this process, one after the other, each with its check.

    PYTHONPATH=tests python -W error::UserWarning -m recipes.run OUTPUT NAME...

Writes JSON: for each recipe a traceback, or null where all went well.
"""

import json
import sys
import traceback
from pathlib import Path

import tensorflow as tf
from recipes import checks
from recipes.page import run_block


def failure(name: str) -> str | None:
    """The traceback of a recipe or its check, or None."""
    tf.keras.backend.clear_session()
    tf.keras.utils.set_random_seed(0)
    try:
        getattr(checks, f"check_{name}")(run_block(name))
    except Exception:
        return traceback.format_exc()
    return None


if __name__ == "__main__":
    output, *recipes = sys.argv[1:]
    Path(output).write_text(json.dumps({name: failure(name) for name in recipes}))
