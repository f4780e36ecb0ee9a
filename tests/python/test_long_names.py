"""Files with the longest names that a file system takes: 255 bytes, and 143 on eCryptfs."""

import os
import textwrap

import numpy as np
import pytest

import safetensors
from safetensors.numpy import save_file
from support import children, shims

# Refuses longer names, as eCryptfs does, and names that are no UTF-8, as APFS does.
SHIM = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <wchar.h>
#include <locale.h>
static int is_bad(const char* path) {
  const char* slash = strrchr(path, '/');
  const unsigned char* s = (const unsigned char*)(slash ? slash + 1 : path);
  if ((int)strlen((const char*)s) > atoi(getenv("LONGEST"))) { errno = ENAMETOOLONG; return 1; }
  while (*s) {
    int more = *s < 0x80 ? 0 : *s >= 0xF0 ? 3 : *s >= 0xE0 ? 2 : *s >= 0xC0 ? 1 : -1;
    if (more < 0) { errno = EILSEQ; return 1; }
    for (s++; more > 0; more--, s++) if ((*s & 0xC0) != 0x80) { errno = EILSEQ; return 1; }
  }
  return 0;
}
#define NEXT(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))
#define OPENS(name) \
  int name(int folder, const char* path, int flags, ...) { \
    va_list rest; va_start(rest, flags); int mode = va_arg(rest, int); va_end(rest); \
    if ((flags & O_CREAT) && is_bad(path)) return -1; \
    return NEXT(name)(folder, path, flags, mode); }
OPENS(openat)
OPENS(openat64)
int mkdirat(int folder, const char* path, mode_t mode) {
  return is_bad(path) ? -1 : NEXT(mkdirat)(folder, path, mode); }
int renameat(int from, const char* old, int to, const char* path) {
  extern int renameat(int, const char*, int, const char*);
  return is_bad(path) ? -1 : NEXT(renameat)(from, old, to, path); }
"""

WRITE = """
    import os, sys
    import numpy as np
    import safetensors, safetensors.numpy as stn
    from safetensors import safe_create, specs_of, update_file

    length, unit = int(sys.argv[1]), sys.argv[2]

    def named(ending):
        count, rest = divmod(length - len(ending), len(unit.encode()))
        name = "x" * rest + unit * count + ending
        assert len(name.encode()) == length
        return name

    old, new = {"a": np.ones(4, "f4")}, {"a": np.zeros(4, "f4")}

    def same(path, tensors=new):
        found = stn.load_file(path)
        assert found["a"].tolist() == tensors["a"].tolist(), path

    file = named(".safetensors")
    stn.save_file(old, file, sums=True)
    same(file, old)
    stn.save_file(new, file)
    same(file)
    stn.save_file_async(old, file).result()
    same(file, old)
    with safe_create(file, specs_of(new)) as writer:
        writer["a"] = new["a"]
    same(file)
    update_file(file, old)
    same(file, old)
    update_file(file, new, in_place=True, shared=True)
    same(file)
    assert safetensors.recover(file) == "clean"

    model = named(".safetensors.index.json").removesuffix(".safetensors.index.json")
    two = {"a": np.ones(4, "f4"), "b": np.ones(4, "f4")}
    if len(model.encode()) + len("-00001-of-00002.safetensors") <= length:
        raise SystemExit("the index has the longest name")
    model = named("-00001-of-00002.safetensors").removesuffix("-00001-of-00002.safetensors")
    for tensors in (two, two, new):
        stn.save_files(tensors, "model", max_shard_size=16, name=model, sums=True)
    assert safetensors.recover("model") == "clean"
    left = [name for folder in (".", "model") for name in os.listdir(folder) if name[0] == "."]
    assert not left, left
"""


@pytest.fixture(scope="module")
def strict(tmp_path_factory):
    return shims.environment(tmp_path_factory.mktemp("shim"), SHIM)


EACH = """
import os, sys
top, program, *lengths = sys.argv[1:]
for length in lengths:
    for unit in "a\u00e9\u6a21\U0001f600":
        folder = f"{top}/{length} {ord(unit)}"
        os.mkdir(folder)
        os.chdir(folder)
        sys.argv[1:] = length, unit
        exec(program, {})
"""


@pytest.mark.parametrize(("longest", "lengths"), [(255, [255, 240]), (143, [143, 142, 141, 125])])
def test_every_writer_takes_long_names(tmp_path, strict, longest, lengths):
    """Of characters of 1 to 4 bytes."""
    env = {**strict, "LONGEST": str(longest)}
    children.run(EACH, tmp_path, textwrap.dedent(WRITE), *lengths, env=env)


KILLED = """
    import os, signal
    import numpy as np
    import safetensors, safetensors.numpy as stn
    from support import libc_calls

    os.chdir(sys.argv[1])
    kind, name = sys.argv[2:]
    kill = lambda *args, **kwargs: os.kill(os.getpid(), signal.SIGKILL)
    if kind == "save":
        new = {"a": np.zeros(4, "f4"), "b": np.zeros(4, "f4")}
        with libc_calls.replaced({"renameat": kill}):
            stn.save_files(new, ".", max_shard_size=16, name=name)
    else:
        # The sums, which the file does not have, are removed before it is marked.
        with libc_calls.replaced({"unlinkat": kill}):
            safetensors.update_file(name, {"a": np.zeros(4, "f4")}, in_place=True, shared=True)
"""


@pytest.mark.parametrize("kind", ["save", "journal"])
def test_a_long_name_is_recovered(tmp_path, kind):
    """The switch and the journal have it, because the name of their folder has a part of it."""
    name = "n" * 200
    file = tmp_path / f"{name}.safetensors"
    save_file({"a": np.ones(4, "f4")}, file)
    children.run_raw(KILLED, tmp_path, kind, name if kind == "save" else file.name)
    (left,) = (each for each in os.listdir(tmp_path) if each.startswith("."))
    assert left.endswith(kind)
    assert name not in left
    if kind == "save":
        assert safetensors.recover(tmp_path) == "rolled forward"
        assert {*os.listdir(tmp_path)} == {
            f"{name}.safetensors.index.json",
            *(f"{name}-{i:05}-of-00002.safetensors" for i in (1, 2)),
        }
    else:
        assert safetensors.recover(file) == "rolled back"
        assert os.listdir(tmp_path) == [file.name]
