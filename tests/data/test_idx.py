import gzip
import math
import struct

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from damage import damaged, fuzz, little_memory, refusal
from isingformer.data import DataError
from isingformer.data.idx import read_idx, read_idx_images


def idx(shape, values=None, code=8, axes=None):
    """An idx file, written byte by byte."""
    values = bytes(i * 7 % 256 for i in range(math.prod(shape))) if values is None else bytes(values)
    return struct.pack(f">BBBB{len(shape)}I", 0, 0, code, len(shape) if axes is None else axes, *shape) + values


def save(folder, name, content):
    (folder / name).write_bytes(content)
    return folder / name


@pytest.mark.parametrize("shape", [(5,), (3, 4), (2, 3, 4), (0,), (2, 0, 3)])
@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_values_and_shape_are_as_written(tmp_path, shape, pack):
    values = np.arange(math.prod(shape), dtype=np.uint8).reshape(shape)
    array = read_idx(save(tmp_path, "a", pack(idx(shape, values.tobytes()))))
    assert array.dtype == np.uint8 and np.array_equal(array, values) and array.shape == shape


def test_gzip_is_told_by_content_not_by_name(tmp_path):
    plain, packed = save(tmp_path, "a.gz", idx((4,))), save(tmp_path, "b.ubyte", gzip.compress(idx((4,))))
    assert np.array_equal(read_idx(plain), read_idx(packed))


def test_several_gzip_members_are_one_file(tmp_path):
    whole = idx((100,))
    file = save(tmp_path, "a", gzip.compress(whole[:50]) + gzip.compress(whole[50:]))
    assert read_idx(file).tobytes() == whole[8:]


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "nothing"),
        (b"\0\0\x08", "00 00 08"),
        (b"\x89PNG\r\n\x1a\n", "89 50 4e 47"),
        (idx((3,), axes=0, values=b""), "axes"),
        (idx((3,), axes=9), "axes"),
        (idx((3,), code=7), "00 00 07"),
        (idx((3,), code=0x0D), "float32"),
        (idx((3,), code=0x09), "int8"),
        (idx((3, 4))[:10], "ends in its header"),
        (idx((3, 4))[:-1], "cut short"),
        (idx((3, 4)) + b"x", "holds more"),
        (idx((2**32 - 1, 2**32 - 1), b""), "at most"),
        (idx((0, 2**32 - 1, 2**32 - 1), b""), "at most"),
    ],
)
def test_wrong_content_is_refused(tmp_path, pack, content, words):
    file = save(tmp_path, "wrong.idx", pack(content))
    refusal(lambda: read_idx(file), file, words, "expected")


def test_damaged_gzip_is_refused(tmp_path):
    packed = gzip.compress(idx((50, 20)))
    for name, content in {
        "cut": packed[:-12],
        "no-checksum": packed[:-8],
        "checksum": packed[:-8] + b"wrong" + packed[-3:],
        "inside": packed[:30] + bytes(20) + packed[50:],
        "behind": packed + b"more",
        "header": packed[:2],
    }.items():
        file = save(tmp_path, name, content)
        refusal(lambda file=file: read_idx(file), file, "get it again")


def test_a_bomb_is_not_unpacked(tmp_path):
    file = save(tmp_path, "bomb.gz", gzip.compress(idx((10,), bytes(10)) + bytes(100_000_000), 9))
    with little_memory():
        refusal(lambda: read_idx(file), file, "holds more")


def test_a_promise_beyond_the_file_is_refused_before_memory_is_taken(tmp_path):
    file = save(tmp_path, "promise.gz", gzip.compress(idx((60_000, 28, 28), bytes(100))))
    with little_memory():
        refusal(lambda: read_idx(file), file, "60000 x 28 x 28")


def test_what_is_no_file_is_refused(tmp_path):
    refusal(lambda: read_idx(tmp_path / "none"), "none", "does not exist", error=FileNotFoundError)
    refusal(lambda: read_idx(tmp_path), tmp_path, "folder")


def test_a_name_with_a_line_break_still_makes_one_line(tmp_path):
    refusal(lambda: read_idx(save(tmp_path, "a\nb", b"")), r"a\nb")


def test_images_and_labels(tmp_path):
    x, y = save(tmp_path, "x", idx((3, 2, 4))), save(tmp_path, "y", gzip.compress(idx((3,), [2, 0, 1])))
    images = read_idx_images(x, y, classes=3)
    assert images.x.dtype == torch.uint8 and images.y.dtype == torch.int64
    assert images.x.shape == (3, 1, 2, 4) and images.y.tolist() == [2, 0, 1]
    assert images.x[1, 0].tolist() == [[(8 + 4 * row + i) * 7 % 256 for i in range(4)] for row in range(2)]


@pytest.mark.parametrize(
    ("x", "y", "at_fault", "words"),
    [
        ((0, 2, 2), [], "x", "[0, 2, 2]"),
        ((2, 0, 2), [0, 0], "x", "[2, 0, 2]"),
        ((2, 4), [0, 0], "x", "[2, 4]"),
        ((2, 2, 2), [0, 1, 0], "y", "[3]"),
        ((3, 2, 2), [0, 1, 3], "y", "label 3 for image 2"),
        ((3, 2, 2), [0, 255, 2], "y", "label 255 for image 1"),
    ],
)
def test_images_that_do_not_fit_are_refused(tmp_path, x, y, at_fault, words):
    files = {"x": save(tmp_path, "x.idx", idx(x)), "y": save(tmp_path, "y.idx", idx((len(y),), y))}
    refusal(lambda: read_idx_images(files["x"], files["y"], classes=3), files[at_fault], words, "expected")


def test_labels_of_two_axes_are_refused(tmp_path):
    x, y = save(tmp_path, "x.idx", idx((2, 2, 2))), save(tmp_path, "y.idx", idx((2, 1)))
    refusal(lambda: read_idx_images(x, y, classes=99), y, "[2, 1]")


@given(st.binary(max_size=64))
@fuzz
def test_any_bytes_give_an_array_or_a_data_error(scratch, content):
    for prefix in (b"", b"\0\0\x08", b"\x1f\x8b\x08"):
        whole = prefix + content
        try:
            array = read_idx(save(scratch, "any", whole))
        except DataError as error:
            assert "any" in str(error) and "\n" not in str(error)
        else:
            assert whole == idx(array.shape, array.tobytes())


@given(damaged(idx((4, 3, 5))))
@fuzz
def test_damaged_files_give_what_they_hold_or_a_data_error(scratch, content):
    try:
        array = read_idx(save(scratch, "damaged", content))
    except DataError as error:
        assert "damaged" in str(error) and "\n" not in str(error)
    else:
        assert content == idx(array.shape, array.tobytes())


@given(damaged(gzip.compress(idx((4, 3, 5)), mtime=0)))
@fuzz
def test_damaged_gzip_files_give_the_same_array_or_a_data_error(scratch, content):
    try:
        array = read_idx(save(scratch, "damaged", content))
    except DataError as error:
        assert "damaged" in str(error) and "\n" not in str(error)
    else:  # only the time stamp and the like can have changed: the checksum guards the rest
        assert idx(array.shape, array.tobytes()) == idx((4, 3, 5))


@pytest.mark.parametrize(("name", "mean", "sd"), [("mnist", 0.1307, 0.3081), ("fashion-mnist", 0.2860, 0.3530)])
def test_the_published_files(real_data, name, mean, sd):
    for part, count in (("train", 60_000), ("t10k", 10_000)):
        files = [real_data / name / f"{part}-{kind}-ubyte.gz" for kind in ("images-idx3", "labels-idx1")]
        images = read_idx_images(*files, classes=10)
        assert images.x.shape == (count, 1, 28, 28)
        if name == "fashion-mnist":
            assert images.y.bincount().tolist() == [count // 10] * 10
        if part == "train":  # published to four decimals
            pixels = images.x.double() / 255
            assert abs(pixels.mean() - mean) < 5e-5 and abs(pixels.std() - sd) < 1e-4
    if name == "mnist":  # the counts of the test set's digits, as published
        assert images.y.bincount().tolist() == [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
