"""Exit statuses, and the error that ends a command."""

NEGATIVE = 1
"""Exit status if the answer is no: a file is damaged, or two models differ."""
TROUBLE = 2
"""Exit status of a command that failed."""


class CliError(Exception):
    """A one-line message for the user. It ends the command with status TROUBLE."""


def no_weight_layer(error: ImportError) -> CliError:
    """Returns the error for a build whose weight layer cannot be imported."""
    return CliError(f"this build has no weight layer: {error}")


def need_numpy(what: str) -> None:
    """Raises CliError if NumPy, which this command or option needs, is not installed."""
    try:
        import numpy  # noqa: F401
    except ImportError:
        raise CliError(f"{what} needs NumPy: pip install numpy") from None
