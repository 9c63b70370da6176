"""The report of an A/B: one page that needs nothing else."""
