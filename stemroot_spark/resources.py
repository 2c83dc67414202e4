"""Files carried inside the package: table schemas and the defaults of the configuration."""

from __future__ import annotations

from importlib.resources import files


def read_text(folder: str, name: str) -> str:
    """Text of a packaged file; works from a checkout, a wheel and a zip.

    Raises FileNotFoundError where the package does not carry it.
    """
    return files("stemroot_spark").joinpath(folder).joinpath(name).read_text(encoding="utf-8")


def list_names(folder: str, suffix: str) -> list[str]:
    """Sorted names of the packaged files of a folder that end in ``suffix``."""
    entries = files("stemroot_spark").joinpath(folder).iterdir()
    return sorted(entry.name for entry in entries if entry.name.endswith(suffix))
