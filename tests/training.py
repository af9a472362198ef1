"""A training step as users write it."""

import torch.nn.functional as F


def one_step(model, method, x, y, optimizer=None):
    loss = F.cross_entropy(model(x), y) + method.kl()
    loss.backward()
    if optimizer is not None:
        optimizer.step()
    model.zero_grad()
    method.step(targets=y)
    return loss
