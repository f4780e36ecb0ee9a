"""`safetensors ls`."""

import resource

from support import cli
from support.file_builder import raw


def test_more_shards_than_the_soft_limit_of_open_files(tmp_path):
    for i in range(100):
        cli.write(tmp_path / f"{i}.safetensors", {f"t{i}": raw("U8", (1,))})

    def limited():
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, 4096))

    assert len(cli.parsed("ls", tmp_path, preexec_fn=limited)["files"]) == 100
