"""A remote load takes the memory of its tensors and at most 288 MiB."""

import json

import obstore
import pytest

from support import children, file_builder, memory
from support.certificates import certificate

MIB = 1 << 20
NBYTES, MAX = 1 << 30, 288 * MIB

SCRIPT = """
import json, sys
from safetensors.torch import load_files
from support import memory
url, options = sys.argv[1], json.loads(sys.argv[2])
load_files(url, storage_options=options, keys=["small"])
print(memory.peak_growth(load_files, url, storage_options=options))
"""


@pytest.mark.skipif(not memory.can_measure_peak(), reason="/proc/self/clear_refs is not writable")
@pytest.mark.parametrize("server", ["http", "https", "seaweedfs"])
def test_peak(server, request, tmp_path):
    path = tmp_path / "model.safetensors"
    shapes = {f"layer.{i}": (NBYTES // 4 // 16,) for i in range(16)} | {"small": (1,)}
    file_builder.write_sparse(path, shapes)
    if server == "seaweedfs":
        s3 = request.getfixturevalue(server)
        obstore.put(s3.store("models"), "peak.safetensors", path, chunk_size=64 * MIB)
        keys = {"access_key_id": s3.key, "secret_access_key": s3.secret, "region": s3.region}
        url, options = "s3://models/peak.safetensors", {"endpoint": s3.endpoint, **keys}
    else:
        path.rename(request.getfixturevalue("web_folder") / "peak.safetensors")
        url = f"{getattr(request.getfixturevalue('nginx'), server)}/peak.safetensors"
        options = {"ca_file": str(certificate().authority)}
    grown = int(children.run(SCRIPT, url, json.dumps(options), timeout=300))
    print(f"{server}: {(grown - NBYTES) / MIB:.0f} MiB beyond the tensors")
    assert NBYTES * 0.9 < grown < NBYTES + MAX
