"""The one exception for bad input data, so that jobs can tell it from a bug."""


class DataError(ValueError):
    """Input data that cannot be used.

    The message says what was expected, then "Received:" with what came, and names the place: file,
    row group, column or row.
    """
