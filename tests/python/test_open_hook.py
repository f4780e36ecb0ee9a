"""Arrays that are views of a file keep their values when this process overwrites the file."""

import sys

import numpy as np
import pytest

from safetensors import numpy as stn
from support import children
from weights_support.data import DATA

pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="other systems do not list a process's mappings"
)

# Loads a file with one modified page, and defines what a case can use.
SCRIPT = """
import ctypes, gc, io, mmap, os, pathlib, resource, shutil, signal, subprocess, threading, warnings
import numpy as np
import safetensors
from safetensors import numpy as stn
path, other = sys.argv[1:3]
os.chdir(os.path.dirname(path))
warnings.simplefilter("error")
wanted = np.arange(400_000, dtype="f4")
wanted[200_000] = -1
def is_mapped():
    with open("/proc/self/maps") as maps:
        return path in maps.read()
def is_kept(array):
    return np.array_equal(array, wanted)
def overwrite():
    with open(path, "wb") as file:
        file.write(b"new")
"""
LOADED = """
held = stn.load_file(path)["x"]
held[200_000] = -1
assert is_mapped()
"""


@pytest.fixture
def files(tmp_path):
    """The paths of a file, and of a shorter one."""
    stn.save_file({"x": np.arange(400_000, dtype="f4")}, tmp_path / "model")
    (tmp_path / "other").write_bytes(b"short")
    return tmp_path / "model", tmp_path / "other"


def run(files, script):
    children.run(SCRIPT + script, *files)


OVERWRITING = {
    "the program's own save": """
        with open(path, "wb") as file:
            file.write(stn.save({"x": held}))
        assert is_kept(stn.load_file(path)["x"])""",
    "bytes": "open(os.fsencode(path), 'wb').close()",
    "pathlib": "pathlib.Path(path).write_bytes(b'new')",
    "a relative path": "open(os.path.basename(path), 'wb').close()",
    "os.open": "os.close(os.open(path, os.O_WRONLY | os.O_TRUNC))",
    "os.open with O_EXCL of a file that exists": """
        file = os.open(path, os.O_RDWR | os.O_EXCL)
        os.pwrite(file, b"new" * 1_000, 8_000)""",
    "os.open in a folder": """
        folder = os.open(".", os.O_RDONLY)
        os.chdir("/")
        os.open(os.path.basename(path), os.O_WRONLY | os.O_TRUNC, dir_fd=folder)""",
    "truncating a file that is open to append": """
        with open(path, "ab") as file:
            file.truncate(5)""",
    "mapping a file that is open to append": """
        with open(path, "a+b") as file:
            mmap.mmap(file.fileno(), 0)[8_000:9_000] = bytes(1_000)""",
    "os.open of a path object": "os.close(os.open(pathlib.Path(path), os.O_RDWR | os.O_TRUNC))",
    "FileIO of a path object": "io.FileIO(pathlib.Path(path), 'w').close()",
    "a symbolic link": "os.symlink(path, 'soft'); open('soft', 'wb').close()",
    "a hard link": "os.link(path, 'hard'); open('hard', 'wb').close()",
    "shutil.copyfile": "shutil.copyfile(other, path)",
    "tofile": "np.zeros(3).tofile(path)",
    "os.truncate": "os.truncate(path, 5)",
    "os.truncate of a path object": "os.truncate(pathlib.Path(path), 5)",
    "overwriting a part": """
        with open(path, "r+b") as file:
            file.write(bytes(1_000_000))""",
    "memmap": """
        maps = []
        for value in (3, 4):
            maps.append(np.memmap(path, mode="r+"))
            maps[-1][:] = value
            assert pathlib.Path(path).read_bytes() == bytes([value]) * os.path.getsize(path)
        assert maps[0][0] == 4""",
    "threads": """
        threads = [threading.Thread(target=overwrite) for _ in range(8)]
        for thread in threads: thread.start()
        for thread in threads: thread.join()""",
    "a subinterpreter": """
        try: import _interpreters as interpreters
        except ImportError: import _xxsubinterpreters as interpreters
        code = f"open({path!r}, 'wb').close()"
        error = interpreters.run_string(interpreters.create(), code)
        assert not error, error""",
}


@pytest.mark.parametrize("case", OVERWRITING)
def test_arrays_keep_their_values(files, case):
    run(files, f"{LOADED}\nif True:\n        {OVERWRITING[case].strip()}\nassert is_kept(held)\n")
    if case != "the program's own save":
        assert files[0].stat().st_size != 1_600_000


@pytest.mark.parametrize("call", ["ftruncate", "truncate"])
@pytest.mark.parametrize("flags", ["os.O_RDWR", "os.O_WRONLY"])
def test_truncating_a_descriptor_that_was_open_before(files, call, flags):
    script = f"""
for bad in (-1, 1 << 70, 999_999):
    try: os.{call}(bad, 5)
    except (OSError, OverflowError): pass
assert is_mapped()
os.{call}(file, 5)
assert is_kept(held) and os.path.getsize(path) == 5
"""
    run(files, f"file = os.open(path, {flags})\n{LOADED}\n{script}")


@pytest.mark.parametrize(
    "load",
    [
        "held = stn.load_file(path)['x'][1:]",
        "held = safetensors.safe_open(path, 'np').get_slice('x')[1:]",
        "held = safetensors.safe_open(path, 'np').get_tensor('x')[1:]",
        "file = safetensors.safe_open(path, 'np'); held = file.get_tensor('x')[1:]",
    ],
)
def test_every_view_is_kept(files, load):
    script = "\nheld[199_999] = -1\noverwrite()\nassert np.array_equal(held, wanted[1:])\n"
    run(files, load + script)


def test_an_open_handle_still_reads_what_it_opened(files):
    script = """
with safetensors.safe_open(path, "np") as file:
    file.get_tensor("x")[200_000] = -1
    overwrite()
    assert is_kept(file.get_tensor("x"))
"""
    run(files, script)


def test_views_of_the_weight_layer_are_kept(files, tmp_path):
    model = tmp_path / "model.gguf"
    model.write_bytes((DATA / "gguf" / "llama_f32.gguf").read_bytes())
    script = """
from safetensors.weights import open_weights
with open_weights(path) as weights:
    held = {name: weights[name].packed() for name in weights if weights.is_view(name)}
before = {name: array.copy() for name, array in held.items()}
assert held and is_mapped()
overwrite()
assert not is_mapped()
assert all(np.array_equal(held[name], before[name]) for name in held)
"""
    run((model, files[1]), script)


LEAVING = {
    "reading": "open(path, 'rb').close()",
    "making a new file": """
        try: open(path, "xb")
        except FileExistsError: pass""",
    "another file": "open(other, 'wb').close()",
    "a file without a name": "os.close(os.open('.', os.O_TMPFILE | os.O_RDWR))",
    "a folder": """
        try: open(".", "wb")
        except IsADirectoryError: pass""",
    "no file": """
        try: open("none/none", "wb")
        except FileNotFoundError: pass""",
    "no path": """
        for bad in (None, 1.5, "a\\0b"):
            try: open(bad, "wb")
            except (TypeError, ValueError): pass""",
    "a descriptor": """
        with open(os.open(other, os.O_RDWR), "wb") as file: os.ftruncate(file.fileno(), 3)""",
    "renaming": "os.replace(other, path)",
}


@pytest.mark.parametrize("case", LEAVING)
def test_nothing_is_copied_otherwise(files, case):
    checks = "is_mapped()" if case != "renaming" else "True"
    script = f"if True:\n        {LEAVING[case].strip()}\nassert {checks} and is_kept(held)\n"
    run(files, f"{LOADED}\n{script}")


def test_the_second_open_finds_nothing_to_copy(files):
    script = """
overwrite()
assert not is_mapped()
before = held.ctypes.data
overwrite()
assert is_kept(held) and held.ctypes.data == before
del held
gc.collect()
overwrite()
"""
    run(files, LOADED + script)


def test_a_forked_child_keeps_its_own_arrays(files):
    script = """
child = os.fork()
if child == 0:
    overwrite()
    os._exit(0 if is_kept(held) and not is_mapped() else 1)
assert os.waitpid(child, 0)[1] == 0
assert is_mapped()  # the parent's are not kept: another process has overwritten the file
"""
    run(files, LOADED + script)


def test_other_processes_change_the_arrays(files):
    stn.save_file({"x": np.zeros(400_000, "f4")}, files[1])
    script = """
subprocess.run(["cp", other, path], check=True)
assert not held.any()  # also what was modified: cp truncates the file first
"""
    run(files, LOADED + script)


WITHOUT_HOOK = {
    "import": "",
    "headers": "safetensors.safe_open(path, 'np').keys()",
    "copies": "copy = stn.load_file(path, backend='pread')",
    "torch": """
from safetensors import torch as stt
held = [stt.load_file(path), stt.load_files(path), stt.safe_open(path, 'pt').get_slice('x')[3:]]""",
}


@pytest.mark.parametrize("case", WITHOUT_HOOK)
def test_programs_without_views_in_numpy_get_no_hook(files, case):
    script = """
# A hook of Python's would see another one being added.
file = safetensors.safe_open(path, "np")  # maps the file
added = []
sys.addaudithook(lambda event, arguments: added.append(event) if event == "sys.addaudithook" else 0)
overwrite()
assert is_mapped() and not added
"""
    run(files, f"{WITHOUT_HOOK[case]}\n{script}")


@pytest.mark.parametrize("error", ["RuntimeError", "PermissionError"])
def test_a_refused_hook_leaves_everything_as_it_was(files, error):
    script = f"""
def refuse(event, arguments):
    if event == "sys.addaudithook":
        raise {error}("no more hooks")
sys.addaudithook(refuse)
held = stn.load_file(path)["x"]
open(path, "r+b").close()
assert is_mapped()
"""
    run(files, script)


# Less than the tensors take, and more than Python does, whatever memory its heap has left.
NO_MEMORY = """
limit = resource.getrlimit(resource.RLIMIT_AS)
used = int(pathlib.Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + 1_200_000, limit[1]))
"""


def test_a_lack_of_memory_is_a_warning(files):
    script = """
with warnings.catch_warnings(record=True) as found:
    warnings.simplefilter("always")
    open(path, "r+b").close()
resource.setrlimit(resource.RLIMIT_AS, limit)
text = str(found[0].message)
assert len(found) == 1 and found[0].category is RuntimeWarning
assert text.startswith("arrays are views of a file that is about to be overwritten"), text
assert "no memory for the tensors" in text and path in text, text
assert is_mapped() and is_kept(held)
"""
    run(files, LOADED + NO_MEMORY + script)


def test_a_warning_that_is_an_error_prevents_the_open(files):
    script = """
try:
    overwrite()
except RuntimeWarning:
    pass
else:
    raise AssertionError
resource.setrlimit(resource.RLIMIT_AS, limit)
assert is_mapped() and is_kept(held)
"""
    run(files, LOADED + NO_MEMORY + script)
    assert files[0].stat().st_size > 1_600_000


def test_ctrl_c_acts_after_the_copy(files):
    script = """
nbytes = os.path.getsize(path)
os.truncate(path, nbytes + (300 << 20))  # without blocks
data = bytearray(open(path, "rb").read(nbytes))
size = 8 + int.from_bytes(data[:8], "little")
header = data[8:size].rstrip().decode()
end = nbytes - size
more = ',"big":{"dtype":"U8","shape":[%d],"data_offsets":[%d,%d]}}'
text = header[:-1] + more % (300 << 20, end, end + (300 << 20))
text += " " * (-len(text) % 8)
with open(other, "wb") as file:
    file.write(len(text).to_bytes(8, "little") + text.encode() + data[size:])
    file.truncate(file.tell() + (300 << 20))
path = other
held = stn.load_file(path)
assert is_mapped()
signal.signal(signal.SIGALRM, signal.default_int_handler)
signal.setitimer(signal.ITIMER_REAL, 0.01)
try:
    open(path, "r+b").close()
    signal.pause()
except KeyboardInterrupt:
    pass
assert not is_mapped()
assert np.array_equal(held["x"], np.arange(400_000, dtype="f4")) and not held["big"].any()
"""
    run(files, script)
