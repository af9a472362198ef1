"""Nodes dropped for a whole example, all its tokens alike: what `local` sampling and prediction then have in common."""

import pytest
import torch

from isingformer.nn.noise import KeyedNoise, TorchNoise
from isingformer.nn.posterior import Posterior

DRAWS = 20_000


def layer(*lead, by_example=True, noise=None, sampling="local", q=0.4, node_rate=1.0):
    torch.manual_seed(0)
    weight = torch.randn(*lead, 4, 5, dtype=torch.float64)
    part = Posterior(
        weight, noise_sd=0.0, sampling=sampling, noise=noise or TorchNoise(), layer=0, node_rate=node_rate,
        by_example=by_example,
    )  # fmt: skip
    part.drop.fill_(q)
    return part, weight


@pytest.mark.parametrize("tokens", [(), (6,), (2, 3)])
def test_the_tokens_of_an_example_lose_the_same_nodes_and_examples_differ(tokens):
    part, weight = layer()
    x = torch.randn(5, dtype=torch.float64).expand(50, *tokens, 5)  # all alike, so outputs tell who lost what
    found = part(x, weight, None)
    found = (found.flatten(1, -2) if tokens else found[:, None]).round(decimals=6)  # what is left of the variance
    assert torch.equal(found, found[:, :1].expand_as(found))
    assert len(found[:, 0].unique(dim=0)) > 5
    by_token = layer(by_example=False)[0](x, weight, None).round(decimals=6)
    assert not tokens or len(by_token[0].flatten(0, -2).unique(dim=0)) > 1


def test_replicas_have_their_own_nodes_which_do_not_depend_on_the_stack():
    keys = torch.tensor([11, 22])
    part, weight = layer(2, noise=KeyedNoise(keys))
    x = torch.randn(2, 8, 3, 5, dtype=torch.float64)
    both = part(x, weight, None)
    for replica in range(2):
        alone, _ = layer(1, noise=KeyedNoise(keys[replica : replica + 1]))
        torch.testing.assert_close(
            alone(x[replica : replica + 1], weight[replica : replica + 1], None)[0], both[replica]
        )


def test_what_tokens_share_is_as_much_as_in_networks_that_masks_draw():
    """The covariance of an example's tokens is that of passes of drawn networks; by token it is 0."""
    x = torch.randn(3, 5, dtype=torch.float64)  # three tokens

    def covariance(**how):
        part, weight = layer(node_rate=0.25, **how)
        if how.get("sampling") == "mask":
            drawn = torch.stack([part(x[None], weight, None)[0, :, 0] for _ in range(DRAWS)])
        else:
            drawn = part(x.expand(DRAWS, 3, 5), weight, None)[..., 0]
        return drawn.T.cov()

    local, masks, apart = covariance(), covariance(sampling="mask"), covariance(by_example=False)
    scale = float(masks.diag().mean())
    torch.testing.assert_close(local.diag(), masks.diag(), rtol=0, atol=0.05 * scale)
    together = torch.triu_indices(3, 3, 1)
    # Masks of single weights are shared by tokens of a network too; of the local pass the nodes' part is.
    node = torch.einsum("ti,i,si->ts", x, layer()[1][0].square() * 0.6**2 * 0.25 / 0.75, x)
    torch.testing.assert_close(local[*together], node[*together], rtol=0, atol=0.05 * scale)
    torch.testing.assert_close(apart[*together], torch.zeros(3, dtype=torch.float64), rtol=0, atol=0.05 * scale)


def test_curvature_of_many_tokens_is_as_if_nothing_had_been_dropped():
    """h = (sum over tokens of d x)^2 for a loss that is linear in the outputs."""
    part, weight = layer(q=0.5)
    part.train().measure(True)
    x = torch.tensor([[1.0, 2.0, -1.0, 0.5, 3.0], [2.0, 1.0, 4.0, 0.5, -1.0]], dtype=torch.float64)
    d = torch.arange(1.0, 5.0, dtype=torch.float64)
    (part(x.expand(DRAWS, 2, 5), weight.requires_grad_(), None) @ d).sum(1).mean().backward()
    h = part.companion.grad[:-2].view(4, 5) / DRAWS
    torch.testing.assert_close(h, (d[:, None] * x.sum(0)).square(), rtol=0.1, atol=0)


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # torch's own
def test_layers_with_other_rates_share_compiled_code():
    from torch._dynamo.testing import CompileCounter

    counter = CompileCounter()
    torch._dynamo.reset()
    run = torch.compile(lambda part, x, weight: part(x, weight, None), backend=counter, dynamic=False)
    x = torch.randn(3, 2, 5, dtype=torch.float64)
    outputs = []
    for place, rate in enumerate((0.1, 0.25, 0.4)):
        part, weight = layer(1, node_rate=rate, noise=KeyedNoise(torch.tensor([7])), q=0.5)
        part.layer.fill_(place)
        outputs.append(run(part, x[None], weight))
    torch._dynamo.reset()
    assert counter.frame_count == 1 and not torch.equal(outputs[0], outputs[1])
