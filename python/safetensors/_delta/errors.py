"""The errors of patches. The compiled module imports them when it raises one."""

from .._core import SafetensorError

# Pickles have the public names.
_MODULE = "safetensors.delta"


class PatchError(SafetensorError, ValueError):
    """A patch that is damaged or not applicable."""

    __module__ = _MODULE


class WrongBaseError(PatchError):
    """A tensor that a patch does not belong to."""

    __module__ = _MODULE


class AlreadyAppliedError(PatchError):
    """A tensor that a patch was applied to already."""

    __module__ = _MODULE
