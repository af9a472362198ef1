"""GPT-2 of transformers: Conv1D layers, whose weights lie transposed; queries, keys and values in one of them."""

import pytest
import torch
import torch.nn.functional as F

import isingformer as isf
from families import check_curvature, check_life, structure, train
from isingformer.ising import Reading

transformers = pytest.importorskip("transformers")

BLOCK = "transformer.h.0."


def build(kind="GPT2ForSequenceClassification"):
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        vocab_size=20, n_embd=16, n_layer=2, n_head=2, n_positions=16, num_labels=3, pad_token_id=0, bos_token_id=1,
        eos_token_id=2, attn_pdrop=0.0, embd_pdrop=0.0, resid_pdrop=0.0, summary_first_dropout=0.0,
        initializer_range=0.3,
    )  # fmt: skip
    return getattr(transformers, kind)(config)


def batch(n=5):
    generator = torch.Generator().manual_seed(1)
    return torch.randint(3, 20, (n, 7), generator=generator), torch.randint(3, (n,), generator=generator)


def matrices(name, gradients):
    found = gradients[f"{name}.weight"]
    return found if name == "score" else found.mT


def test_life(tmp_path):
    check_life(build, *batch(), tmp_path)


@pytest.mark.parametrize("sampling", ["mask", "local"])
def test_curvature(sampling):
    check_curvature(build, *batch(), matrices, sampling)


def test_who_reads_whom():
    wiring = isf.attach(build(), isf.Ising(), examples=10).parts.topology.wiring
    out, channels = (BLOCK + "attn.c_proj",), slice(0, 16)
    assert wiring[BLOCK + "attn.c_attn"] == (
        Reading(slice(0, 16), out, channels, 8),
        Reading(slice(16, 32), out, channels, 8),
        Reading(slice(32, 48), out, channels),
    )
    assert wiring[BLOCK + "attn.c_proj"] == (Reading(channels, (BLOCK + "mlp.c_fc",), channels),)
    assert wiring[BLOCK + "mlp.c_fc"] == (Reading(slice(0, 64), (BLOCK + "mlp.c_proj",), slice(0, 64)),)
    assert wiring[BLOCK + "mlp.c_proj"] == (Reading(channels, ("transformer.h.1.attn.c_attn",), channels),)
    assert wiring["transformer.h.1.mlp.c_proj"] == (Reading(channels, ("score",), channels),)


@pytest.mark.parametrize("how", ["expected", "probable"])
def test_detached_weights_lie_as_they_lay(how):
    model, (x, y) = build().train(), batch()
    before = structure(model)
    handle = isf.attach(model, isf.Ising(delta=0.4, warmup=0, refresh=2), examples=10)
    train(model, handle, x, y)
    name = BLOCK + "attn.c_attn"
    mean, q = model.get_submodule(name).weight.detach().clone(), handle.drop_probability()[name]
    assert q.shape == mean.mT.shape
    handle.detach(how)
    kept = 1 - q if how == "expected" else (q < 0.5).float()
    torch.testing.assert_close(model.get_submodule(name).weight, mean * kept.mT)
    assert structure(model) == before


def test_two_layers_of_one_weight_are_told_apart_from_others():
    model = build()
    model.transformer.h[1].mlp.c_fc.weight = model.transformer.h[0].mlp.c_fc.weight
    handle = isf.attach(model, isf.DropConnect(), examples=10)
    with pytest.raises(ValueError, match=r"'transformer.h.0.mlp.c_fc' and 'transformer.h.1.mlp.c_fc' share one weight"):
        handle.detach("expected")
    handle.detach()


def test_a_language_model_with_a_tied_head(tmp_path):
    model, (x, _) = build("GPT2LMHeadModel").train(), batch()
    handle = isf.attach(model, isf.Ising(warmup=0, refresh=2), examples=30)
    assert "lm_head" in handle.parts.layers and model.lm_head.weight is model.transformer.wte.weight
    for _ in range(2):
        logits = model(x).logits[:, :-1]
        (F.cross_entropy(logits.flatten(0, 1), x[:, 1:].flatten()) + handle.kl(terms=30)).backward()
        handle.step()
    drawn = isf.predict(model, x, samples=2)
    assert drawn.samples.shape == (2, 5, 7, 20) and not torch.equal(*drawn.samples)
    isf.save(model.eval(), tmp_path)
    assert torch.equal(isf.load(tmp_path, build("GPT2LMHeadModel"))(x).logits, model(x).logits)
    handle.detach()
    assert model.lm_head.weight is model.transformer.wte.weight


def test_a_detached_model_goes_through_its_own_library(tmp_path):
    model, (x, y) = build().train(), batch()
    handle = isf.attach(model, isf.Ising(warmup=0, refresh=2), examples=10)
    train(model, handle, x, y)
    handle.detach("expected").eval().save_pretrained(tmp_path)
    loaded = transformers.GPT2ForSequenceClassification.from_pretrained(tmp_path).eval()
    assert torch.equal(loaded(x).logits, model(x).logits)


@pytest.mark.parametrize("how", ["expected", "probable"])
def test_a_head_tied_to_the_embedding_is_not_overwritten(how):
    model = build("GPT2LMHeadModel").eval()
    x, _ = batch()
    before = model(x).logits
    handle = isf.attach(model, isf.DropConnect(p=0.6), examples=10)
    with pytest.raises(ValueError, match=r"'transformer.wte.weight' and 'lm_head' share one weight"):
        handle.detach(how)
    handle.detach()
    torch.testing.assert_close(model(x).logits, before)
