"""The version of the package, for pyproject.toml too."""

__version__ = "0.1.0"
