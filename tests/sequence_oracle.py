"""The sequence rules by definition: plain Python, one impression and one event at a time."""

import pyarrow as pa

TYPES = ("click", "cart")
INTEGERS = pa.int64()
BRANDS = {0: "a", 1: None, 2: "c", 2**60 + 1: "d"}


def events_table(rows, time=INTEGERS):
    """rows: (user, item, type, timestamp), each with its row number as value column."""
    users, items, types, times = zip(*rows, strict=True) if rows else ((), (), (), ())
    return pa.table(
        {
            "user": pa.array(users, pa.int64()),
            "item": pa.array(items, pa.int64()),
            "type": pa.array(types, pa.string()),
            "timestamp": pa.array(times, time),
            "price": pa.array([row / 4 if row % 3 else None for row in range(len(rows))]),
            "row": pa.array(range(len(rows)), pa.int16()),
        }
    )


def impressions_table(rows, time=INTEGERS):
    users, times = zip(*rows, strict=True) if rows else ((), ())
    return pa.table({"user": pa.array(users, pa.int64()), "timestamp": pa.array(times, time)})


def histories_table(rows):
    users, types, items = zip(*rows, strict=True) if rows else ((), (), ())
    return pa.table(
        {
            "user": pa.array(users, pa.int64()),
            "type": pa.array(types, pa.string()),
            "items": pa.array(items, pa.list_(pa.int64())),
        }
    )


def known_events(user, now, events, rules, ticks):
    """(row, item, type, time) of a user's events before an impression, oldest to newest.

    Times are in ticks of the finer unit; an event's has `ticks` of them.
    """
    known = []
    for row, (owner, item, kind, time) in enumerate(events):
        before = time * ticks < now or (rules.ties == "include" and time * ticks == now)
        if owner == user and kind in rules.types and before:
            known.append((row, item, kind, time * ticks))
    # sorted() is stable, so equal times keep the order of the log.
    return sorted(known, key=lambda event: event[3])


def sessions_ago(known, now, gap):
    """For each event's row how many sessions before the one going on it lies."""
    ago, sessions = {}, 0
    later = now
    for row, _, _, time in reversed(known):
        sessions += later - time > gap
        ago[row] = sessions
        later = time
    return ago


def without_duplicates(entries, how):
    """entries: (item, time, row), oldest to newest; row None for histories."""
    kept = []
    for index, (item, time, row) in enumerate(entries):
        if how == "exact":
            earlier = [entry[:2] for entry in entries[:index] if entry[2] is not None]
            drop = row is not None and (item, time) in earlier
        elif how == "consecutive":
            drop = entries[index + 1 : index + 2] and entries[index + 1][0] == item
        else:
            drop = how == "item" and item in [entry[0] for entry in entries[index + 1 :]]
        if not drop:
            kept.append((item, time, row))
    return kept


def expected_lists(impressions, events, histories, rules, kind, event_ticks=1, shown_ticks=1):
    """The definition, one impression and one event at a time."""
    result = {"item": [], "brand": [], "price": [], "row": [], "timestamp": []}
    result |= {"age": [], "session": []}
    for user, at in impressions:
        now = at * shown_ticks
        seen = []
        for owner, of_type, items in histories:
            if owner == user and of_type == kind:
                seen += [(item, None, None) for item in items or []]
        known = known_events(user, now, events, rules, event_ticks)
        seen += [(item, time, row) for row, item, of_type, time in known if of_type == kind]
        seen = without_duplicates(seen, rules.deduplicate)
        if rules.max_age is not None:
            oldest = now - rules.max_age * event_ticks
            seen = [entry for entry in seen if entry[2] is not None and entry[1] >= oldest]
        seen = seen[-rules.max_length :]
        ago = sessions_ago(known, now, (rules.session_gap or 0) * event_ticks)
        rows = [row for _, _, row in seen]
        result["item"].append([item for item, _, _ in seen])
        result["brand"].append([BRANDS.get(item) for item, _, _ in seen])
        result["row"].append(rows)
        result["price"].append([row / 4 if row is not None and row % 3 else None for row in rows])
        result["timestamp"].append([None if row is None else events[row][3] for row in rows])
        result["age"].append([None if row is None else now - time for _, time, row in seen])
        result["session"].append([ago.get(row) for row in rows])
    return result
