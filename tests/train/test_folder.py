"""A run's folder that has lost something: each error says what brings it back, and following it does."""

import pytest
import torch

import isingformer as isf
from isingformer.study import Store, read_plan
from pictures import corners

RECIPE = isf.Recipe(epochs=2, batch=16, width=16, depth=1, heads=2, mlp=16, patch=4, validation=16)


def train(folder, **more):
    return isf.train(corners(), None, RECIPE, out=folder, progress=False, tensorboard=False, **more)


def cut_short(file):
    file.write_bytes(file.read_bytes()[:100])


def said(error, call):
    """What a call that must fail says."""
    with pytest.raises(error) as caught:
        call()
    assert "save" not in str(caught.value).replace("saved", "")  # which whoever has a run alone cannot do
    return str(caught.value)


@pytest.mark.parametrize("name", ["model-*", "posterior-*", "isingformer.json"])
@pytest.mark.parametrize(
    ("harm", "error", "what"),
    [(lambda file: file.unlink(), FileNotFoundError, "is missing"), (cut_short, ValueError, "is damaged")],
    ids=["missing", "cut short"],
)
def test_a_finished_run_without_its_model_says_to_train_again_and_so_does_training(tmp_path, name, harm, error, what):
    train(tmp_path / "a")
    (file,) = (tmp_path / "a").glob(name)
    harm(file)
    for call in (lambda: isf.Run(tmp_path / "a").model, lambda: train(tmp_path / "a")):
        text = said(error, call)
        assert text.startswith(f"{file} {what}") and text.endswith("; train again with --overwrite")
    again = train(tmp_path / "a", overwrite=True)
    assert again.model.training is False


def test_an_index_that_is_none_of_ours_is_damaged_for_training_too(tmp_path):
    train(tmp_path / "a")
    for text in ("[]", '{"format": 1}', '{"format": 1, "files": 3}'):
        (tmp_path / "a" / "isingformer.json").write_text(text)
        assert said(ValueError, lambda: train(tmp_path / "a")).endswith("; train again with --overwrite")
    (tmp_path / "a" / "isingformer.json").write_text('{"format": 99, "isingformer": "9.9"}')
    text = said(ValueError, lambda: train(tmp_path / "a"))
    assert text.endswith("isingformer.json has format 99, this version reads 1; use isingformer 9.9")
    assert text.startswith(str(tmp_path))


def test_a_study_and_a_training_do_not_share_a_folder(tmp_path):
    plan = read_plan("quick")
    Store.open(tmp_path / "study", plan)
    with pytest.raises(FileExistsError, match=r"study holds a study \(plan.json\); give another --out"):
        train(tmp_path / "study")
    assert not (tmp_path / "study" / "run.json").exists()
    train(tmp_path / "run")
    with pytest.raises(FileExistsError, match=r"run holds a training \(run.json\); give another --out"):
        Store.open(tmp_path / "run", plan)
    assert not (tmp_path / "run" / "records").exists()


def test_without_a_damaged_checkpoint_the_same_training_begins_anew(tmp_path):
    left = iter(range(6, -1, -1))
    assert not train(tmp_path / "a", stop=lambda: next(left) == 0).finished
    checkpoint = tmp_path / "a" / "checkpoint.safetensors"
    cut_short(checkpoint)
    text = said(ValueError, lambda: train(tmp_path / "a"))
    assert f"{checkpoint} is damaged" in text and "remove it and the same command begins at step 0" in text
    checkpoint.unlink()
    one, other = train(tmp_path / "a").model.state_dict(), train(tmp_path / "b").model.state_dict()
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_damaged_pictures_of_q_can_be_had_again_or_done_without(tmp_path):
    run = train(tmp_path / "a")
    cut_short(tmp_path / "a" / "q-history.safetensors")
    assert said(ValueError, run.q_history).endswith(
        "; train again with --overwrite; or remove it, and do without the pictures of the training"
    )


def test_a_folder_that_is_named_like_a_remedy_keeps_its_name(tmp_path):
    run = train(tmp_path / "save it again")
    for name, call in (("q-history.safetensors", run.q_history), ("model-*", lambda: isf.Run(run.folder).model)):
        (file,) = run.folder.glob(name)
        cut_short(file)
        with pytest.raises(ValueError) as caught:
            call()
        assert str(caught.value).startswith(f"{file} is damaged")
