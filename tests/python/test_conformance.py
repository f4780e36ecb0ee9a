"""The conformance kit: this package passes it, and its runner notices wrong subjects."""

import hashlib
import json
import shutil
import subprocess
import sys
import time

import pytest

from support import hostile_cases

KIT = hostile_cases.KIT
CASES = hostile_cases.KIT_CASES
RULES = CASES.TABLE["rules"]


def run_kit(*arguments, **options):
    """Runs the runner."""
    return subprocess.run(
        [sys.executable, KIT / "run.py", *map(str, arguments)],
        capture_output=True, text=True, timeout=200, **options,
    )  # fmt: skip


def counts(output):
    """Returns the table at the end of the output: {part: {outcome: number}}."""
    lines = output.splitlines()
    start = max(i for i, line in enumerate(lines) if line.split()[:2] == ["ok", "accepted"])
    columns = [*lines[start].split()[:-2], "not offered"]
    rows = [line.split() for line in lines[start + 1 :]]
    return {row[0]: dict(zip(columns, map(int, row[1:]), strict=True)) for row in rows}


def test_this_package_passes():
    subject = KIT / "subjects" / "safetensors_numpy.py"
    done = run_kit("--seconds", 60, sys.executable, subject)
    assert done.returncode == 0, done.stdout + done.stderr
    found = counts(done.stdout)
    assert found["read"]["ok"] == len(hostile_cases.LIGHT) > 3900
    assert found["write"]["ok"] == len(CASES.TABLE["writes"]) - found["write"]["not offered"] > 35
    assert found["slice"]["ok"] == len(CASES.TABLE["slices"]["rows"]) > 60


def test_the_readme_states_the_numbers():
    text = (KIT / "README.md").read_text()
    table = CASES.TABLE
    for number in (len(hostile_cases.ALL), len(table["writes"]), len(table["slices"]["rows"])):
        assert f"{number:,}" in text
    assert f"adds {len(hostile_cases.HEAVY)}\nfiles" in text.replace(" files", "\nfiles")


def test_every_case_has_a_rule_and_a_verdict_that_fits():
    rows = [*CASES.TABLE["reads"], *CASES.TABLE["writes"], *CASES.TABLE["slices"]["rows"]]
    assert {row["rule"] for row in rows} == set(RULES)
    assert {rule["verdict"] for rule in RULES.values()} == {"must accept", "must reject", "may"}
    for case in hostile_cases.ALL:
        wrong = "must reject" if case.expect == "ok" else "must accept"
        assert case.verdict != wrong, case.name


def test_the_reference_reads_what_is_accepted():
    """The kit's own reader accepts all files that are ok, whatever their verdict."""
    for case in hostile_cases.LIGHT:
        if case.expect == "ok":
            tensors, _ = CASES.contents(case.file())
            assert all(CASES.nbytes(d, shape) == len(data) for d, shape, data in tensors.values())


# A subject that reads and slices rightly, and writes one file. A line put in makes it wrong.
SUBJECT = f"""
import json, os, signal, sys, time
sys.path.insert(0, {str(KIT)!r})
import cases
verb, *arguments = sys.argv[1:]
if verb == "slice":
    rows = cases.TABLE["slices"]["rows"]
    found = {{(row["tensor"], row["index"]): row for row in rows if "bytes" in row}}
for at, path in enumerate(arguments):
    answer = {{}}
    if verb == "read":
        try:
            with open(path, "rb") as file:
                tensors, metadata = cases.contents(file.read())
            found = {{n: [d, s, "hex:" + data.hex()] for n, (d, s, data) in tensors.items()}}
            answer = {{"tensors": found, "metadata": metadata}}
        except Exception as error:
            answer = {{"error": str(error)}}
    elif at % (3 if verb == "slice" else 2):
        continue
    elif verb == "slice":
        part = found.get(tuple(arguments[at + 1 : at + 3]))
        if part:
            answer = {{"shape": part["shape"], "digest": "hex:" + part["bytes"]}}
        else:
            answer = {{"error": "no such part"}}
    else:
        out = arguments[at + 1]
        header = b'{{"a":{{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}}}'
        content = len(header).to_bytes(8, "little") + header + bytes.fromhex("0000803f00000040")
    BODY
    if verb == "write":
        with open(out, "wb") as file:
            file.write(content)
    print(json.dumps(answer), flush=True)
"""
READ = ("--only", "read", "--match", "good: metadata")
F32 = ("--only", "read", "--match", "good: F32")
WRITE = ("--only", "write", "--match", "one tensor")
SLICE = ("--only", "slice", "--match", "cube[1")
FAULTS = {
    "accepts everything": (
        "accepted",
        ("--only", "read", "--match", "tab before"),
        "answer.pop('error', None); answer.setdefault('tensors', {})",
    ),
    "refuses everything": ("refused", READ, "answer = {'error': 'no'}"),
    "exits": ("crash", READ, "sys.exit(3)"),
    "exits with 0": ("crash", READ, "sys.exit(0)"),
    "dies by a signal": ("crash", READ, "os.kill(os.getpid(), signal.SIGSEGV)"),
    "prints what is not JSON": ("crash", READ, "print('hello'); continue"),
    "takes memory": ("crash", READ, "bytearray(10**10)"),
    "hangs": ("hang", READ, "time.sleep(60)"),
    "hangs with a child": ("hang", READ, "os.fork(); time.sleep(60)"),
    "returns wrong bytes": ("wrong", F32, "found['a'][2] = 'hex:00'"),
    "returns another shape": ("wrong", F32, "found['a'][1] = [6]"),
    "returns another type": ("wrong", F32, "found['a'][0] = 'I32'"),
    "loses a tensor": ("wrong", READ, "found.popitem()"),
    "loses metadata": ("wrong", READ, "answer['metadata'] = {}"),
    "answers too little": ("wrong", READ, "del answer['tensors']"),
    "writes nothing": ("wrong", WRITE, "content = b''"),
    "writes wrong bytes": ("wrong", WRITE, "content = content[:-1] + b'x'"),
    "writes a byte more": ("wrong", WRITE, "content += b'x'"),
    "writes what is wrong": (
        "accepted",
        ("--only", "write", "--match", "a byte too few"),
        "pass",
    ),
    "slices wrong bytes": ("wrong", SLICE, "answer['digest'] = answer['digest'][:-2] + '99'"),
    "slices another shape": ("wrong", SLICE, "answer['shape'] = [1]"),
    "slices past the end": (
        "accepted",
        ("--only", "slice", "--match", "cube[3]"),
        "answer = {'shape': [], 'digest': 'hex:'}",
    ),
}


def run_subject(tmp_path, body, *options):
    """Runs the kit on the subject with a line put in."""
    path = tmp_path / "subject.py"
    path.write_text(SUBJECT.replace("BODY", body))
    return run_kit(*options, sys.executable, path)


@pytest.mark.parametrize("options", [READ, F32, WRITE, SLICE])
def test_the_subject_is_right_before_a_line_is_put_in(options, tmp_path):
    done = run_subject(tmp_path, "pass", *options)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("kind", FAULTS)
def test_a_wrong_subject_is_noticed(kind, tmp_path):
    outcome, options, body = FAULTS[kind]
    begin = time.monotonic()
    limit = 1 if outcome == "hang" else 60
    done = run_subject(tmp_path, body, "--seconds", limit, *options)
    assert done.returncode == 1, done.stdout + done.stderr
    found = counts(done.stdout)[options[1]]
    assert found.pop(outcome) >= 1, done.stdout
    assert not sum(
        found[other]
        for other in ("accepted", "refused", "wrong", "crash", "hang")
        if other in found
    ), done.stdout
    assert outcome != "hang" or time.monotonic() - begin < 60


def test_one_crash_does_not_hide_the_other_files(tmp_path):
    """The other files of the same run are judged as ever."""
    body = "if 'I64' in str(answer): os.kill(os.getpid(), signal.SIGSEGV)"
    options = ("--only", "read", "--match", "good: ", "--seconds", 60)
    found = counts(run_subject(tmp_path, body, *options).stdout)["read"]
    holders = [
        case.name for case in hostile_cases.LIGHT
        if case.name.startswith("good: ") and "I64" in str(case.row)
    ]  # fmt: skip
    assert found["crash"] == len(holders) == 2
    assert found["ok"] + found["crash"] == 42


@pytest.mark.parametrize("arguments", [[], ["--batch", "0", "x"], ["/no/such/program"],
                                       ["--match", "no such case", "true"]])  # fmt: skip
def test_bad_arguments(arguments):
    done = run_kit(*arguments)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr


def test_the_subject_in_c_fits_the_header():
    """Compiles it without a library; `conformance/README.md` says how to run it."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("there is no C compiler")
    source = KIT / "subjects" / "c_library.c"
    flags = ["-std=c99", "-Wall", "-Wextra", "-Werror", "-fsyntax-only"]
    subprocess.run([compiler, *flags, "-I", KIT.parent / "include", source], check=True)


def run_cases(*arguments):
    """Runs cases.py as a program."""
    return subprocess.run(
        [sys.executable, KIT / "cases.py", *arguments],
        capture_output=True, text=True, encoding="utf-8", check=False,
    )  # fmt: skip


def test_files_can_be_written_to_a_folder(tmp_path):
    done = run_cases(tmp_path / "files")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == len(hostile_cases.LIGHT)
    name, verdict, rule, case = lines[0].split("\t")
    assert (verdict, rule, case) == ("must reject", "length", "nothing")
    assert (tmp_path / "files" / name).read_bytes() == b""


def test_what_is_expected_of_each_file_is_written(tmp_path):
    """A runner in another language needs no other file than expected.json and those it names."""
    assert run_cases(tmp_path).returncode == 0
    expected = json.loads((tmp_path / "expected.json").read_text())
    assert expected["rules"] == RULES
    found = expected["cases"]
    assert [len(found[request]) for request in ("read", "write", "slice")] == [
        len(hostile_cases.LIGHT), len(CASES.TABLE["writes"]), len(CASES.TABLE["slices"]["rows"])
    ]  # fmt: skip
    rows = [row for request in found for row in found[request]]
    there = {path.name for path in tmp_path.iterdir()} - {"expected.json"}
    made = {row["files"][1] for row in found["write"]}
    assert {name for row in rows for name in row["files"]} - made == there
    for row in rows:
        assert row["verdict"] == RULES[row["rule"]]["verdict"]
        assert "answer" in row or row["verdict"] != "must accept"
        assert "answer" not in row or row["verdict"] != "must reject"
    by_name = {row["name"]: row for row in rows}
    digest = "sha256:" + hashlib.sha256(bytes.fromhex("0000803f00000040")).hexdigest()
    assert by_name["one tensor"]["answer"] == {
        "tensors": {"a": ["F32", [2], digest]}, "metadata": {}
    }  # fmt: skip
    file, row = tmp_path / "slices.safetensors", by_name["cube[1:2]"]
    data = file.read_bytes()[8 + 245 :][40:80]  # the second of three parts of 40 bytes
    assert row["part"] == ["cube", "1:2"]
    assert row["answer"] == {
        "shape": [1, 4, 5], "digest": "sha256:" + hashlib.sha256(data).hexdigest()
    }  # fmt: skip


@pytest.mark.parametrize("arguments", [[], ["a", "b"]])
def test_cases_explain_their_arguments(arguments):
    done = run_cases(*arguments)
    assert (done.returncode, done.stderr) == (2, "usage: python cases.py FOLDER\n")
