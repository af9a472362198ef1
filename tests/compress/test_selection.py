"""Which nodes stay, and with them which rows and columns."""

import pytest
import torch

from isingformer.compress.selection import Selection, by_node
from isingformer.compress.shape import shape_of


def test_a_head_without_values_goes_whole(tiny):
    """Head 1 has channels 4 to 7."""
    everything = Selection.everything(shape_of(tiny()))
    left = everything.without([("blocks.0.value", channel) for channel in range(4, 8)])
    assert left.keep["blocks.0.qk"].tolist() == [True] * 4 + [False] * 4
    assert left.result().blocks[0].qk == (4,) and left.result().blocks[1].qk == (4, 4)
    assert left.emptied() == []
    nothing = left.without([("blocks.0.value", channel) for channel in range(4)])
    assert nothing.emptied() == ["blocks.0.attn"]


def test_rows_and_columns(tiny):
    everything = Selection.everything(shape_of(tiny()))
    left = everything.without([("blocks.1.qk", 2), ("blocks.1.value", 5), ("blocks.1.mlp", 11), ("residual", 0)])
    assert (~left.rows("blocks.1.attn.qkv")).nonzero().flatten().tolist() == [2, 8 + 2, 16 + 5]
    assert (~left.columns("blocks.1.attn.proj")).nonzero().flatten().tolist() == [5]
    assert (~left.rows("blocks.1.mlp.fc1")).nonzero().flatten().tolist() == [11]
    assert (~left.columns("blocks.1.mlp.fc2")).nonzero().flatten().tolist() == [11]
    for layer in ("embed", "blocks.0.attn.proj", "blocks.0.mlp.fc2"):
        assert (~left.rows(layer)).nonzero().flatten().tolist() == [0]
    for layer in ("blocks.0.attn.qkv", "blocks.0.mlp.fc1", "head"):
        assert (~left.columns(layer)).nonzero().flatten().tolist() == [0]
    assert left.rows("head").all() and left.columns("embed").all()


def test_a_nodes_weights_add_up(tiny):
    """Each node against the entries written out."""
    model = tiny()
    matrices = {name: m.weight.detach() for name, m in model.named_modules() if isinstance(m, torch.nn.Linear)}
    found = by_node(matrices, shape_of(model))
    qkv, proj = matrices["blocks.0.attn.qkv"], matrices["blocks.0.attn.proj"]
    torch.testing.assert_close(found["blocks.0.qk"][3], qkv[3].sum() + qkv[8 + 3].sum())
    torch.testing.assert_close(found["blocks.0.value"][6], qkv[16 + 6].sum() + proj[:, 6].sum())
    fc1, fc2 = matrices["blocks.1.mlp.fc1"], matrices["blocks.1.mlp.fc2"]
    torch.testing.assert_close(found["blocks.1.mlp"][7], fc1[7].sum() + fc2[:, 7].sum())
    residual = sum(matrices[f"blocks.{i}.{n}"][2].sum() for i in (0, 1) for n in ("attn.proj", "mlp.fc2"))
    residual += sum(matrices[f"blocks.{i}.{n}"][:, 2].sum() for i in (0, 1) for n in ("attn.qkv", "mlp.fc1"))
    torch.testing.assert_close(
        found["residual"][2], residual + matrices["embed"][2].sum() + matrices["head"][:, 2].sum()
    )


def test_what_cannot_be_is_refused(tiny):
    everything = Selection.everything(shape_of(tiny()))
    with pytest.raises(ValueError, match="keeps no residual channel"):
        everything.without([("residual", channel) for channel in range(8)])
    with pytest.raises(ValueError, match=r"'blocks.0.mlp' has shape \[3\]; expected \[12\]"):
        Selection(everything.shape, {**everything.keep, "blocks.0.mlp": torch.ones(3)})
