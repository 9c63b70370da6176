"""Logs: event tables, point-in-time sequences, parquet input and simulation."""
