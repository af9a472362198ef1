"""An attached model under Lightning's Trainer trains as in a loop of one's own."""

import sys

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import isingformer as isf

pl = pytest.importorskip("lightning.pytorch")
from lightning.pytorch.callbacks import ModelCheckpoint  # noqa: E402

from isingformer.integrations._shared import STATE_FILE  # noqa: E402
from isingformer.integrations.lightning import IsingCallback  # noqa: E402

ROWS, BATCH, PARTS, RATE, EPOCHS = 20, 4, 2, 0.05, 2
STEPS = EPOCHS * 3  # five batches an epoch, two a step, the last alone
EXACT = {"rtol": 1e-9, "atol": 1e-12}

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*does not have many workers:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*exists and is not empty:UserWarning"),
    pytest.mark.filterwarnings(r"ignore:`isinstance\(treespec, LeafSpec\)` is deprecated:FutureWarning"),
    pytest.mark.filterwarnings("ignore:Be aware that when using `ckpt_path`:UserWarning"),
]


class Module(pl.LightningModule):
    def __init__(self, mapping=False):
        super().__init__()
        torch.manual_seed(1)
        self.network = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)).double()
        self.mapping = mapping

    def training_step(self, batch, index):
        x, y = batch
        loss = F.cross_entropy(self.network(x), y)
        return {"loss": loss, "more": 1} if self.mapping else loss

    def test_step(self, batch, index):
        return None

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), RATE)


def data():
    draw = torch.Generator().manual_seed(5)
    x = torch.randn(ROWS, 6, generator=draw, dtype=torch.float64)
    return torch.utils.data.TensorDataset(x, torch.randint(3, (ROWS,), generator=draw))


def loader():
    return torch.utils.data.DataLoader(data(), batch_size=BATCH)


def attached(mapping=False, **changes):
    module = Module(mapping)
    settings = {"delta": 0.2, "warmup": 0, "refresh": 2, "sampling": "mask", **changes}
    isf.attach(module.network, isf.Ising(**settings), examples=ROWS, seeds=7)
    return module


def trainer(folder, *callbacks, **changes):
    settings = {
        "accelerator": "cpu", "devices": 1, "max_epochs": EPOCHS, "accumulate_grad_batches": PARTS, "logger": False,
        "enable_progress_bar": False, "enable_model_summary": False, "enable_checkpointing": False,
        "log_every_n_steps": 1, "default_root_dir": folder,
    }  # fmt: skip
    return pl.Trainer(callbacks=[IsingCallback(), *callbacks], **{**settings, **changes})


def by_hand(module, clip=None):
    method, optimizer = isf.attached_to(module.network), torch.optim.SGD(module.parameters(), RATE)
    module.train()
    for _ in range(EPOCHS):
        batches = list(loader())
        for number, (x, y) in enumerate(batches, start=1):
            ((F.cross_entropy(module.network(x), y) + method.kl()) / PARTS).backward()
            if number % PARTS == 0 or number == len(batches):
                if clip is not None:
                    torch.nn.utils.clip_grad_norm_(module.parameters(), clip)
                optimizer.step()
                optimizer.zero_grad()
                method.step()


def same(one, other, **tolerance):
    pairs = [(one.state_dict(), other.state_dict())]
    pairs.append([isf.attached_to(each.network).state_dict() for each in (one, other)])
    for mine, theirs in pairs:
        for name, value in mine.items():
            torch.testing.assert_close(value, theirs[name], msg=name, **tolerance)


@pytest.mark.parametrize("mapping", [False, True])
@pytest.mark.parametrize("clip", [None, 0.01])
def test_weights_and_q_are_those_of_a_loop_written_by_hand(tmp_path, mapping, clip):
    module, reference = attached(mapping), attached()
    method = isf.attached_to(module.network)
    resting = method.drop_probability()
    trainer(tmp_path, gradient_clip_val=clip).fit(module, loader())
    by_hand(reference, clip)
    assert method.steps == STEPS
    assert all(not torch.equal(q, resting[name]) for name, q in method.drop_probability().items())
    same(module, reference, **EXACT)


def test_the_divergence_pulls_before_gradients_are_clipped(tmp_path):
    seen = {}

    class Look(pl.Callback):
        def on_before_optimizer_step(self, trainer, pl_module, optimizer):
            seen.update({name: p.grad.clone() for name, p in pl_module.network.named_parameters()})

    heavy = 1e6
    module = attached(kl_weight=heavy, warmup=100, weight_noise=0.0)
    means = {
        f"{name}.weight": m.detach().clone()
        for name, m in (("0", module.network[0].weight), ("2", module.network[2].weight))
    }
    trainer(tmp_path, Look(), max_steps=1).fit(module, loader())
    for name, m in means.items():
        pull = heavy * m * m.shape[-1] / ROWS  # s2 = 1 / sqrt(fan_in), q = 0 in the warm-up
        torch.testing.assert_close(seen[name], pull, rtol=0, atol=2.0)  # what the loss itself may add


def test_mean_q_and_the_divergence_are_logged(tmp_path):
    module = attached()
    fitting = trainer(tmp_path)
    fitting.fit(module, loader())
    method = isf.attached_to(module.network)
    assert float(fitting.logged_metrics["mean_q"]) == pytest.approx(method.summary()["mean_q"], rel=1e-6)
    assert float(fitting.logged_metrics["kl"]) == pytest.approx(method.kl().item(), rel=1e-6)


@pytest.mark.parametrize("weights_only", [True, False])
def test_resumed_training_equals_undisturbed_training(tmp_path, weights_only):
    single = {"accumulate_grad_batches": 1}
    whole, stopped, resumed, tested = (attached(refresh=3) for _ in range(4))
    trainer(tmp_path, **single).fit(whole, loader())
    keep = ModelCheckpoint(dirpath=tmp_path, filename="kept", every_n_train_steps=5, save_top_k=-1)
    trainer(tmp_path, keep, max_steps=5, enable_checkpointing=True, **single).fit(stopped, loader())
    assert isf.attached_to(stopped.network).steps == 5
    found = {"ckpt_path": tmp_path / "kept.ckpt", "weights_only": weights_only}
    trainer(tmp_path, **single).fit(resumed, loader(), **found)
    assert isf.attached_to(resumed.network).steps == 10
    same(resumed, whole, rtol=0, atol=0)
    trainer(tmp_path).test(tested, loader(), verbose=False, **found)
    same(tested, stopped, rtol=0, atol=0)


def test_the_state_goes_with_its_checkpoint(tmp_path):
    """The best one is kept and the others are removed; one of weights alone and a link to one have q too."""
    keep = ModelCheckpoint(
        dirpath=tmp_path, filename="{step}", every_n_train_steps=1, save_top_k=1, monitor="step", mode="max",
        save_last="link", save_weights_only=True,
    )  # fmt: skip
    module, tested = attached(refresh=1), attached(refresh=1)
    fitting = trainer(tmp_path, keep, enable_checkpointing=True)
    fitting.fit(module, loader())
    kept = f"step={STEPS}.ckpt"
    assert sorted(each.name for each in tmp_path.iterdir()) == ["last.ckpt", kept, f"{kept}.{STATE_FILE}"]
    trainer(tmp_path).test(tested, loader(), verbose=False, ckpt_path=tmp_path / "last.ckpt")
    same(tested, module, rtol=0, atol=0)
    fitting.save_checkpoint(tmp_path / "mine.ckpt")
    assert (tmp_path / f"mine.ckpt.{STATE_FILE}").is_file()


def test_a_link_that_is_removed_takes_no_state_with_it(tmp_path):
    """A "last" link with a name of its own every epoch: the old one goes, the checkpoint it led to stays."""
    keep = ModelCheckpoint(dirpath=tmp_path, filename="{epoch}", save_top_k=-1, save_last="link")
    keep.CHECKPOINT_NAME_LAST = "last-{epoch}"
    trainer(tmp_path, keep, enable_checkpointing=True, max_epochs=3).fit(attached(refresh=1), loader())
    kept = [f"epoch={epoch}.ckpt" for epoch in range(3)]
    expected = sorted([*kept, *(f"{name}.{STATE_FILE}" for name in kept), "last-epoch=2.ckpt"])
    assert sorted(each.name for each in tmp_path.iterdir()) == expected


def test_half_precision_trains(tmp_path):
    module = attached().float()
    x, y = data().tensors
    batches = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x.float(), y), batch_size=BATCH)
    trainer(tmp_path, precision="bf16-mixed").fit(module, batches)
    method = isf.attached_to(module.network)
    assert method.steps == STEPS and all(bool((h >= 0).all()) for h in method.curvature().values())


@pytest.mark.parametrize("breaks", [False, True])
def test_the_module_gets_its_step_back(tmp_path, breaks):
    class Break(pl.Callback):
        def on_before_zero_grad(self, trainer, pl_module, optimizer):
            assert "training_step" in pl_module.__dict__
            if breaks:
                raise OSError("broken off")

    module = attached()
    if breaks:
        with pytest.raises(OSError, match="broken off"):
            trainer(tmp_path, Break()).fit(module, loader())
    else:
        trainer(tmp_path, Break()).fit(module, loader())
    assert "training_step" not in module.__dict__


def test_a_checkpoint_without_q_is_refused(tmp_path):
    plain = Module()
    bare = pl.Trainer(
        accelerator="cpu", max_epochs=1, logger=False, enable_progress_bar=False, enable_model_summary=False,
        default_root_dir=tmp_path, callbacks=[ModelCheckpoint(dirpath=tmp_path, filename="bare")],
    )  # fmt: skip
    bare.fit(plain, loader())
    with pytest.raises(FileNotFoundError, match="made without an IsingCallback"):
        trainer(tmp_path).fit(attached(), loader(), ckpt_path=tmp_path / "bare.ckpt")


def test_what_it_cannot_train_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"found 0; call isf\.attach"):
        trainer(tmp_path).fit(Module(), loader())
    module = attached()
    module.automatic_optimization = False
    with pytest.raises(ValueError, match="optimises by hand"):
        trainer(tmp_path, accumulate_grad_batches=1).fit(module, loader())


def test_without_the_library_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "lightning.pytorch", None)
    monkeypatch.delitem(sys.modules, "isingformer.integrations.lightning")
    with pytest.raises(ImportError, match=r"pip install 'isingformer\[lightning\]'"):
        import isingformer.integrations.lightning  # noqa: F401
