"""The compiled part of what a load or save of one file does not need."""

from ._compiled import load

load(__name__)
