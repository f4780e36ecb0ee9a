"""The event loop thread: results, cancelling, forks, and the end of the process."""

import asyncio
import concurrent.futures
import os
import subprocess
import sys
import textwrap
import threading
import time

import pytest

from safetensors._remote import loop


async def slow():
    """Lasts longer than a test may."""
    await asyncio.sleep(60)


async def double(number):
    """Returns twice the number, from the loop's thread."""
    await asyncio.sleep(0)
    return 2 * number, threading.current_thread().name


def run_script(text, **options):
    """Runs a script in a process of its own, and returns its output."""
    command = [
        sys.executable,
        "-c",
        "from safetensors._remote import loop\n" + textwrap.dedent(text),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=10, **options)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout


def test_one_thread_runs_the_calls_of_all():
    calls = loop.Calls()
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        results = list(pool.map(lambda number: calls.run(double(number)), range(100)))
    assert [doubled for doubled, _ in results] == [2 * number for number in range(100)]
    assert {name for _, name in results} == {"safetensors"}


def test_an_error_comes_out():
    async def fail():
        raise KeyError("x")

    with pytest.raises(KeyError, match="x"):
        loop.Calls().run(fail())


def test_cancel_ends_the_calls_under_way_and_no_others():
    mine, other = loop.Calls(), loop.Calls()
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        cancelled = [pool.submit(mine.run, slow()) for _ in range(3)]
        kept = pool.submit(other.run, asyncio.sleep(0.5, "kept"))
        time.sleep(0.2)
        began = time.monotonic()
        mine.cancel()
        for call in cancelled:
            with pytest.raises(concurrent.futures.CancelledError):
                call.result(30)
        assert time.monotonic() - began < 30
        assert kept.result(30) == "kept"
    assert mine.run(double(2))[0] == 4


def test_ctrl_c_ends_a_call():
    script = """
        import asyncio, os, signal, threading, time
        cancelled = threading.Event()
        async def slow():
            try:
                await asyncio.sleep(60)
            finally:
                cancelled.set()
        signal.signal(signal.SIGINT, signal.default_int_handler)
        threading.Timer(0.3, os.kill, [os.getpid(), signal.SIGINT]).start()
        began = time.monotonic()
        try:
            loop.Calls().run(slow())
        except KeyboardInterrupt:
            print(cancelled.wait(30), time.monotonic() - began < 30)
    """
    assert run_script(script) == "True True\n"


def test_the_interpreter_ends_while_calls_are_under_way():
    script = """
        import asyncio, os, threading, time
        def call():
            try:
                loop.Calls().run(asyncio.sleep(60))
            except BaseException as error:
                os.write(1, f"{type(error).__name__}\\n".encode())
        for _ in range(3):
            threading.Thread(target=call, daemon=True).start()
        time.sleep(0.3)
    """
    began = time.monotonic()
    assert run_script(script) == "CancelledError\n" * 3
    assert time.monotonic() - began < 30


def test_calls_after_the_end_raise():
    script = """
        import asyncio, atexit
        calls = loop.Calls()
        def late():
            try:
                calls.run(asyncio.sleep(0))
            except RuntimeError as error:
                print(error)
        atexit.register(late)
        calls.run(asyncio.sleep(0))
        loop._loop.close()
    """
    assert run_script(script) == "the interpreter is shutting down\n"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_only_a_fork_of_a_process_that_used_the_loop_is_one():
    script = """
        import asyncio, os, warnings
        # Python 3.12 and newer warn of a fork of a process that has threads.
        warnings.simplefilter("ignore", DeprecationWarning)
        def child(text):
            pid = os.fork()
            if pid == 0:
                print(text, loop.is_forked(), flush=True)
                os._exit(0)
            os.waitpid(pid, 0)
        child("before")
        loop.Calls().run(asyncio.sleep(0))
        child("after")
        print("parent", loop.is_forked())
    """
    assert run_script(script) == "before False\nafter True\nparent False\n"
