import random

import numpy as np
import pytest
import torch
from PIL import Image

from damage import refusal
from isingformer.data import folder as module
from isingformer.data.folder import read_folder


def picture(file, size=(4, 4), mode="L", value=0):
    """An image of one colour, (width, height)."""
    file.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, size, value if mode == "L" else (value, 0, 255 - value)).save(file)
    return file


@pytest.fixture
def pets(tmp_path):
    """10 cats of brightness 0 to 9, 5 dogs of 100 to 104, one owl of 200."""
    for name, start, count in [("cat", 0, 10), ("dog", 100, 5), ("owl", 200, 1)]:
        for number in range(count):
            picture(tmp_path / "pets" / name / f"{number:02}.png", value=start + number)
    return tmp_path / "pets"


def values(images):
    return [(int(x[0, 0, 0]), int(y)) for x, y in zip(images.x, images.y, strict=True)]


def test_every_image_is_read_once_with_its_class(pets):
    data = read_folder(pets)
    assert data.name == "pets" and data.classes == ("cat", "dog", "owl") and data.channels == 1
    assert data.train.x.dtype == torch.uint8 and data.train.y.dtype == torch.int64
    expected = [(v, 0) for v in range(10)] + [(v, 1) for v in range(100, 105)] + [(200, 2)]
    assert sorted(values(data.train) + values(data.test)) == expected
    assert data.test.y.bincount(minlength=3).tolist() == [2, 1, 0]  # the only owl is trained on


@pytest.mark.parametrize("share", [0.001, 0.2, 0.5, 0.999])
def test_every_class_keeps_an_image_on_each_side(pets, share):
    data = read_folder(pets, test_share=share)
    trained, tested = data.train.y.bincount(minlength=3), data.test.y.bincount(minlength=3)
    for label, count in enumerate([10, 5, 1]):
        assert trained[label] + tested[label] == count
        assert tested[label] == (min(max(round(count * share), 1), count - 1) if count > 1 else 0)


def test_the_split_depends_on_names_alone(pets, monkeypatch):
    before = read_folder(pets)
    listing = type(pets).iterdir

    def shuffled(path):
        entries = list(listing(path))
        random.shuffle(entries)
        return iter(entries)

    monkeypatch.setattr(type(pets), "iterdir", shuffled)
    torch.manual_seed(5)
    assert read_folder(pets).fingerprint() == before.fingerprint()


def test_another_dog_leaves_the_cats_where_they_are(pets):
    before = values(read_folder(pets).test)
    picture(pets / "dog" / "99.png", value=105)
    assert [v for v in values(read_folder(pets).test) if v[1] == 0] == [v for v in before if v[1] == 0]


def test_the_split_is_drawn_not_cut_off(tmp_path):
    for name in ("a", "b"):
        for number in range(50):
            picture(tmp_path / name / f"{number:02}.png", value=number)
    test = [v for v, y in values(read_folder(tmp_path).test) if y == 0]
    assert len(test) == 10 and test == sorted(test) and test not in (list(range(10)), list(range(40, 50)))
    assert test != [v for v, y in values(read_folder(tmp_path).test) if y == 1]


def test_a_ready_made_split_is_kept(tmp_path):
    for part, start in (("train", 0), ("test", 50)):
        for label, name in enumerate(("b", "a")):
            for number in range(3):
                picture(tmp_path / part / name / f"{number}.png", value=start + 10 * label + number)
    (tmp_path / "README.txt").write_text("beside the folders, passed over")
    data = read_folder(tmp_path, test_share=0.9)
    assert data.classes == ("a", "b")
    assert values(data.train) == [(10, 0), (11, 0), (12, 0), (0, 1), (1, 1), (2, 1)]
    assert values(data.test) == [(60, 0), (61, 0), (62, 0), (50, 1), (51, 1), (52, 1)]


@pytest.mark.parametrize(("has", "lacks"), [("train", "test"), ("test", "train")])
def test_a_ready_made_split_must_share_its_classes(tmp_path, has, lacks):
    for part in ("train", "test"):
        for name in ("a", "b"):
            picture(tmp_path / part / name / "1.png")
    picture(tmp_path / has / "c" / "1.png")
    refusal(lambda: read_folder(tmp_path), tmp_path, f"{has} has a class 'c' that {lacks} has not")


def test_train_and_test_are_never_taken_for_classes(tmp_path):
    for name in ("train", "test"):
        picture(tmp_path / name / "1.png")
        picture(tmp_path / name / "2.png")
    refusal(lambda: read_folder(tmp_path), "1.png", "outside the class folders")


def test_a_third_part_is_not_taken_for_a_class(tmp_path):
    for name in ("train", "test", "valid"):
        for kind in ("a", "b"):
            picture(tmp_path / name / kind / "1.png")
    refusal(lambda: read_folder(tmp_path), tmp_path / "test" / "a", "exactly the two folders train and test")


def test_junk_is_passed_over(pets):
    before = read_folder(pets).fingerprint()
    for name in (".DS_Store", "Thumbs.db", "desktop.ini", "._00.png"):
        (pets / "cat" / name).write_bytes(b"junk")
        (pets / name).write_bytes(b"junk")
    (pets / ".git").mkdir()
    (pets / "__MACOSX").mkdir()
    (pets / "labels.csv").write_text("beside the folders")
    assert read_folder(pets).fingerprint() == before


def test_links_are_followed(pets, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "dog").symlink_to(pets / "dog", target_is_directory=True)
    (tmp_path / "mine" / "cat").mkdir()
    for number in range(2):
        (tmp_path / "mine" / "cat" / f"{number}.png").symlink_to(pets / "cat" / f"0{number}.png")
    data = read_folder(tmp_path / "mine")
    assert len(data.train) + len(data.test) == 7


def test_progress_counts_images(pets):
    seen = []
    read_folder(pets, progress=lambda done, total: seen.append((done, total)))
    assert seen == [(i, 16) for i in range(1, 17)]


def test_wrong_layouts_are_refused(tmp_path, pets):
    refusal(lambda: read_folder(tmp_path / "none"), "none", "does not exist")
    refusal(lambda: read_folder(pets / "cat" / "00.png"), "00.png", "is a file")
    refusal(lambda: read_folder(pets / "cat"), "00.png", "outside the class folders")
    refusal(lambda: read_folder(tmp_path), tmp_path, "1 class folder;", "at least two")
    (tmp_path / "empty").mkdir()
    refusal(lambda: read_folder(tmp_path / "empty"), "empty", "0 class folders")


@pytest.mark.parametrize("name", ["notes.txt", "no-extension", "a.psd", "b.eps", "c.npy"])
def test_what_is_no_image_by_name_is_refused(pets, name):
    (pets / "dog" / name).write_bytes((pets / "dog" / "00.png").read_bytes())
    refusal(lambda: read_folder(pets), pets / "dog" / name, "no image")


def test_what_is_no_image_by_content_is_refused(pets):
    whole = (pets / "dog" / "00.png").read_bytes()
    for content, words in [(b"", "0 bytes"), (b"text", "no image"), (whole[:-20], "damaged"), (whole[:40], "no image")]:
        (pets / "dog" / "bad.png").write_bytes(content)
        refusal(lambda: read_folder(pets), pets / "dog" / "bad.png", words)


def test_an_empty_class_a_dead_link_and_a_folder_inside_are_refused(pets):
    (pets / "emu").mkdir()
    refusal(lambda: read_folder(pets), pets / "emu", "is empty")
    (pets / "emu" / ".hidden").touch()
    refusal(lambda: read_folder(pets), pets / "emu", "is empty")
    (pets / "emu" / "1.png").symlink_to(pets / "nowhere.png")
    refusal(lambda: read_folder(pets), pets / "emu" / "1.png", "a link that leads nowhere")
    (pets / "emu" / "1.png").unlink()
    (pets / "emu" / "1.png").mkdir()
    refusal(lambda: read_folder(pets), pets / "emu" / "1.png", "folder inside")


def test_a_class_name_with_a_line_break_is_refused(pets):
    picture(pets / "a\nb" / "1.png")
    refusal(lambda: read_folder(pets), r"a\nb", "control characters")


def test_one_image_a_class_leaves_none_to_test_on(tmp_path):
    picture(tmp_path / "a" / "1.png")
    picture(tmp_path / "b" / "1.png")
    refusal(lambda: read_folder(tmp_path), tmp_path, "one image in each class")


@pytest.mark.parametrize(
    ("size", "mode", "words"), [((4, 5), "L", "4 x 5 grey"), ((5, 4), "L", "5 x 4 grey"), ((4, 4), "RGB", "4 x 4 RGB")]
)
def test_an_image_unlike_the_first_is_refused(pets, size, mode, words):
    odd = picture(pets / "dog" / "odd.png", size, mode, value=7)
    refusal(lambda: read_folder(pets), odd, f"is {words}; expected 4 x 4 grey", "--resize N")


def test_resize_makes_images_alike(pets):
    picture(pets / "dog" / "odd.png", (9, 5), "RGB", 7)
    data = read_folder(pets, resize=3)
    assert data.channels == 3 and data.size == (3, 3)  # RGB, because one of them is
    everything = torch.cat([data.train.x, data.test.x])
    assert (everything == everything[:, :, :1, :1]).all()  # one colour stays one colour
    assert {(7, 0, 248), (200, 200, 200)} <= {tuple(x[:, 0, 0].tolist()) for x in everything}
    assert read_folder(pets, resize=3, channels=1).channels == 1


def test_channels_convert_without_resizing(pets):
    odd = picture(pets / "dog" / "odd.png", mode="RGB", value=7)
    grey, colour = read_folder(pets, channels=1), read_folder(pets, channels=3)
    assert grey.channels == 1 and colour.channels == 3
    luma = round(0.299 * 7 + 0.114 * 248)  # ITU-R 601
    assert luma in [v for v, y in values(grey.train) + values(grey.test) if y == 1]
    picture(odd, (5, 5), "RGB")
    refusal(lambda: read_folder(pets, channels=1), odd, "5 x 5 grey; expected 4 x 4 grey")


def test_transparency_is_refused_or_laid_on_white(pets):
    pixels = np.full((4, 4, 2), 50, np.uint8)
    pixels[..., 1] = 0
    Image.fromarray(pixels, "LA").save(pets / "owl" / "00.png")
    refusal(lambda: read_folder(pets), pets / "owl" / "00.png", "transparent", "--resize N")
    data = read_folder(pets, channels=1)
    assert (255, 2) in values(data.train)


def test_wrong_arguments_are_refused(pets):
    refusal(lambda: read_folder(pets, resize=0), "resize is 0", error=ValueError)
    refusal(lambda: read_folder(pets, test_share=1.0), "test_share is 1.0", error=ValueError)
    refusal(lambda: read_folder(pets, test_share=0), "test_share is 0", error=ValueError)
    refusal(lambda: read_folder(pets, channels=2), "2 channels", error=ValueError)


def test_what_does_not_fit_into_memory_is_refused(pets, monkeypatch):
    monkeypatch.setattr(module, "MOST_BYTES", 255)
    refusal(lambda: read_folder(pets), "16 images of 4 x 4 grey", "256 bytes", "--resize N")
    monkeypatch.setattr(module, "MOST_BYTES", 256)
    assert len(read_folder(pets).train) == 13
