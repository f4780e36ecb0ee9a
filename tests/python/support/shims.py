"""Libraries that replace calls of the C library in other processes."""

import os
import shutil
import subprocess
import sys

import pytest

NETWORK = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <sys/vfs.h>
/* Says of every file that it lies on NFS. */
int fstatfs(int fd, struct statfs *status) {
  int (*real)(int, struct statfs *) = (int (*)(int, struct statfs *))dlsym(RTLD_NEXT, "fstatfs");
  int result = real(fd, status);
  status->f_type = 0x6969;
  return result;
}
int fstatfs64(int fd, struct statfs64 *status) {
  int (*real)(int, struct statfs64 *) =
      (int (*)(int, struct statfs64 *))dlsym(RTLD_NEXT, "fstatfs64");
  int result = real(fd, status);
  status->f_type = 0x6969;
  return result;
}
"""

NO_LOCKS = """
#include <errno.h>
int flock(int fd, int operation) {
  errno = ENOLCK;
  return -1;
}
"""


def environment(folder, source):
    """Returns an environment in which the functions of this C source replace those of libraries.

    Skips the calling test without a compiler, or on other systems than Linux.
    """
    compiler = shutil.which("cc") or shutil.which("gcc")
    if not sys.platform.startswith("linux") or compiler is None:
        pytest.skip("replaces calls by a library, for which it needs Linux and a C compiler")
    (folder / "shim.c").write_text(source)
    library = folder / "shim.so"
    made = subprocess.run(
        [compiler, "-shared", "-fPIC", "-o", library, folder / "shim.c", "-ldl"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert made.returncode == 0, made.stderr
    before = os.environ.get("LD_PRELOAD", "")
    # A sanitizer's library must come first; what it intercepts, it hands on.
    return {**os.environ, "LD_PRELOAD": f"{before} {library}".strip()}
