"""Plain-loop float64 references of the views. They import nothing of ours."""


def pooled_view(x, mask, kept, *, over_kept_events=False, scale=1.0):
    """Mean of what a view keeps of each row's real events.

    `x` and `kept` are `[B, L, D]`, `mask` `[B, L]`. The mean is over all real events, or over those
    of which the view keeps something.
    """
    rows, length, size = len(x), len(x[0]), len(x[0][0])
    view = [[0.0] * size for _ in range(rows)]
    for i in range(rows):
        real = [event for event in range(length) if mask[i][event]]
        counted = [event for event in real if any(kept[i][event])] if over_kept_events else real
        for d in range(size):
            seen = [float(x[i][event][d]) for event in real if kept[i][event][d]]
            if seen:
                view[i][d] = scale * sum(seen) / len(counted)
    return view


def correlated_half(fields, information, seed_field):
    """The seed field and the fields that know most about it, half of all in number."""
    half = [seed_field]
    while len(half) < len(fields) // 2:
        best = None
        for field in sorted(fields):
            if field not in half and (
                best is None or information[seed_field][field] > information[seed_field][best]
            ):
                best = field
        half.append(best)
    return half
