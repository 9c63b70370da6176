"""Parts of the validator of parquet files."""
