"""Errors of a job whose inputs are fine: the message says what to do before it is run again."""


class JobError(RuntimeError):
    """A job that could not finish; what it has finished is kept."""


class WorkerDiedError(JobError):
    """A process of the job ended without an answer: killed, most likely for memory."""


class FolderInUseError(JobError):
    """Another process is at work in the folder."""


class DiskFullError(JobError):
    """There was no room to write."""


class DivergedError(JobError):
    """A training whose scores are no numbers any more."""
