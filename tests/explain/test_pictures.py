import base64
import io
import itertools

import matplotlib
import numpy as np
import pytest
import torch
from PIL import Image

import isingformer as isf
from isingformer.explain import explain
from isingformer.explain.look import AGAINST, FOR, UNSURE, colours, data_uri, gradient, painted, pixels, reduced, told
from isingformer.explain.network_map import keep_range, tiles


@pytest.fixture
def found(tiny, batch):
    model = tiny()
    isf.attach(model, isf.DropConnect(p=0.3), examples=10)
    return explain(model, batch(2)[0], samples=4, generator=torch.Generator().manual_seed(0))


def rgb(colour):
    return [*bytes.fromhex(colour[1:]), 255]


def luminance(colour):
    parts = [c / 255 for c in colour[:3]]
    parts = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return sum(c * share for c, share in zip(parts, (0.2126, 0.7152, 0.0722), strict=True))


def test_values_become_the_colours_of_their_scale():
    picture = painted(torch.tensor([[-1.0, 0.0, 0.5, 1.0, 9.0]]), 0.0, 1.0)
    ends = [rgb(c) for c in (gradient("share").split(", ")[k] for k in (0, 4, 8))]
    assert picture[0][[1, 3]].tolist() == [ends[0], ends[2]] and picture[0, 0].tolist() == ends[0]
    assert picture[0, 4].tolist() == ends[2] and np.abs(picture[0, 2].astype(int) - ends[1]).max() <= 2


def test_large_matrices_are_shown_in_cells():
    values = torch.arange(24.0).view(4, 6)
    assert reduced(values, 6) is values
    assert reduced(values, 2).tolist() == [[4.0, 7.0], [16.0, 19.0]]  # means of 2 x 3


def test_lightness_tells_much_from_little_without_colour():
    light = [luminance(c) for c in colours("share")(np.linspace(0, 1, 20), bytes=True).tolist()]
    assert light == sorted(light) and light[-1] - light[0] > 0.5
    sign = [luminance(c) for c in colours("sign")(np.linspace(0, 1, 21), bytes=True).tolist()]
    assert sign[:11] == sorted(sign[:11]) and sign[10:] == sorted(sign[10:], reverse=True)


def test_sides_have_their_colours():
    assert told(torch.tensor([[-1, 0, 1]], dtype=torch.int8))[0].tolist() == [rgb(AGAINST), rgb(UNSURE), rgb(FOR)]


def test_images_are_stretched_between_their_extremes():
    assert pixels(torch.tensor([[[-2.0, 2.0]]]))[0].tolist() == [[0, 0, 0, 255], [255, 255, 255, 255]]
    assert pixels(torch.zeros(3, 2, 2)).shape == (2, 2, 4)


@pytest.mark.parametrize("many", [False, True], ids=["palette", "colours"])
def test_a_picture_in_an_address_is_that_picture(many):
    picture = torch.randint(256, (20, 30, 4), dtype=torch.uint8, generator=torch.Generator().manual_seed(0)).numpy()
    if not many:
        picture = painted(torch.rand(20, 30), 0.0, 1.0)
    with Image.open(io.BytesIO(base64.b64decode(data_uri(picture).split(",")[1]))) as image:
        assert np.array_equal(np.asarray(image.convert("RGB")), picture[..., :3])
        assert (image.mode == "P") is not many


def test_the_map_holds_every_weight_once_with_the_stream_across(found):
    parts, drop = found.parts, dict(found.architecture.drop)
    rows = tiles(parts)
    assert [name for name, _ in rows] == ["input", "block 1", "block 2", "classes"]
    every = [tile for _, row in rows for tile in row]
    assert sum(tile.of(drop[tile.layer]).numel() for tile in every) == found.architecture.full.weights
    assert {tile.of(drop[tile.layer]).shape[1] for tile in every} == {parts.width}
    drop["blocks.0.attn.qkv"] = torch.arange(24.0)[:, None].expand(24, 8)
    key = rows[1][1][1]
    assert key.title == "key" and key.of(drop["blocks.0.attn.qkv"])[:, 0].tolist() == list(range(8, 16))


def test_the_range_of_the_map_is_rounded_outwards():
    assert keep_range({"a": torch.tensor([0.02, 0.25])}) == (0.7, 1.0)
    assert keep_range({"a": torch.tensor([0.2])}) == pytest.approx((0.7, 0.9))
    assert keep_range({"a": torch.tensor([0.0])}) == (0.9, 1.0)


def test_the_figure_of_an_image_shows_its_numbers(found):
    figure = found.plot(1, classes="abc")
    assert figure.get_suptitle() == f"Why '{'abc'[int(found.target[1])]}'? 4 drawn networks"
    drawn = {axes.get_title(loc="left"): axes for axes in figure.axes}
    rollout = drawn["where it looks: rollout"].images[1]
    torch.testing.assert_close(torch.tensor(rollout.get_array()), found.attention.rollout.mean[1].view(2, 2))
    heads = drawn["relevance of heads"].images[0]
    torch.testing.assert_close(torch.tensor(heads.get_array()), found.relevance.heads.mean[1])
    widths = [bar.get_width() for bar in drawn["probability, 90% interval"].patches]
    assert widths == pytest.approx(found.prediction.probs[1].sort(descending=True).values.tolist())


def test_figures_are_drawn_and_leave_matplotlib_as_it_was(found):
    before = dict(matplotlib.rcParams)
    for figure in (found.plot(), found.architecture.plot()):
        buffer = io.BytesIO()
        figure.savefig(buffer, format="png")
        assert len(buffer.getvalue()) > 10_000
    assert dict(matplotlib.rcParams) == before


def test_the_map_figure_has_a_panel_a_tile(found):
    titles = [axes.get_title(loc="left") for axes in found.architecture.plot().axes]
    expected = [tile.title for tile in itertools.chain(*(row for _, row in tiles(found.parts)))]
    assert [title for title in titles if title] == expected
