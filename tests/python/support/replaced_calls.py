"""Puts other functions in place of system calls, in the modules under test only: counts the calls,
and kills, fails or interrupts the work at one of them."""

import contextlib
import os
import signal
import types
from unittest import mock

from support import libc_calls


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
    LIBC = types.MappingProxyType({})
    """Functions of the C library that the compiled module calls, by name: a function that returns
    the name of the step from the arguments, or None if the call is no step."""

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
        if self.LIBC:
            of_libc = {name: self._counted_of_libc(step) for name, step in self.LIBC.items()}
            self._replaced.enter_context(libc_calls.replaced(of_libc))
        return self

    def __exit__(self, *_):
        self._replaced.close()

    def _counted(self, name, function):
        def call(*args, **options):
            return self._step(name, lambda *given: function(*given, **options), args)

        return call

    def _counted_of_libc(self, step):
        def call(function, args):
            name = step(*args)
            return function(*args) if name is None else self._step(name, function, args)

        return call

    def _step(self, name, function, args):
        self.count += 1
        self.names.append(name)
        if self.count == self.at or (self.to_the_end and 0 < self.at < self.count):
            return self.act(name, function, args)
        return function(*args)


# What happens at a step: the `act` of Steps.

_WRITTEN = {"write": 1, "pwrite": 1, "write file": 2, "save": 0}
"""Which argument of a step is what it writes."""


def kill(*_):
    """Ends the process as a kill does."""
    os.kill(os.getpid(), signal.SIGKILL)


def kill_within(name, function, args):
    """Writes a part of the bytes, or of the tensors; does all of what writes none. Then kills."""
    at = _WRITTEN.get(name)
    if name == "C write":  # of an address
        args = (*args[:2], args[2] // 2, args[3])
    elif at is not None:
        part = {} if isinstance(args[at], dict) else bytes(args[at])[: len(args[at]) // 2]
        args = (*args[:at], part, *args[at + 1 :])
    with contextlib.suppress(OSError):
        function(*args)
    kill()


def kill_after(_, function, args):
    function(*args)
    kill()


def fail(number):
    """Returns a function that fails as a system call."""

    def call(name, function, args):
        if name == "remove private":  # what is left is removed by a recovery
            return function(*args)
        raise OSError(number, os.strerror(number))

    return call


def interrupt_before(*_):
    """Raises as Ctrl-C does, before the call."""
    raise KeyboardInterrupt


def interrupt_after(name, function, args):
    """Raises as Ctrl-C does, after the call."""
    if name == "make private":  # Python raises when the caller has the result
        raise KeyboardInterrupt
    with contextlib.suppress(OSError):
        function(*args)
    raise KeyboardInterrupt


def is_killed(steps, work):
    """Does `work()` with these steps in a forked process; returns whether they killed it.

    Requires: this process has no threads.
    """
    child = os.fork()
    if child == 0:
        with contextlib.suppress(BaseException), steps:
            work()
        os._exit(0)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert status in (0, -signal.SIGKILL), status
    return status != 0
