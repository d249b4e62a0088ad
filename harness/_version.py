"""Hold the version, in the one place where the build, the package and the command read it."""

__version__ = "0.1.0"
