"""The errors that a failed save must raise."""

import os

import pytest

from safetensors import SafetensorError


def refused(call, kind, number):
    """Checks that the call raises a SafetensorError that is also this OSError."""
    with pytest.raises(SafetensorError) as caught:
        call()
    error = caught.value
    assert isinstance(error, kind)
    assert isinstance(error, OSError)
    assert error.errno == number
    text = f"Error while serializing: I/O error: {os.strerror(number)} (os error {number})"
    assert str(error).startswith(text)
