"""Questions and answers, without a server."""

import base64
import io
import math

import numpy as np
import pytest
import torch
from PIL import Image

import isingformer as isf
from isingformer.data import DataError, Images
from isingformer.explore import Edits, Explorer, Pool, pools_of
from isingformer.explore import explorer as module
from isingformer.explore.explorer import packed
from isingformer.explore.views import answer_view, fitted_view, gallery_view, patch_words
from pictures import corners


def asked(**changes):
    return {"image": {"set": "test", "index": 3}, "rotate": 0, "blur": 0, "cover": [], "passes": 6, **changes}


def file_of(pixels, kind="PNG", **settings):
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, format=kind, **settings)
    return buffer.getvalue()


def test_an_answer_is_what_predict_and_explain_say_of_the_changed_image(run, explorer):
    question = explorer.question(asked(rotate=20, blur=0.5, cover=[0, 7]))
    answer = answer_view(explorer, question)
    changed = Edits(20, 0.5, (0, 7)).apply(
        run.data().test.x[3], side=2, fill=torch.tensor(run.about["data"]["mean"]).round()
    )
    inputs = run.inputs(changed[None])
    inputs[:, :, :2, :2] = inputs[:, :, 2:4, 6:] = 0.0  # hidden is exactly the training mean, not its nearest pixel
    same = isf.predict(run.model, inputs, samples=6, generator=torch.Generator().manual_seed(0))
    low, high = same.interval(0.9)
    assert [float(row["mean"]) for row in answer["bars"]] == pytest.approx(same.probs[0].tolist(), abs=6e-4)
    assert [row["left"] for row in answer["bars"]] == pytest.approx((100 * low[0]).tolist(), abs=0.01)
    assert [row["reach"] for row in answer["bars"]] == pytest.approx((100 * (high - low)[0]).tolist(), abs=0.01)
    best = int(same.classes)
    assert answer["likely"]["name"] == str(best) == answer["traced"] and answer["bars"][best]["traced"]
    for row, value in zip(answer["uncertainty"], (same.entropy, same.aleatoric, same.epistemic), strict=True):
        assert float(row["nats"]) == pytest.approx(float(value), rel=6e-3)
        assert row["width"] == pytest.approx(100 * float(value) / math.log(10), abs=0.01)
    explained = isf.explain(run.model, inputs, samples=6, generator=torch.Generator().manual_seed(0))
    regions = explained.relevance.regions(0.9)[0]
    assert [count for *_, count in answer["relevance"][2]["key"]] == [int((regions == s).sum()) for s in (1, -1, 0)]
    assert answer["relevance"][1]["ends"][1] == f"{float(explained.relevance.patches.sd[0].max()):.3g}"
    assert answer["attention"][0]["ends"][1] == f"{float(explained.attention.rollout.mean[0].max()):.3g}"
    spreads = (explained.attention.rollout.of(0), explained.relevance.patches.of(0))
    rows = [[float(part[4]) for part in (s.mean, *s.interval(0.9))] for s in spreads]
    assert len(answer["patches"]) == 16 and answer["patches"][4] == patch_words(*rows)
    assert answer["patches"][0].endswith("relevance 0 (0 to 0)") and answer["patches"][7].endswith("0 (0 to 0)")
    assert answer["label"] == str(int(run.data().test.y[3])) and answer["passes"] == 6 == answer["course"][-1][0]


def test_a_patch_in_words():
    assert patch_words((0.0625, 0.05, 0.0712), (-1.5, -2, 0.25)) == (
        "attention 0.0625 (0.05 to 0.0712), relevance -1.5 (-2 to 0.25)"
    )


def test_the_picture_is_the_changed_image_as_it_is(explorer, run):
    def pixels(**changes):
        content = answer_view(explorer, explorer.question(asked(passes=1, **changes)))["picture"]
        with Image.open(io.BytesIO(base64.b64decode(content.partition(",")[2]))) as picture:
            return np.asarray(picture.convert("L"))

    plain = run.data().test.x[3, 0].numpy()
    assert np.array_equal(pixels(), plain)
    assert np.array_equal(pixels(rotate=90), np.rot90(plain, -1))
    dimmed = pixels(cover=list(range(16)))
    assert (dimmed == round(run.about["data"]["mean"][0])).all()  # not stretched to black and white


def test_an_image_that_is_sent_is_that_of_the_command(explorer, run, tmp_path):
    photo = np.random.default_rng(0).integers(0, 256, (30, 45, 3), dtype=np.uint8)
    for kind in ("PNG", "JPEG", "BMP", "WEBP", "TIFF", "GIF"):
        content = file_of(photo, kind)
        (tmp_path / "photo").write_bytes(content)
        (same,) = run.read_images([tmp_path / "photo"], resize=True)
        found = fitted_view(explorer, content)
        assert found["pixels"] == packed(same) and found["was"] == "45 x 30 RGB"
    question = explorer.question(asked(image={"pixels": found["pixels"]}))
    assert torch.equal(question.image, same) and question.label is None


def test_of_an_animation_the_first_picture_is_taken(explorer):
    first, second = (Image.fromarray(np.full((8, 8), value, np.uint8)) for value in (10, 200))
    buffer = io.BytesIO()
    first.save(buffer, format="GIF", save_all=True, append_images=[second])
    image, _ = explorer.fitted(buffer.getvalue())
    assert (image == 10).all()


def test_images_that_cannot_be_read_are_refused_in_a_line(explorer, monkeypatch):
    whole = file_of(np.zeros((40, 40), np.uint8))
    monkeypatch.setattr(module, "MOST_PIXELS", 40 * 40 - 1)
    for content, message in (
        (b"", "the file is empty"),
        (b"<svg></svg>", "the file is no image that can be read; expected PNG, JPEG"),
        (whole, "the file is 40 x 40, too large; expected at most 1,599 pixels"),
        (file_of(np.random.default_rng(0).integers(0, 256, (20, 20), np.uint8))[:200], "damaged or cut short"),
        (file_of(np.zeros((4, 4), np.uint16)), "has mode I;16; expected 8-bit"),
    ):
        with pytest.raises(DataError, match=message):
            explorer.fitted(content)


def test_a_file_that_promises_more_pixels_than_it_holds_is_not_unpacked(explorer, monkeypatch):
    """The size is read in the header: a bomb is refused before its pixels are."""
    bomb = bytearray(file_of(np.zeros((1, 1), np.uint8), "BMP"))
    bomb[18:26] = (60_000).to_bytes(4, "little") * 2
    monkeypatch.setattr(Image.Image, "load", lambda self: pytest.fail("it was unpacked"))
    with pytest.raises(DataError, match="too large; expected at most 24,000,000 pixels"):
        explorer.fitted(bytes(bomb))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"passes": 41}, "passes must be a whole number from 1 to 40, got '41'"),
        ({"passes": True}, "passes must be"),
        ({"passes": None}, "passes must be"),
        ({"rotate": 181}, "rotate must be a number from -180 to 180"),
        ({"rotate": float("nan")}, "rotate must be"),
        ({"blur": -1}, "blur must be a number from 0 to 2"),
        ({"blur": "1"}, "blur must be"),
        ({"cover": [16]}, "cover must be a whole number from 0 to 15"),
        ({"cover": "all"}, "cover must be a list"),
        ({"target": 10}, "target must be a whole number from 0 to 9"),
        ({"image": {"set": "train", "index": 0}}, r"no images 'train'; expected one of \['validation', 'test'\]"),
        ({"image": {"set": "test", "index": 360}}, "index must be a whole number from 0 to 359"),
        ({"image": {"pixels": "AAAA"}}, r"pixels must be 64 bytes, \[1, 8, 8\], got 3"),
        ({"image": {"pixels": "?"}}, "pixels must be base64"),
        ({"image": None}, "image must be"),
    ],
    ids=str,
)
def test_questions_that_make_no_sense_are_refused(explorer, changes, message):
    with pytest.raises(ValueError, match=message):
        explorer.question(asked(**changes))


def test_what_is_no_question_is_refused(explorer):
    with pytest.raises(ValueError, match="must be an object, got list"):
        explorer.question([1])


def test_what_is_remembered_is_bounded(explorer, monkeypatch):
    monkeypatch.setattr(module, "KEPT", 3)
    for index in (0, 1, 2, 0, 3):
        explorer.see(explorer.question(asked(image={"set": "test", "index": index}, passes=1)))
    assert len(explorer._kept) == 3
    kept = list(explorer._kept.values())
    explorer.see(explorer.question(asked(image={"set": "test", "index": 0}, passes=2)))
    assert explorer._kept.popitem()[1] in kept  # asked for twice, it was not the one to go


def test_the_gallery_shows_all_images_or_those_of_a_class(explorer, run):
    test, pool = run.data().test, explorer.pool("test")
    found = gallery_view(pool, 24, None)
    assert [one["index"] for one in found["images"]] == list(range(24, 48)) and found["total"] == 360
    sevens = gallery_view(pool, 0, 7)
    assert sevens["total"] == int((test.y == 7).sum()) and {one["label"] for one in sevens["images"]} == {"7"}
    assert gallery_view(pool, sevens["total"] - 1, 7)["images"][0]["index"] == int(torch.nonzero(test.y == 7)[-1])
    for start, label in ((360, None), (-1, None), (0, 10)):
        with pytest.raises(ValueError):
            gallery_view(pool, start, label)


def test_the_images_to_choose_from(run):
    validation, test = pools_of(run)
    assert torch.equal(validation.images.x, run.validation().x) and torch.equal(test.images.x, run.data().test.x)
    other = corners(side=12, channels=3)
    (pool,) = pools_of(run, other)
    assert pool.name == "corners, test" and pool.images.x.shape == (40, 1, 8, 8) and pool.label(1) == "top right"


def test_data_of_another_kind_are_refused(run):
    images = Images(torch.rand(4, 1, 8, 8), torch.zeros(4, dtype=torch.int64))
    with pytest.raises(ValueError, match=r"has torch.float32 pixels; .* reads uint8"):
        pools_of(run, isf.Dataset("numbers", images, images, ("a",)))


def test_a_compressed_run_has_predictions_and_no_maps(compact):
    explorer = Explorer(compact, pools_of(compact), most=20)
    answer = answer_view(explorer, explorer.question(asked(cover=[15])))
    assert answer["attention"] is None and answer["relevance"] is None and answer["patches"] == []
    changed = Edits(cover=(15,)).apply(compact.data().test.x[3], side=2, fill=explorer.fill)
    same = compact.predict(changed[None], samples=6, seed=0).probs[0]
    assert [float(row["mean"]) for row in answer["bars"]] == pytest.approx(same.tolist(), abs=6e-4)


def test_a_run_on_other_numbers_takes_no_image_files(tmp_path):
    x = torch.randn(60, 2, 4, 4, generator=torch.Generator().manual_seed(0))
    images = Images(x, (x.mean((1, 2, 3)) > 0).long())
    dataset = isf.Dataset("numbers", images, images, ("below", "above"))
    recipe = isf.Recipe(epochs=1, width=8, depth=1, heads=1, mlp=8, patch=2, validation=0)
    run = isf.train(dataset, isf.DropConnect(p=0.3), recipe, out=tmp_path / "run", progress=False, tensorboard=False)
    assert pools_of(isf.Run(run.folder)) == []  # made in Python, and not at hand
    (pool,) = pools_of(run)
    explorer = Explorer(run, [pool])
    assert not explorer.takes_images
    with pytest.raises(ValueError, match="not trained on pixels of image files"):
        explorer.fitted(b"")
    with pytest.raises(ValueError, match="image must be"):
        explorer.question(asked(image={"pixels": "AAAA"}))
    answer = answer_view(explorer, explorer.question(asked(blur=0.5, cover=[0])))
    changed = Edits(blur=0.5, cover=(0,)).apply(x[3], side=2, fill=torch.tensor(run.about["data"]["mean"]))
    same = run.predict(changed[None], samples=6, seed=0).probs[0]
    assert [float(row["mean"]) for row in answer["bars"]] == pytest.approx(same.tolist(), abs=6e-4)


def test_of_many_classes_the_most_probable_are_shown(run, monkeypatch):
    from isingformer.explore import views

    monkeypatch.setattr(views, "ALL_CLASSES", 5)
    explorer = Explorer(run, pools_of(run))
    rows = answer_view(explorer, explorer.question(asked()))["bars"]
    assert len(rows) == 6 and [row["width"] for row in rows] == sorted((row["width"] for row in rows), reverse=True)


def test_a_level_that_is_none_is_refused(run):
    with pytest.raises(ValueError, match="level must be in"):
        Explorer(run, level=1.0)


def test_a_pool_knows_its_classes(run):
    pool = Pool("mine", run.data().test, tuple("abcdefghij"))
    assert pool.label(0) == "abcdefghij"[int(run.data().test.y[0])]
    with pytest.raises(ValueError, match="mine has no class 11"):
        pool.rows(11)


@pytest.mark.gpu
def test_on_a_gpu_the_answer_is_that_of_predict_there(run):
    there = isf.Run(run.folder, device="cuda")
    explorer = Explorer(there, pools_of(there))
    answer = answer_view(explorer, explorer.question(asked(rotate=15)))
    changed = Edits(15).apply(there.data().test.x[3], side=2, fill=explorer.fill)
    same = there.predict(changed[None], samples=6, seed=0).probs[0]
    assert [float(row["mean"]) for row in answer["bars"]] == pytest.approx(same.tolist(), abs=6e-4)
    assert len(answer["relevance"]) == len(answer["attention"]) == 3 and len(answer["patches"]) == 16
