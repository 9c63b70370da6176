"""The single checks of `seqdenoise.self_check`, one question a file."""
