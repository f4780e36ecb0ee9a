"""The compiled part of safetensors.weights."""

from ._compiled import load

load(__name__)
