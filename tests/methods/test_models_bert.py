"""The BERT classifier of transformers: post-norm blocks, a pooler, token indices as inputs."""

import pytest
import torch
import torch.nn.functional as F

import isingformer as isf
from families import check_curvature, check_life, train, weight

transformers = pytest.importorskip("transformers")


def build(kind="BertForSequenceClassification"):
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=20, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=24,
        max_position_embeddings=16, num_labels=3, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
        initializer_range=0.3,
    )  # fmt: skip
    return getattr(transformers, kind)(config)


def batch(n=5):
    generator = torch.Generator().manual_seed(1)
    return torch.randint(20, (n, 7), generator=generator), torch.randint(3, (n,), generator=generator)


def test_life(tmp_path):
    check_life(build, *batch(), tmp_path)


def test_curvature():
    check_curvature(build, *batch(), weight)


def test_who_reads_whom():
    wiring = isf.attach(build(), isf.Ising(), examples=10).parts.topology.wiring
    at = "bert.encoder.layer.{}."
    first, second = at.format(0), at.format(1)
    reads = {name: [(each.readers, each.head_size) for each in found] for name, found in wiring.items()}
    inputs = tuple(second + "attention.self." + own for own in ("query", "key", "value"))
    assert reads[first + "attention.self.key"] == [((first + "attention.output.dense",), 8)]
    assert reads[first + "attention.self.value"] == [((first + "attention.output.dense",), None)]
    assert reads[first + "attention.output.dense"] == [((first + "intermediate.dense",), None)]
    assert reads[first + "output.dense"] == [(inputs, None)]
    assert reads[second + "output.dense"] == [(("bert.pooler.dense",), None)]
    assert reads["bert.pooler.dense"] == [(("classifier",), None)] and reads["classifier"] == []


def test_padding_and_named_arguments_train_as_ever():
    model, (x, y) = build().train(), batch()
    handle = isf.attach(model, isf.Ising(warmup=0, refresh=2), examples=10)
    keep = torch.ones_like(x)
    keep[0, 4:] = 0
    for _ in range(2):
        (model(input_ids=x, attention_mask=keep, labels=y).loss + handle.kl()).backward()
        handle.step()
    assert all(h.max() > 0 for h in handle.curvature().values())


def test_an_output_layer_tied_to_the_embedding(tmp_path):
    model, (x, _) = build("BertForMaskedLM").train(), batch()
    tied = model.get_input_embeddings().weight
    handle = isf.attach(model, isf.Ising(warmup=0, refresh=2), examples=35)
    assert any(layer.get_parameter("weight") is tied for layer in handle.parts.layers.values())
    for _ in range(2):
        (F.cross_entropy(model(x).logits.flatten(0, 1), x.flatten()) + handle.kl(terms=x.numel())).backward()
        handle.step()
    isf.save(model.eval(), tmp_path)
    loaded = isf.load(tmp_path, build("BertForMaskedLM"))
    assert torch.equal(loaded(x).logits, model(x).logits)
    assert loaded.get_input_embeddings().weight is loaded.get_output_embeddings().weight
    handle.detach()
    assert model.get_output_embeddings().weight is tied


def test_a_detached_model_goes_through_its_own_library(tmp_path):
    model, (x, y) = build().train(), batch()
    handle = isf.attach(model, isf.DropConnect(p=0.2), examples=10)
    train(model, handle, x, y)
    handle.detach("probable").eval().save_pretrained(tmp_path)
    loaded = transformers.BertForSequenceClassification.from_pretrained(tmp_path).eval()
    assert torch.equal(loaded(x).logits, model(x).logits)


def test_predict_takes_named_inputs_as_a_tokeniser_gives_them():
    model, (x, _) = build(), batch()
    isf.attach(model, isf.DropConnect(p=0.2), examples=10)
    keep = torch.ones_like(x)
    keep[0, 4:] = 0
    inputs = transformers.BatchEncoding({"input_ids": x, "attention_mask": keep})

    def drawn(given, size):
        return isf.predict(model, given, samples=3, batch_size=size, generator=torch.Generator().manual_seed(0)).samples

    torch.testing.assert_close(drawn(inputs, 2), drawn(inputs, 5))
    assert not torch.allclose(drawn(inputs, 5)[:, 0], drawn({"input_ids": x}, 5)[:, 0])  # the padding counts
    torch.testing.assert_close(drawn(inputs, 5)[:, 1:], drawn({"input_ids": x}, 5)[:, 1:])
    with pytest.raises(ValueError, match="a mapping of such tensors, of one length"):
        isf.predict(model, {"input_ids": x, "attention_mask": keep[:2]}, samples=2)
