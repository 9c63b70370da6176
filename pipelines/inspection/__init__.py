"""What a trained run makes of the events of a log: keep scores, distances, a page to read."""
