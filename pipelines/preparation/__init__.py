"""`prepare` in two stages: parts of the log to user buckets, then bucket by bucket to rows."""
