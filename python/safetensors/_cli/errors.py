"""What a command ends with when it cannot go on."""

NEGATIVE = 1
"""Status of an answer that is no: a damaged file, a difference."""
TROUBLE = 2
"""Status of a command that could not do its work."""


class CliError(Exception):
    """One line for the user. It ends the command with status TROUBLE."""
