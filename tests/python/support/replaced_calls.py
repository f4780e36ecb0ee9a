"""Puts other functions in place of system calls, in the modules under test only."""

import contextlib
import os
import types
from unittest import mock


def replaced(modules, calls, others=()):
    """Returns a context in which `os` of the modules has these functions, by name.

    `others` are (holder, name, function): functions of other modules and classes to replace.
    """
    fake = types.ModuleType("os")
    fake.__dict__.update(os.__dict__, **calls)
    stack = contextlib.ExitStack()
    for holder, name, new in [*((module, "os", fake) for module in modules), *others]:
        stack.enter_context(mock.patch.object(holder, name, new))
    return stack


class Steps:
    """Counts the system calls of the functions under test, and acts at one of them.

    A class derived from it names the calls. Used as a context manager.
    """

    MODULES = ()
    """Modules under test, whose `os` is replaced."""
    CALLS = ()
    """Functions of the module os."""
    OTHERS = ()
    """Other functions: (name of the step, holder, name)."""

    def __init__(self, at=0, act=None, to_the_end=False):
        """`act(name, function, args)` is called instead of call number `at`, from 1 on; with
        `to_the_end`, instead of all later ones too."""
        self.count = 0
        self.names = []
        self.at, self.act, self.to_the_end = at, act, to_the_end

    def __enter__(self):
        calls = {name: self._counted(name, getattr(os, name)) for name in self.CALLS}
        others = [
            (holder, name, self._counted(step, getattr(holder, name)))
            for step, holder, name in self.OTHERS
        ]
        self._replaced = replaced(self.MODULES, calls, others)
        return self

    def __exit__(self, *_):
        self._replaced.close()

    def _counted(self, name, function):
        def call(*args, **options):
            self.count += 1
            self.names.append(name)
            if self.count == self.at or (self.to_the_end and 0 < self.at < self.count):
                return self.act(name, lambda *given: function(*given, **options), args)
            return function(*args, **options)

        return call
