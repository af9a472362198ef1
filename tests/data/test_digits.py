import torch
from sklearn.datasets import load_digits

from isingformer.data.digits import read_digits


def test_every_digit_is_there_once_and_scaled():
    digits, source = read_digits(), load_digits()
    assert digits.name == "digits" and digits.classes == tuple("0123456789")
    assert digits.train.x.dtype == torch.uint8 and digits.train.x.shape == (1437, 1, 8, 8)
    ours = [
        (tuple(x.flatten().tolist()), int(y))
        for part in (digits.train, digits.test)
        for x, y in zip(part.x, part.y, strict=True)
    ]
    theirs = [
        (tuple(round(v * 255 / 16) for v in image.ravel()), int(y))
        for image, y in zip(source.images, source.target, strict=True)
    ]
    assert sorted(ours) == sorted(theirs)


def test_the_split_is_stratified_and_fixed():
    digits = read_digits()
    assert digits.test.y.bincount().tolist() == [36] * 10
    assert digits.fingerprint() == read_digits().fingerprint()
    state = torch.get_rng_state()
    read_digits()
    assert torch.equal(state, torch.get_rng_state())


def test_the_split_is_drawn_not_cut_off():
    """The digits come in the order they were written, by person: the last ones are other people's."""
    source = torch.from_numpy(load_digits().images).flatten(1).mul(255 / 16).round()
    rows = [int((source == x.flatten()).all(1).nonzero()[0]) for x in read_digits().test.x]
    assert len(set(rows)) == 360 and rows == sorted(rows)
    # 360 of 1,797 rows drawn at random have their mean within four standard errors of the middle.
    error = (1797**2 / 12 / 360) ** 0.5
    assert abs(sum(rows) / 360 - 898) < 4 * error
