import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from damage import fuzz, refusal
from isingformer.data import DataError
from isingformer.data.cifar import CIFAR10_CLASSES, read_cifar, read_class_names

PIXELS = 3 * 32 * 32


def record(label, seed=0):
    """Label bytes, and pixels that all differ from their neighbours."""
    return bytes(label) + bytes((i * 31 + i // 1024 * 7 + seed) % 256 for i in range(PIXELS))


def save(folder, name, content):
    (folder / name).write_bytes(content)
    return folder / name


def test_pixels_are_planar(tmp_path):
    images = read_cifar([save(tmp_path, "a.bin", record([4]) + record([9], 5))], 1, 10)
    assert images.x.shape == (2, 3, 32, 32) and images.x.dtype == torch.uint8
    assert images.y.tolist() == [4, 9] and images.y.dtype == torch.int64
    content = record([9], 5)
    for channel, row, column in [(0, 0, 0), (0, 0, 31), (0, 1, 0), (1, 0, 0), (2, 17, 5), (2, 31, 31)]:
        assert images.x[1, channel, row, column] == content[1 + 1024 * channel + 32 * row + column]


def test_batches_follow_each_other(tmp_path):
    one = save(tmp_path, "1.bin", record([1]) + record([2]))
    two = save(tmp_path, "2.bin", record([3], 9))
    images = read_cifar([two, one, two], 1, 10)
    assert images.y.tolist() == [3, 1, 2, 3]
    assert torch.equal(images.x[0], images.x[3]) and not torch.equal(images.x[0], images.x[1])


def test_the_second_label_byte_counts(tmp_path):
    file = save(tmp_path, "train.bin", record([19, 99]) + record([255, 0]))
    images = read_cifar([file], 2, 100)
    assert images.y.tolist() == [99, 0]
    assert images.x[0].numpy().tobytes() == record([19, 99])[2:]


@pytest.mark.parametrize("label_bytes", [1, 2])
@pytest.mark.parametrize("change", [lambda b: b"", lambda b: b[:-1], lambda b: b + b"x", lambda b: b[:100]])
def test_what_is_not_whole_records_is_refused(tmp_path, label_bytes, change):
    good = save(tmp_path, "good.bin", record([0] * label_bytes))
    bad = save(tmp_path, "bad.bin", change(record([0] * label_bytes)))
    refusal(lambda: read_cifar([good, bad], label_bytes, 10), bad, f"{bad.stat().st_size:,} bytes", "expected")


def test_a_file_of_the_other_kind_is_refused(tmp_path):
    file = save(tmp_path, "train.bin", record([1, 2]) * 2)
    refusal(lambda: read_cifar([file], 1, 10), file, "3,073")


@pytest.mark.parametrize(("label_bytes", "classes"), [(1, 10), (2, 100)])
def test_a_label_out_of_range_is_refused(tmp_path, label_bytes, classes):
    good = record([0, classes - 1][-label_bytes:])
    file = save(tmp_path, "train.bin", good * 3 + record([0, classes][-label_bytes:]) + good)
    refusal(lambda: read_cifar([file], label_bytes, classes), file, f"label {classes} in record 3", f"{classes - 1}")


def test_wrong_calls_are_refused(tmp_path):
    refusal(lambda: read_cifar([], 1, 10), "no CIFAR file")
    refusal(lambda: read_cifar([tmp_path / "none.bin"], 1, 10), "none.bin", error=FileNotFoundError)
    refusal(lambda: read_cifar([tmp_path], 1, 10), tmp_path, "folder")
    refusal(lambda: read_cifar([tmp_path], 3, 10), "label_bytes is 3", error=ValueError)


def test_names_from_the_file_or_known_ones(tmp_path):
    assert read_class_names(tmp_path, 10) == CIFAR10_CLASSES
    assert read_class_names(tmp_path, 100) == tuple(map(str, range(100)))
    assert read_class_names(tmp_path, 3) == ("0", "1", "2")
    save(tmp_path, "batches.meta.txt", "\r\n".join(map("thing {}".format, range(10))).encode() + b"\r\n\r\n")
    save(tmp_path, "fine_label_names.txt", "\n".join(map("ärt{}".format, range(100))).encode())
    assert read_class_names(tmp_path, 10)[9] == "thing 9"
    assert read_class_names(tmp_path, 100)[99] == "ärt99"


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "0 names"),
        (b"a\nb\n", "2 names"),
        (b"\xff\xfe" * 10, "UTF-8"),
        (b"a\n" * 10, "two classes are called 'a'"),
        (b"\n".join(b"%d" % i for i in range(9)) + b"\n\x1b[2J", "control characters"),
        (b"\n".join(b"%d" % i for i in range(10)) + b"\n" * (1 << 20), "more than"),
    ],
)
def test_bad_names_are_refused(tmp_path, content, words):
    refusal(lambda: read_class_names(tmp_path, 10), save(tmp_path, "batches.meta.txt", content), words)


@given(st.integers(0, 3), st.integers(-2, 2), st.binary(max_size=60), st.sampled_from([1, 2]))
@fuzz
def test_any_bytes_give_their_records_or_a_data_error(scratch, records, extra, start, label_bytes):
    size = max(records * (label_bytes + PIXELS) + extra, 0)
    file = save(scratch, "any.bin", (start + bytes(size))[:size])
    try:
        images = read_cifar([file], label_bytes, 10)
    except DataError as error:
        assert "any.bin" in str(error) and "\n" not in str(error)
    else:
        content = np.frombuffer(file.read_bytes(), np.uint8).reshape(-1, label_bytes + PIXELS)
        assert np.array_equal(images.x.numpy().reshape(len(content), -1), content[:, label_bytes:])
        assert images.y.tolist() == content[:, label_bytes - 1].tolist() and images.y.max() < 10


@given(st.binary(max_size=200))
@fuzz
def test_any_names_file_gives_names_or_a_data_error(scratch, content):
    save(scratch, "batches.meta.txt", content)
    try:
        names = read_class_names(scratch, 10)
    except DataError as error:
        assert "batches.meta.txt" in str(error) and "\n" not in str(error)
    else:
        assert len(set(names)) == 10


def test_the_published_files(real_data):
    """Whole data sets or balanced subsets of them."""
    folder = real_data / "cifar-10-batches-bin"
    train = read_cifar(sorted(folder.glob("data_batch_*.bin")), 1, 10)
    test = read_cifar([folder / "test_batch.bin"], 1, 10)
    for images in (train, test):
        assert images.y.bincount().tolist() == [len(images) // 10] * 10
    # The means and deviations known of all 50,000 images; a subset of n deviates by about sd / sqrt(n) = 0.002.
    pixels = train.x.double() / 255
    assert torch.allclose(pixels.mean((0, 2, 3)), torch.tensor([0.4914, 0.4822, 0.4465]).double(), atol=0.005)
    assert torch.allclose(pixels.std((0, 2, 3)), torch.tensor([0.2470, 0.2435, 0.2616]).double(), atol=0.005)
    assert read_class_names(folder, 10) == CIFAR10_CLASSES


def test_the_published_files_of_cifar100(real_data):
    folder = real_data / "cifar-100-binary"
    for part in ("train", "test"):
        images = read_cifar([folder / f"{part}.bin"], 2, 100)
        assert images.y.bincount().tolist() == [len(images) // 100] * 100
    names = read_class_names(folder, 100)
    assert names[0] == "apple" and names[99] == "worm" and list(names) == sorted(names)
