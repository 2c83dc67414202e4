"""One tree of errors: each has a stable code, the exit code of a job that ends with it, and a remedy."""

from __future__ import annotations


class StemRootError(Exception):
    """Base of every error a user may see; the message says what, where and what to do about it."""

    code = "internal"
    exit_code = 1


class UsageError(StemRootError):
    """A flag or an option is missing, unknown or out of its domain."""

    code = "usage"
    exit_code = 2


class ConfigError(UsageError):
    """A configuration file or a ``--set`` override is malformed or names an unknown key."""

    code = "config"


class UnknownIdError(UsageError):
    """A run, plan or results id is not in the warehouse."""

    code = "unknown-id"


class FingerprintMismatchError(UsageError):
    """An id was already computed with other options or other input."""

    code = "fingerprint-mismatch"


class EnvironmentSetupError(UsageError):
    """Spark, Delta Lake or Java is missing or of a version that does not work."""

    code = "environment"


class SourceError(StemRootError):
    """A trace source cannot be read."""

    code = "source"


class DataError(StemRootError):
    """Rows handed to a stage contradict what the stage needs (columns, order, domain)."""

    code = "data"


class TooManyBadSourcesError(SourceError):
    """More sources were quarantined than ``--max-bad-fraction`` allows."""

    code = "bad-fraction"


class ConcurrentWriteError(StemRootError):
    """Another writer of the same id was first, or conflicts did not end within the retries."""

    code = "conflict"
