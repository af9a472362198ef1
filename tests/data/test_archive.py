"""Named files out of archives that are whole, damaged, hostile or too large."""

import gzip
import io
import os
import subprocess
import sys
import tarfile

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from isingformer.data import DataError
from isingformer.data.archive import extract

FILES = {"set/train.bin": bytes(range(256)) * 40, "set/test.bin": b"test" * 900, "set/readme.html": b"<html>"}
WANTED = ["set/train.bin", "set/test.bin"]


def tar(members, **more):
    """A .tar.gz in memory; `members` are (name or TarInfo, content)."""
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w", **more) as out:
        for member, content in members:
            info = member if isinstance(member, tarfile.TarInfo) else tarfile.TarInfo(member)
            if info.isreg():
                info.size = len(content)
            out.addfile(info, io.BytesIO(content))
    return gzip.compress(raw.getvalue(), mtime=0)


def special(name, kind, target=""):
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info


GOOD = tar(FILES.items())


@pytest.fixture
def unpack(tmp_path):
    """A function that writes bytes to an archive and extracts from it into the folder it returns."""

    def call(content, wanted=WANTED, **limits):
        archive = tmp_path / "set.tar.gz"
        archive.write_bytes(content)
        extract(archive, tmp_path / "out", wanted, **limits)
        return tmp_path / "out"

    return call


def names(folder):
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("form", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT, tarfile.USTAR_FORMAT])
def test_the_named_files_and_no_others(unpack, form):
    out = unpack(tar(FILES.items(), format=form))
    assert names(out) == ["test.bin", "train.bin"]
    assert all((out / name.split("/")[1]).read_bytes() == FILES[name] for name in WANTED)


def test_the_files_are_returned_in_the_order_asked_for(tmp_path):
    (tmp_path / "set.tar.gz").write_bytes(GOOD)
    found = extract(tmp_path / "set.tar.gz", tmp_path, WANTED[::-1])
    assert found == [tmp_path / "test.bin", tmp_path / "train.bin"]


def test_an_old_file_is_replaced_only_by_a_whole_one(unpack, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "test.bin").write_bytes(b"old")
    with pytest.raises(DataError):
        unpack(GOOD[:-20])
    assert (tmp_path / "out" / "test.bin").read_bytes() == b"old"
    assert (unpack(GOOD) / "test.bin").read_bytes() == FILES["set/test.bin"]


HOSTILE = [
    ("/etc/evil", b"x"),
    ("../evil", b"x"),
    ("set/../../evil", b"x"),
    (special("set/link", tarfile.SYMTYPE, "/etc"), b""),
    (special("set/hard", tarfile.LNKTYPE, "/etc/passwd"), b""),
    (special("set/device", tarfile.CHRTYPE), b""),
    (special("set/pipe", tarfile.FIFOTYPE), b""),
    (special("set", tarfile.SYMTYPE, "/tmp"), b""),
]


def test_whatever_else_an_archive_holds_is_passed_over(unpack, tmp_path):
    out = unpack(tar([*HOSTILE, *FILES.items()]))
    assert names(out) == ["test.bin", "train.bin"]
    assert names(tmp_path) == ["out", "set.tar.gz"]


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE, tarfile.DIRTYPE])
def test_a_wanted_file_must_be_a_plain_file(unpack, tmp_path, kind):
    content = tar([("set/train.bin", b"x"), (special("set/test.bin", kind, "set/train.bin"), b"")])
    with pytest.raises(DataError, match=r"set\.tar\.gz: set/test\.bin is a link"):
        unpack(content)
    assert names(tmp_path / "out") == []


def test_a_sparse_file_is_refused(unpack, tmp_path):
    info = tarfile.TarInfo("set/test.bin")
    info.pax_headers = {"GNU.sparse.major": "0", "GNU.sparse.minor": "1", "GNU.sparse.map": "0,1",
                        "GNU.sparse.size": str(10**8), "GNU.sparse.name": "set/test.bin"}  # fmt: skip
    with pytest.raises(DataError, match="expected a plain file"):
        unpack(tar([(info, b"x"), ("set/train.bin", b"x")], format=tarfile.PAX_FORMAT))
    assert names(tmp_path / "out") == []


def test_a_file_that_is_there_twice_is_refused(unpack):
    with pytest.raises(DataError, match="twice"):
        unpack(tar([*FILES.items(), ("set/test.bin", b"other")]))


def test_a_missing_file_is_named(unpack, tmp_path):
    with pytest.raises(DataError, match=r"set\.tar\.gz: there is no set/labels\.txt in it"):
        unpack(GOOD, [*WANTED, "set/labels.txt"])
    assert names(tmp_path / "out") == []


@pytest.mark.parametrize("name", ["/etc/passwd", "../x", "a/../../x", "..", "a/..", "", "a\\..\\x"])
def test_a_wanted_name_must_stay_in_the_folder(unpack, name):
    with pytest.raises(ValueError, match="cannot extract"):
        unpack(tar([(name or "x", b"x")]), [name])


@pytest.mark.parametrize("where", ["wanted", "unwanted", "after the end"])
def test_a_bomb_is_refused(unpack, tmp_path, where):
    zeros = bytes(3_000_000)
    if where == "after the end":
        content = gzip.compress(gzip.decompress(GOOD) + zeros)
    else:
        content = tar([("set/train.bin" if where == "wanted" else "set/x", zeros), ("set/test.bin", b"")])
    with pytest.raises(DataError, match="more than 1,000,000 bytes"):
        unpack(content, ["set/test.bin"] if where == "unwanted" else WANTED, largest=1_000_000)
    assert names(tmp_path / "out") == []


@pytest.mark.parametrize(
    "content",
    [b"", b"no archive", gzip.compress(b""), gzip.compress(b"no tar"), GOOD + b"x"],
    ids=["nothing", "words", "packed nothing", "packed words", "more after the end"],
)
def test_what_is_no_archive_is_refused(unpack, tmp_path, content):
    with pytest.raises(DataError, match=r"set\.tar\.gz") as error:
        unpack(content)
    assert "\n" not in str(error.value)
    assert names(tmp_path / "out") == []


def test_an_archive_that_is_not_there(tmp_path):
    with pytest.raises(FileNotFoundError):
        extract(tmp_path / "none.tar.gz", tmp_path / "out", WANTED)


def test_every_truncation_is_noticed(tmp_path):
    archive, out = tmp_path / "set.tar.gz", tmp_path / "out"
    for length in [*range(0, len(GOOD) - 30, 7), *range(len(GOOD) - 30, len(GOOD))]:
        archive.write_bytes(GOOD[:length])
        with pytest.raises(DataError, match=r"set\.tar\.gz"):
            extract(archive, out, WANTED)
        assert names(out) == []


def refused_or_right(folder, content):
    """Extract from these bytes: the right files or a DataError, and nothing half-written."""
    archive, out = folder / "set.tar.gz", folder / "out"
    archive.write_bytes(content)
    try:
        extract(archive, out, WANTED, largest=10**6)
    except DataError as error:
        assert str(archive) in str(error) and "\n" not in str(error)
        assert names(out) == []
        return
    for name in WANTED:
        file = out / name.split("/")[1]
        assert file.read_bytes() == FILES[name]
        file.unlink()
    assert names(out) == []


FUZZ = settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@FUZZ
@given(content=st.binary(max_size=300))
def test_random_bytes(tmp_path, content):
    refused_or_right(tmp_path, content)
    refused_or_right(tmp_path, gzip.compress(content))


@FUZZ
@given(at=st.integers(0, len(GOOD) - 1), put=st.binary(min_size=1, max_size=4))
def test_a_damaged_archive_is_noticed_by_its_checksum(tmp_path, at, put):
    refused_or_right(tmp_path, GOOD[:at] + put + GOOD[at + len(put) :])


RAW = gzip.decompress(GOOD)


@FUZZ
@given(at=st.integers(0, 511), put=st.binary(min_size=1, max_size=20), member=st.sampled_from([0, 1, 2]))
def test_damaged_headers_inside_a_sound_gzip(tmp_path, at, put, member):
    with tarfile.open(fileobj=io.BytesIO(RAW)) as good:
        at += good.getmembers()[member].offset
    damaged = bytearray(RAW)
    damaged[at : at + len(put)] = put
    archive, out = tmp_path / "set.tar.gz", tmp_path / "out"
    archive.write_bytes(gzip.compress(bytes(damaged), compresslevel=1))
    try:
        for file in extract(archive, out, WANTED, largest=10**6):  # the header's own checksum is weak: it may pass
            assert file.parent == out
            file.unlink()
    except DataError as error:
        assert str(archive) in str(error) and "\n" not in str(error)
    assert names(out) == []


def test_a_file_where_the_folder_should_be(unpack, tmp_path):
    (tmp_path / "out").write_text("in the way")
    with pytest.raises(NotADirectoryError, match="out is a file"):
        unpack(GOOD)


def test_a_folder_where_a_file_should_be(unpack, tmp_path):
    (tmp_path / "out" / "test.bin").mkdir(parents=True)
    with pytest.raises(OSError, match=r"cannot write .*out/test\.bin"):
        unpack(GOOD)
    assert [name for name in names(tmp_path / "out") if name.startswith(".")] == []


PROGRAM = """
import resource, signal, sys
from pathlib import Path
from isingformer.data.archive import extract
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (8_000, 8_000))
try:
    extract(Path(sys.argv[1]), Path(sys.argv[2]), ["set/test.bin", "set/train.bin"])
except OSError as error:
    print(error)
"""


def test_a_full_disk_is_one_clear_line_and_nothing_stays(tmp_path):
    (tmp_path / "set.tar.gz").write_bytes(GOOD)
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path / "set.tar.gz"), str(tmp_path / "out")],
        capture_output=True, text=True, timeout=60, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.stdout.startswith(f"cannot write {tmp_path / 'out' / 'train.bin'}: File too large;")
    assert done.stdout.count("\n") == 1
    assert names(tmp_path / "out") == []
