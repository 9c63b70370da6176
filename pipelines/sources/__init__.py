"""Published log layouts turned into the event, impression and history tables."""
