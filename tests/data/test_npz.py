import io
import struct
import zipfile

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from damage import damaged, fuzz, little_memory, refusal
from isingformer.data import DataError
from isingformer.data.npz import read_npz

rng = np.random.default_rng(0)
X = rng.integers(0, 256, (5, 6, 7), dtype=np.uint8)
Y = np.array([0, 1, 2, 1, 0])
GOOD = {"x_train": X, "y_train": Y, "x_test": X[:2], "y_test": Y[:2]}


def save(folder, write=np.savez, **changes):
    """A file with good arrays, some of them changed or (None) left out."""
    file = folder / "mine.npz"
    write(file, **{name: array for name, array in {**GOOD, **changes}.items() if array is not None})
    return file


def both(x):
    return {"x_train": x, "x_test": x[:2]}


@pytest.mark.parametrize("write", [np.savez, np.savez_compressed])
def test_values_are_as_saved(tmp_path, write):
    data = read_npz(save(tmp_path, write))
    assert data.name == "mine" and data.classes == ("0", "1", "2") and data.size == (6, 7)
    assert data.train.x.dtype == torch.uint8 and data.train.y.dtype == torch.int64
    assert np.array_equal(data.train.x[:, 0], X) and np.array_equal(data.test.x[:, 0], X[:2])
    assert data.train.y.tolist() == Y.tolist() and data.test.y.tolist() == Y[:2].tolist()


@pytest.mark.parametrize("channels", [1, 2, 3, 4])
@pytest.mark.parametrize("order", ["C", "F"])
def test_channels_first_and_last_give_the_same(tmp_path, channels, order):
    first = rng.integers(0, 256, (5, channels, 6, 7), dtype=np.uint8)
    last = np.moveaxis(first, 1, -1)
    for x in (first, last):
        data = read_npz(save(tmp_path, **both(np.array(x, order=order))))
        assert np.array_equal(data.train.x, first) and data.train.x.is_contiguous()


@pytest.mark.parametrize(
    "shape", [(5, 3, 32, 3), (5, 1, 28, 1), (5, 3, 4, 4), (5, 10, 8, 9), (5, 28), (5,), (5, 1, 2, 8, 8), (5, 0, 7)]
)
def test_a_shape_that_leaves_a_doubt_is_refused(tmp_path, shape):
    file = save(tmp_path, **both(np.zeros(shape, np.uint8)))
    refusal(lambda: read_npz(file), file, "x_train", str(list(shape)), "expected")


@pytest.mark.parametrize("dtype", ["<f2", "<f4", "<f8", ">f4", ">f8"])
def test_floats_become_float32(tmp_path, dtype):
    x = rng.standard_normal((5, 6, 7)).astype(dtype)
    data = read_npz(save(tmp_path, **both(x)))
    assert data.train.x.dtype == torch.float32
    assert np.array_equal(data.train.x[:, 0], x.astype("<f4"))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e300])
def test_floats_must_be_finite(tmp_path, value):
    x = np.zeros((5, 6, 7))
    x[3, 2, 1] = value
    file = save(tmp_path, x_train=x, x_test=np.zeros((2, 6, 7)))
    refusal(lambda: read_npz(file), file, "x_train", "finite")


@pytest.mark.parametrize("dtype", ["int64", "int8", "uint16", "bool", "complex64", "U3", "M8[s]"])
def test_other_types_of_image_are_refused(tmp_path, dtype):
    file = save(tmp_path, **both(np.zeros((5, 6, 7)).astype(dtype)))
    refusal(lambda: read_npz(file), file, "x_train", "expected uint8 or floating")


@pytest.mark.parametrize("dtype", ["int8", "uint8", "<i4", ">i8", "uint64"])
@pytest.mark.parametrize("shape", [(-1,), (-1, 1)])
def test_integer_labels_become_int64(tmp_path, dtype, shape):
    data = read_npz(save(tmp_path, y_train=Y.astype(dtype).reshape(shape)))
    assert data.train.y.dtype == torch.int64 and data.train.y.tolist() == Y.tolist()


@pytest.mark.parametrize(
    ("y", "words"),
    [
        (Y.astype(float), "float64"),
        (Y.astype(bool), "bool"),
        (Y.astype(str), "<U21"),
        (np.eye(5, dtype=int), "[5, 5]"),
        (Y[:4], "[4]"),
        (Y.reshape(1, 5), "[1, 5]"),
        (np.array(3), "[]"),
        (Y - 1, "from -1 to 1"),
        (Y + 70_000, "70000 to 70002"),
        (Y.astype("u8") + np.uint64(2**63), str(2**63)),
    ],
)
def test_wrong_labels_are_refused(tmp_path, y, words):
    file = save(tmp_path, y_train=y)
    refusal(lambda: read_npz(file), file, "y_train", words, "expected")


def test_one_class_is_refused(tmp_path):
    file = save(tmp_path, y_train=Y * 0, y_test=Y[:2] * 0)
    refusal(lambda: read_npz(file), file, "at least two classes")


def test_the_test_set_counts_for_the_classes(tmp_path):
    assert len(read_npz(save(tmp_path, y_test=np.array([0, 4]))).classes) == 5


def test_training_and_test_images_must_be_alike(tmp_path):
    refusal(lambda: read_npz(save(tmp_path, x_test=X[:2, :5])), "mine.npz", "7 x 6, 1 channel", "7 x 5, 1 channel")
    refusal(lambda: read_npz(save(tmp_path, x_test=X[:2].astype("f4"))), "mine.npz", "uint8", "float32")
    refusal(lambda: read_npz(save(tmp_path, x_test=X[:0], y_test=Y[:0])), "mine.npz", "x_test", "[0, 6, 7]")


def test_names_of_classes(tmp_path):
    names = np.array(["cat", "Äpfel", "dog", "never seen"])
    assert read_npz(save(tmp_path, classes=names)).classes == tuple(names)


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (np.array(["a", "b"]), "[2]"),
        (np.array([["a"], ["b"], ["c"]]), "[3, 1]"),
        (np.array("abc"), "iteration"),
        (np.array([b"a", b"b", b"c"]), "expected text"),
        (np.array([1, 2, 3]), "expected text"),
        (np.array(["a", "b", "a"]), "two classes"),
        (np.array(["a", "", "b"]), "empty name"),
        (np.array(["a", "b\nc", "d"]), r"b\nc"),
        (np.array(["a", "b\u2028c", "d"]), r"b\u2028c"),
        (np.array([1, 2, 0x7FFFFFFF], "<u4").view("<U1"), "mine.npz"),
    ],
)
def test_wrong_names_are_refused(tmp_path, names, words):
    file = save(tmp_path, classes=names)
    refusal(lambda: read_npz(file), file, words)


@pytest.mark.parametrize("name", [*GOOD, "classes"])
def test_objects_are_never_unpickled(tmp_path, name):
    class Trap:
        def __reduce__(self):
            return (open, (str(tmp_path / "sprung"), "w"))

    file = save(tmp_path, **{name: np.array([Trap()] * 5, dtype=object)})
    refusal(lambda: read_npz(file), file, name, "object")
    assert not (tmp_path / "sprung").exists()


def test_structured_types_are_refused(tmp_path):
    file = save(tmp_path, x_train=np.zeros((5, 6, 7), [("red", "u1"), ("blue", "O")]))
    refusal(lambda: read_npz(file), file, "x_train")


@pytest.mark.parametrize("name", GOOD)
def test_a_missing_array_is_named(tmp_path, name):
    refusal(lambda: read_npz(save(tmp_path, **{name: None})), "mine.npz", f"no {name}", "expected")


def test_other_arrays_are_passed_over(tmp_path):
    file = save(tmp_path, x_val=np.array([print], dtype=object), note=np.array("hello"))
    assert len(read_npz(file).train) == 5


@pytest.mark.parametrize("content", [b"", b"PK", b"not a zip", b"\x93NUMPY\x01\0", bytes(2000)])
def test_what_is_no_zip_is_refused(tmp_path, content):
    (tmp_path / "a.npz").write_bytes(content)
    refusal(lambda: read_npz(tmp_path / "a.npz"), "a.npz", "expected what np.savez writes")


def test_what_is_no_file_is_refused(tmp_path):
    refusal(lambda: read_npz(tmp_path / "none.npz"), "none.npz", error=FileNotFoundError)
    refusal(lambda: read_npz(tmp_path), tmp_path, "folder")


def members(file):
    with zipfile.ZipFile(file) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def rezip(file, contents, compression=zipfile.ZIP_DEFLATED):
    with zipfile.ZipFile(file, "w", compression) as archive:
        for name, content in contents:
            archive.writestr(name, content)
    return file


@pytest.mark.parametrize("change", [lambda b: b[:-1], lambda b: b + b"x", lambda b: b[:9], bytes.upper])
def test_a_member_that_is_no_whole_array_is_refused(tmp_path, change):
    contents = members(save(tmp_path))
    contents["x_train.npy"] = change(contents["x_train.npy"])
    file = rezip(tmp_path / "mine.npz", contents.items())
    refusal(lambda: read_npz(file), file)


@pytest.mark.parametrize("compression", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_unusual_compression_is_refused(tmp_path, compression):
    file = rezip(tmp_path / "mine.npz", members(save(tmp_path)).items(), compression)
    refusal(lambda: read_npz(file), file, "unusual")


def test_an_array_that_is_there_twice_is_refused(tmp_path):
    contents = list(members(save(tmp_path)).items())
    with pytest.warns(UserWarning, match="Duplicate name"):
        file = rezip(tmp_path / "mine.npz", contents + contents[:1])
    refusal(lambda: read_npz(file), file, "more than one x_train")


def test_wrong_checksums_are_refused(tmp_path):
    """A changed pixel in a stored member, which nothing but the checksum can tell."""
    file = save(tmp_path)
    content = bytearray(file.read_bytes())
    content[content.index(X.tobytes()) + 100] ^= 1
    file.write_bytes(content)
    refusal(lambda: read_npz(file), file, "CRC")


def header(shape, dtype="|u1"):
    text = f"{{'descr': {dtype!r}, 'fortran_order': False, 'shape': {shape!r}, }}".encode()
    text += b" " * (-(len(text) + 11) % 64) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text


@pytest.mark.parametrize("shape", [(10**6, 10**6), (-1, -5, 8), (2**70,), (0, 10**12, 10**12), (True, 4, 4)])
def test_a_header_that_promises_too_much_is_refused(tmp_path, shape):
    contents = members(save(tmp_path))
    contents["x_train.npy"] = header(shape) + bytes(40)
    file = rezip(tmp_path / "mine.npz", contents.items())
    refusal(lambda: read_npz(file), file, "x_train")


def test_a_bomb_is_not_unpacked(tmp_path):
    file = save(tmp_path, np.savez_compressed, x_train=np.zeros((100, 1000, 1000), np.uint8))
    assert file.stat().st_size < 500_000
    with little_memory():
        refusal(lambda: read_npz(file, limit=50_000_000), file, "100,000", "at most 50,000,000")


def test_memory_is_taken_only_for_what_is_there(tmp_path):
    contents = members(save(tmp_path))
    contents["x_train.npy"] = header((5, 10_000, 10_000)) + bytes(40)
    file = rezip(tmp_path / "mine.npz", contents.items())
    with little_memory():
        refusal(lambda: read_npz(file), file, "x_train", "500,000,000 bytes, yet holds 40")


def test_a_member_that_declares_more_than_it_can_hold_is_refused(tmp_path):
    file = save(tmp_path)
    content = bytearray(file.read_bytes())
    central = content.index(b"PK\x01\x02")
    content[central + 24 : central + 28] = struct.pack("<I", 10**9)
    file.write_bytes(content)
    refusal(lambda: read_npz(file), file, "x_train", "1,000,000,000")


def stored(write):
    file = io.BytesIO()
    write(file, **{name: array[:2] for name, array in GOOD.items()}, classes=np.array(["a", "b", "c"]))
    return file.getvalue()


@given(st.binary(max_size=300))
@fuzz
def test_any_bytes_give_a_data_error(scratch, content):
    file = scratch / "any.npz"
    file.write_bytes(content)
    refusal(lambda: read_npz(file), "any.npz")


@pytest.mark.parametrize("write", [np.savez, np.savez_compressed])
def test_damaged_files_give_the_same_data_or_a_data_error(scratch, write):
    file = scratch / "damaged.npz"

    @given(damaged(stored(write)))
    @fuzz
    def check(content):
        file.write_bytes(content)
        try:
            data = read_npz(file)
        except DataError as error:
            assert "damaged.npz" in str(error) and len(str(error).splitlines()) == 1
        else:  # time stamps and the like are not guarded by the checksum; classes may be lost with its name
            assert np.array_equal(data.train.x[:, 0], X[:2]) and data.train.y.tolist() == [0, 1]

    check()


@given(st.data())
@fuzz
def test_damaged_arrays_give_what_numpy_reads_or_a_data_error(scratch, data):
    """Damage inside a member, under a right checksum."""
    contents = members(save(scratch, x_train=X.astype("f4"), x_test=X[:2].astype("f4"), classes=np.array(list("abc"))))
    name = data.draw(st.sampled_from(sorted(contents)))
    contents[name] = data.draw(damaged(contents[name]))
    file = rezip(scratch / "mine.npz", contents.items(), zipfile.ZIP_STORED)
    try:
        ours = read_npz(file)
    except DataError as error:
        assert "mine.npz" in str(error) and len(str(error).splitlines()) == 1
    else:
        with np.load(file, allow_pickle=False) as theirs:
            assert ours.train.x.numpy().ravel().tolist() == theirs["x_train"].astype("f4").ravel().tolist()
            assert ours.test.y.tolist() == theirs["y_test"].ravel().tolist()
            assert ours.classes == tuple(theirs["classes"])
