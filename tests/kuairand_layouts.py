"""A tiny KuaiRand-Pure in both published layouts, shared by the tests that import it."""

import csv

import pyarrow as pa
import pyarrow.parquet as pq

LOG = "log_standard_4_25_to_5_08_pure.parquet"
HISTORY_FILE = "user_history_to_4_24_pure.parquet"
EARLY_LOG, LATE_LOG = "log_standard_4_08_to_4_21_pure.csv", "log_standard_4_22_to_5_08_pure.csv"
USER_FILE, VIDEO_FILE = "user_features_pure.csv", "video_features_basic_pure.csv"
LOG_COLUMNS = [
    *("user_id", "video_id", "date", "hourmin", "time_ms", "is_click", "is_like", "is_follow"),
    *("is_comment", "is_forward", "is_hate", "long_view", "play_time_ms", "duration_ms"),
    *("profile_stay_time", "comment_stay_time", "is_profile_enter", "is_rand", "tab"),
]
# 2022-04-25T00:00+08:00 and two more midnights there.
APRIL_20, APRIL_25, APRIL_26 = 1_650_384_000_000, 1_650_816_000_000, 1_650_902_400_000
HOUR = 3_600_000


def log_row(user, video, date, time_ms, tab=1, duration=9000, **flags):
    # Outcome columns are filled with values that must not turn up anywhere.
    row = dict.fromkeys(LOG_COLUMNS, 0)
    row |= {"user_id": user, "video_id": video, "date": date, "time_ms": time_ms, "tab": tab}
    row |= {"duration_ms": duration, "play_time_ms": 777, "comment_stay_time": 778, "hourmin": 1300}
    assert set(flags) <= set(LOG_COLUMNS)
    return row | flags


EARLY = [
    log_row(0, 5, 20220420, APRIL_20 + 7, is_click=1, is_comment=1),
    log_row(2, 6, 20220420, APRIL_20 + 9, is_follow=1),
]
LATE = [
    log_row(0, 6, 20220426, APRIL_26 + 3 * HOUR, tab=4, is_click=1, long_view=1, is_like=1),
    log_row(
        0, 6, 20220426, APRIL_26 + 3 * HOUR, tab=4, is_click=1, long_view=1, is_like=1
    ),  # twice
    log_row(3, 5, 20220425, APRIL_25 - HOUR, duration=0, is_forward=1),  # dated a day ahead
    log_row(0, 7, 20220425, APRIL_25 + 5, is_hate=1, is_profile_enter=1),
    log_row(0, 7, 20220425, APRIL_25 + 5, is_hate=1, is_profile_enter=1, hourmin=1400),  # not equal
]
HISTORY = [
    {"user_id": 0, "history_len": 70, "last_time_ms": APRIL_25 - 1, "watch_seq": [7, 7, 5]}
    | {"like_seq": [], "long_watch_seq": [5]},
    # Ends at the very time of the user's first row in the log.
    {"user_id": 3, "history_len": 9, "last_time_ms": APRIL_25 - HOUR, "watch_seq": [6]}
    | {"like_seq": [6], "long_watch_seq": [6]},
    {"user_id": 1, "history_len": 1, "last_time_ms": APRIL_20, "watch_seq": [6]}
    | {"like_seq": [6], "long_watch_seq": None},
]
USER_HEADER = (
    "user_id,user_active_degree,is_lowactive_period,is_live_streamer,is_video_author,"
    "follow_user_num,follow_user_num_range,fans_user_num,fans_user_num_range,friend_user_num,"
    "friend_user_num_range,register_days,register_days_range,"
    + ",".join(f"onehot_feat{i}" for i in range(18))
)
USERS = f"""{USER_HEADER}
0,full_active,0,-124,1,514,500+,150,"[100,1k)",34,"[30,60)",799,730+,1,1,29,949,1.0,0,0,14,135,6,3,0,0.0,1.0,0.0,0.0,0.0,0.0
3,UNKNOWN,0,1,-124,0,0,0,0,0,0,20,15-30,0,1,2,3,,5,6,7,8,9,10,11,,,,,,
9,high_active,0,0,0,1,"(0,10]",2,"[1,10)",3,"[1,5)",400,366-730,0,0,0,0,0.0,0,0,0,0,0,0,0,1.0,1.0,1.0,1.0,1.0,1.0
"""
VIDEOS = """\
video_id,author_id,video_type,upload_dt,upload_type,visible_status,video_duration,server_width,\
server_height,music_id,music_type,tag
5,7349781,NORMAL,2022-04-10,LongImport,0.0,87433.0,720.0,1280.0,9155697141,9.0,39
6,9007199254740993,AD,1970-01-02,Web,0.0,,720.0,1280.0,9007199254740993.0,,"20,43"
7,1,NORMAL,2022-04-11,Web,0.0,1.5,720.0,1280.0,,4.0,
"""


def write_csv(path, rows):
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, LOG_COLUMNS)
        writer.writeheader()
        writer.writerows(rows)


def write_log(path, rows):
    pq.write_table(pa.Table.from_pylist(rows), path)


def write_history(path, rows=HISTORY):
    ids = pa.list_(pa.int64())
    schema = pa.schema(
        [("user_id", pa.int64()), ("history_len", pa.int64()), ("last_time_ms", pa.int64())]
        + [(name, ids) for name in ("watch_seq", "like_seq", "long_watch_seq")]
    )
    pq.write_table(pa.Table.from_pylist(rows, schema), path)


def write_subset(home):
    """The four files of the subset, hand-written."""
    home.mkdir(parents=True)
    write_log(home / LOG, LATE)
    write_history(home / HISTORY_FILE)
    (home / USER_FILE).write_text(USERS)
    (home / VIDEO_FILE).write_text(VIDEOS)


def write_official(home):
    """The official files beside a random log that must not be read."""
    home.mkdir(parents=True)
    write_csv(home / EARLY_LOG, EARLY)
    write_csv(home / LATE_LOG, LATE)
    # Would be a hundred random impressions, if it were read.
    random = [log_row(0, 5, 20220430, APRIL_26, is_rand=1, tab=t) for t in range(100)]
    write_csv(home / "log_random_4_22_to_5_08_pure.csv", random)
    (home / USER_FILE).write_text(USERS)
    (home / VIDEO_FILE).write_text(VIDEOS)
