"""Batch jobs around the library; run `python -m pipelines --help`."""
