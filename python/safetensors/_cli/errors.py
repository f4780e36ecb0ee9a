"""Exit statuses, and the error that ends a command."""

NEGATIVE = 1
"""Exit status if the answer is no: a file is damaged, or two models differ."""
TROUBLE = 2
"""Exit status of a command that failed."""


class CliError(Exception):
    """A one-line message for the user. It ends the command with status TROUBLE."""
