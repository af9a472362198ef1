"""Grouped-query attention, in transformers' Llama: what a wiring cannot say is said aloud, and all else works."""

import pytest
import torch

import isingformer as isf
from families import check_every_layer_is_random, train

transformers = pytest.importorskip("transformers")

WIDTH, HEADS, GROUPS = 16, 4, 2


def build(attention):
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=20, hidden_size=WIDTH, intermediate_size=24, num_hidden_layers=1, num_attention_heads=HEADS,
        num_key_value_heads=GROUPS, max_position_embeddings=16, num_labels=3, initializer_range=0.3, pad_token_id=0,
        attn_implementation=attention,
    )  # fmt: skip
    return transformers.LlamaForSequenceClassification(config)


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_keys_and_values_of_groups_are_listed_and_train(attention):
    model, own = build(attention), "model.layers.0.self_attn."
    with pytest.warns(UserWarning, match=rf"who reads .*{own}k_proj, {own}v_proj in LlamaForSeq.* is not known"):
        handle = isf.attach(model, isf.Ising(delta=0.2, warmup=0, refresh=2), examples=10)
    wiring = handle.parts.topology.wiring
    assert wiring[own + "k_proj"] == wiring[own + "v_proj"] == ()
    assert [each.readers for each in wiring[own + "o_proj"]] == [
        ("model.layers.0.mlp.gate_proj", "model.layers.0.mlp.up_proj")
    ]
    assert [each.readers for each in wiring["model.layers.0.mlp.down_proj"]] == [("score",)]
    generator = torch.Generator().manual_seed(1)
    x, y = torch.randint(1, 20, (5, 7), generator=generator), torch.randint(3, (5,), generator=generator)
    resting = handle.drop_probability()
    train(model, handle, x, y)
    for name, q in handle.drop_probability().items():
        assert not torch.equal(q, resting[name]), name  # by evidence alone, where there are no neighbours
    check_every_layer_is_random(model, x)
