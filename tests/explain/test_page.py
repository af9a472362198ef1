import base64
import dataclasses
import html
import io
import re

import numpy as np
import pytest
import torch
from PIL import Image

import isingformer as isf
from isingformer.explain import Recorder, Spread, bottlenecks, explain
from isingformer.explain.image_view import image_view
from isingformer.explain.look import painted
from isingformer.explain.page_view import network_view, training_view


@pytest.fixture
def model(tiny):
    made = tiny()
    isf.attach(made, isf.Ising(delta=0.3), examples=10)
    return made


@pytest.fixture
def found(model, batch):
    return explain(model, batch(2)[0], samples=4, generator=torch.Generator().manual_seed(0))


def test_the_page_holds_everything_and_asks_for_nothing(found, model, tmp_path):
    recorder = Recorder(isf.attached_to(model))
    recorder()
    file = found.write_page(tmp_path / "new" / "page.html", title="<A & B>", classes=["x<y", "b", "c"],
                            names=["one", "two"], history=recorder.history, bottlenecks=bottlenecks(model))  # fmt: skip
    text = file.read_text(encoding="utf-8")
    assert "<h1>&lt;A &amp; B&gt;</h1>" in text and "x<y" not in text
    assert not re.search(r"(src|href)=\"(?!data:|#)", text) and "http" not in re.sub("http-equiv", "", text)
    for word in ("one", "two", "Training", "Bottlenecks", "multiply-adds", "Strongest paths"):
        assert word in text
    assert [p.name for p in file.parent.iterdir()] == ["page.html"]


def test_without_history_there_is_no_training(found):
    text = found.html()
    assert 'id="training"' not in text and "Image 2" in text


def test_the_numbers_of_an_image_are_those_of_the_arrays(found):
    view = image_view(found, 1, "two", None)
    mean = found.prediction.probs[1]
    order = mean.argsort(descending=True).tolist()
    low, high = found.prediction.interval(found.level)
    assert [row["name"] for row in view["classes"]] == [str(c) for c in order]
    assert view["classes"][0]["mean"] == f"{float(mean[order[0]]):.3f}" == view["likely"]
    assert view["classes"][0]["left"] == pytest.approx(100 * float(low[1, order[0]]), abs=0.006)
    assert view["classes"][0]["reach"] == pytest.approx(100 * float((high - low)[1, order[0]]), abs=0.006)
    assert view["attention"][0]["ends"][1] == f"{float(found.attention.rollout.mean[1].max()):.3g}"
    entropy = found.attention.entropy
    assert view["heads"]["views"][0]["blocks"][1][0]["caption"] == (
        f"{float(entropy.mean[1, 1, 0]):.2f} ± {float(entropy.sd[1, 1, 0]):.2f}"
    )


def test_the_spread_of_heads_by_hand(found):
    samples = torch.zeros(2, 2, 2, 2, 4)  # two networks, images, blocks, heads; four patches
    samples[0, 1, 1, 0], samples[1, 1, 1, 0] = torch.tensor([[0.5, 0.5, 0, 0], [0.1, 0.5, 0.4, 0]])
    attention = dataclasses.replace(found.attention, heads=Spread(samples))
    mean, sd = image_view(dataclasses.replace(found, attention=attention), 1, "two", None)["heads"]["views"]
    assert mean["ends"] == ("0", "0.5")  # the second patch, under both networks
    assert sd["ends"] == ("0", "0.283")  # of 0.5 and 0.1, and of 0 and 0.4: 0.4 / sqrt(2)
    assert [[head["caption"] for head in row] for row in sd["blocks"]] == [["up to 0"] * 2, ["up to 0.283", "up to 0"]]
    with Image.open(io.BytesIO(base64.b64decode(sd["blocks"][1][0]["uri"].split(",")[1]))) as drawn:
        colours = np.asarray(drawn.convert("RGB"))
    assert np.array_equal(colours, painted(torch.tensor([[1.0, 0], [1, 0]]), 0.0, 1.0)[..., :3])


def test_sure_patches_are_counted_by_side(found):
    samples = torch.tensor([1.0, 1.0, -1.0, 0.0]).expand(4, 2, 4).clone()
    samples[0, :, 3] = 5.0  # two networks for it and two against
    samples[1, :, 3] = -5.0
    relevance = dataclasses.replace(found.relevance, patches=Spread(samples))
    view = image_view(dataclasses.replace(found, relevance=relevance), 0, "one", None)
    assert view["relevance"][2]["key"] == [
        ("above", "surely for", 2), ("below", "surely against", 1), ("unsure", "unsure", 1),
    ]  # fmt: skip


def test_the_numbers_of_the_network_are_those_of_the_arrays(found):
    view = network_view(found.architecture, 0.9, None)
    value = view["map"][1][1][2]
    assert value["title"] == "value"
    keep = 1 - found.architecture.drop["blocks.0.attn.qkv"][16:24]
    assert value["mean"] == f"{float(keep.mean()):.3f}"
    assert view["entropy"] == f"{found.architecture.entropy:,.0f}"
    share = found.architecture.entropy / (found.architecture.masks * torch.log(torch.tensor(2.0)).item())
    assert view["entropy_most"] == f"{100 * share:.0f}%"


def test_every_picture_has_words(found):
    text = html.unescape(found.html())
    alts = re.findall(r"<img class=\"heat\"[^>]*alt=\"([^\"]*)\"", text)
    assert len(alts) == 2 * (6 + 2 * 4) and all(len(alt) > 20 for alt in alts)


def test_the_strips_of_training_show_what_was_kept(found, model):
    method = isf.attached_to(model)
    recorder = Recorder(method, every=1)
    for q in (0.0, 0.4):
        for part in method.parts.posteriors.values():
            part.drop.fill_(q)
        recorder()
    view = training_view(found.architecture, recorder.history)
    assert view["ends"] == ("0.6", "1") and view["frames"] == 2
    with Image.open(io.BytesIO(base64.b64decode(view["rows"][-1][1][0]["uri"].split(",")[1]))) as strip:
        colours = np.asarray(strip.convert("RGB"))
    assert colours.shape == (6, 8, 3)  # two frames of 3 classes by 8 channels, one above the other
    assert colours[0, 0].tolist() == painted(torch.ones(1, 1), 0.0, 1.0)[0, 0, :3].tolist()
    assert colours[5, 7].tolist() == painted(torch.zeros(1, 1), 0.0, 1.0)[0, 0, :3].tolist()
    with Image.open(io.BytesIO(base64.b64decode(view["course"]["uri"].split(",")[1]))) as course:
        means = np.asarray(course.convert("RGB"))
    assert np.array_equal(means, painted(torch.tensor([[1.0, 0.0]] * 10), 0.0, 1.0)[..., :3])  # ten layers, two steps
    assert view["course"]["layers"][:3] == ["embedding", "block 1 qkv", "block 1 proj"] and view["steps"] == [0, 0]


def test_a_history_of_another_model_is_refused(found, tiny):
    other = tiny(depth=1)
    recorder = Recorder(isf.attach(other, isf.DropConnect(p=0.2), examples=10))
    recorder()
    with pytest.raises(ValueError, match=r"the history lacks layer 'blocks.1.attn.qkv'"):
        training_view(found.architecture, recorder.history)
