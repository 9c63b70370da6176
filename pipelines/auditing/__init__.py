"""Parts of the leakage audit."""
