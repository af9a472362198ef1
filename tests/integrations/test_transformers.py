"""An attached model under Hugging Face's Trainer trains as in a loop of one's own."""

import shutil
import sys

import pytest
import torch
import torch.nn.functional as F

import isingformer as isf
from isingformer.integrations._shared import STATE_FILE

transformers = pytest.importorskip("transformers")
pytest.importorskip("accelerate")
from isingformer.integrations.transformers import IsingCallback, add_to  # noqa: E402

ROWS, BATCH, PARTS, RATE = 20, 4, 2, 0.05
STEPS = 5  # two parts of four rows a step, the last step of an epoch of 20 rows has one part
EXACT = {"rtol": 1e-9, "atol": 1e-12}
ROUGH = {"rtol": 1e-4, "atol": 1e-7}  # of a loss in float32


class Pictures(torch.utils.data.Dataset):
    def __init__(self):
        draw = torch.Generator().manual_seed(5)
        self.x = torch.randn(ROWS, 1, 8, 8, generator=draw, dtype=torch.float64)
        self.y = torch.randint(3, (ROWS,), generator=draw)

    def __len__(self):
        return ROWS

    def __getitem__(self, i):
        return {"pixel_values": self.x[i], "labels": self.y[i]}


class Words(Pictures):
    """Rows of tokens, some of them padding."""

    def __init__(self):
        draw = torch.Generator().manual_seed(6)
        self.x = torch.randint(1, 30, (ROWS, 6), generator=draw)
        self.y = self.x.clone()
        self.y[::3, 4:] = -100
        self.mask = (self.y != -100).long()
        self.classes = torch.randint(3, (ROWS,), generator=draw)


class Lines(Words):
    def __getitem__(self, i):
        return {"input_ids": self.x[i], "attention_mask": self.mask[i], "labels": self.y[i]}


class Sentences(Words):
    def __getitem__(self, i):
        return {"input_ids": self.x[i], "attention_mask": self.mask[i], "labels": self.classes[i]}


SMALL = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 12}
STILL = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}


def vit():
    config = transformers.ViTConfig(image_size=8, patch_size=4, num_channels=1, num_labels=3, **SMALL, **STILL)
    torch.manual_seed(1)
    return transformers.ViTForImageClassification(config).double()


def bert():
    config = transformers.BertConfig(vocab_size=30, max_position_embeddings=8, num_labels=3, **SMALL, **STILL)
    torch.manual_seed(1)
    return transformers.BertForSequenceClassification(config).double()


def gpt2():
    config = transformers.GPT2Config(
        vocab_size=30, n_positions=8, n_embd=8, n_layer=1, n_head=2, tie_word_embeddings=False,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=0, eos_token_id=0, pad_token_id=0,
    )  # fmt: skip
    torch.manual_seed(1)
    return transformers.GPT2LMHeadModel(config).double()


MODELS = {"vit": (vit, Pictures), "bert": (bert, Sentences), "gpt2": (gpt2, Lines)}


def attach(model, **changes):
    settings = {"delta": 0.2, "warmup": 0, "refresh": 2, "sampling": "mask", **changes}
    return isf.attach(model, isf.Ising(**settings), examples=ROWS, seeds=7)


def arguments(folder, **changes):
    settings = {
        "per_device_train_batch_size": BATCH, "gradient_accumulation_steps": PARTS, "max_steps": STEPS,
        "learning_rate": RATE, "lr_scheduler_type": "constant", "optim": "sgd", "max_grad_norm": 0.0, "seed": 3,
        "logging_steps": 1, "save_strategy": "no", "report_to": "none", "disable_tqdm": True, "use_cpu": True,
        "dataloader_pin_memory": False, "train_sampling_strategy": "sequential",
    }  # fmt: skip
    return transformers.TrainingArguments(output_dir=str(folder), **{**settings, **changes})


def train(model, data, folder, *, callback=None, resume=None, extra=(), keywords=None, **changes):
    callback = IsingCallback() if callback is None else callback
    trainer = transformers.Trainer(
        model, arguments(folder, **changes), train_dataset=data, callbacks=[callback, *extra], **(keywords or {})
    )
    trainer.train(resume_from_checkpoint=resume)
    return trainer


def parts_of(data):
    """The micro-batches of each step: an epoch's last step may have fewer."""
    rows = torch.arange(ROWS).split(BATCH)
    steps = [rows[i : i + PARTS] for i in range(0, len(rows), PARTS)]
    return [
        [
            {name: torch.stack([data[i][name] for i in part.tolist()]) for name in data[0]}
            for part in steps[k % len(steps)]
        ]
        for k in range(STEPS)
    ]


def by_hand(model, method, data, clip=None):
    """The loop of the guide: every micro-batch's mean loss and kl(), by its share of the step's items."""
    optimizer = torch.optim.SGD(model.parameters(), RATE)
    model.train()
    for parts in parts_of(data):
        whole = sum(int((part["labels"] != -100).sum()) for part in parts)  # as the Trainer counts GPT-2's, first too
        for part in parts:
            labels = part.pop("labels")
            size, logits = _items(labels), model(**part).logits
            if labels.dim() > 1:  # the library computes this loss in float32
                nll = F.cross_entropy(logits[:, :-1].flatten(0, 1).float(), labels[:, 1:].flatten())
            else:
                nll = F.cross_entropy(logits, labels)
            kl = method.kl(terms=size if labels.dim() > 1 else None)
            (size / whole * (nll + kl)).backward()
        if clip is not None:
            torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
        optimizer.zero_grad()
        method.step()


def _items(labels):
    return int(((labels[:, 1:] if labels.dim() > 1 else labels) != -100).sum())


def same(one, other, **tolerance):
    mine, theirs = isf.attached_to(one), isf.attached_to(other)
    for name, value in one.state_dict().items():
        torch.testing.assert_close(value, other.state_dict()[name], msg=name, **tolerance)
    for name, value in mine.state_dict().items():
        torch.testing.assert_close(value, theirs.state_dict()[name], msg=name, **tolerance)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("clip", [None, 0.01])
def test_weights_and_q_are_those_of_a_loop_written_by_hand(tmp_path, name, clip):
    build, kind = MODELS[name]
    data, model, reference = kind(), build(), build()
    method, own = attach(model), attach(reference)
    resting = method.drop_probability()
    train(model, data, tmp_path, max_grad_norm=clip or 0.0)
    by_hand(reference, own, data, clip)
    assert method.steps == STEPS
    assert all(not torch.equal(q, resting[layer]) for layer, q in method.drop_probability().items())
    same(model, reference, **(ROUGH if name == "gpt2" else EXACT))


def test_the_divergence_pulls_before_gradients_are_clipped(tmp_path):
    """With a heavy divergence the gradient that is clipped is its own: (1 - q) m / (s2^2 N), times its weight."""
    seen = {}

    class Look(transformers.TrainerCallback):
        def on_pre_optimizer_step(self, args, state, control, model=None, **kwargs):
            seen.update({name: p.grad.clone() for name, p in model.named_parameters()})

    model, heavy = vit(), 1e6
    method = attach(model, kl_weight=heavy, warmup=100, weight_noise=0.0)
    wanted = {}
    for name, m in ((n, method.parts.mean(n)) for n in method.parts.posteriors):
        wanted[name] = heavy * m * m.shape[-1] / ROWS  # s2 = 1 / sqrt(fan_in), q = 0 in the warm-up
    norm = torch.stack([g.norm() for g in wanted.values()]).norm()
    train(model, Pictures(), tmp_path, max_steps=1, max_grad_norm=1.0, extra=[Look()])
    for name, pull in wanted.items():
        found = seen[f"{name}.weight"].view_as(pull)
        torch.testing.assert_close(found, pull / norm, rtol=0, atol=1e-5)  # the loss is a millionth of it


def test_mean_q_and_the_divergence_are_logged(tmp_path):
    model = vit()
    method = attach(model)
    trainer = train(model, Pictures(), tmp_path)
    entries = [entry for entry in trainer.state.log_history if "loss" in entry]
    assert len(entries) == STEPS
    assert len({entry["mean_q"] for entry in entries}) > 1
    assert entries[-1]["mean_q"] == pytest.approx(method.summary()["mean_q"])
    assert entries[-1]["kl"] == pytest.approx(method.kl().item())


def test_added_to_a_trainer_it_comes_before_the_reporters(tmp_path):
    told = []

    class Reporter(transformers.TrainerCallback):
        def on_log(self, args, state, control, logs=None, **kwargs):
            told.append(dict(logs))

    model, reference, data = vit(), vit(), Pictures()
    attach(model)

    def own_loss(outputs, labels, num_items_in_batch=None):
        return F.cross_entropy(outputs.logits, labels, reduction="sum") / num_items_in_batch

    trainer = transformers.Trainer(
        model, arguments(tmp_path), train_dataset=data, callbacks=[Reporter()], compute_loss_func=own_loss
    )
    add_to(trainer)
    trainer.train()
    assert all("mean_q" in logs and "kl" in logs for logs in told if "loss" in logs) and told
    by_hand(reference, attach(reference), data)
    same(model, reference, **EXACT)


def test_a_loss_that_ignores_the_count_keeps_its_balance_with_the_divergence(tmp_path):
    """Such a loss enters undivided, once a micro-batch, and so must kl()."""
    callback, model, reference, data = IsingCallback(), vit(), vit(), Pictures()
    attach(model)
    mean = callback.loss(lambda outputs, labels, num_items_in_batch: F.cross_entropy(outputs.logits, labels))
    train(model, data, tmp_path, callback=callback, keywords={"compute_loss_func": mean})
    method, optimizer = attach(reference), torch.optim.SGD(reference.parameters(), RATE)
    reference.train()
    for parts in parts_of(data):
        for part in parts:
            labels = part.pop("labels")
            (F.cross_entropy(reference(**part).logits, labels) + method.kl()).backward()
        optimizer.step()
        optimizer.zero_grad()
        method.step()
    same(model, reference, **EXACT)


@pytest.mark.parametrize(("name", "seeds"), [("vit", None), ("bert", None), ("bert", 7)])
def test_resumed_training_equals_undisturbed_training(tmp_path, name, seeds):
    build, kind = MODELS[name]

    def built():
        model = build()
        isf.attach(model, isf.Ising(delta=0.2, warmup=0, refresh=3), examples=ROWS, seeds=seeds)
        return model

    changes = {
        "save_strategy": "steps", "save_steps": 2, "optim": "adamw_torch", "train_sampling_strategy": "random",
        "lr_scheduler_type": "linear",
    }  # fmt: skip
    whole, stopped, resumed = built(), built(), built()
    train(whole, kind(), tmp_path / "whole", **changes)

    class Stop(transformers.TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            control.should_training_stop = state.global_step == 2

    train(stopped, kind(), tmp_path / "parts", extra=[Stop()], **changes)
    assert isf.attached_to(stopped).steps == 2
    train(resumed, kind(), tmp_path / "parts", resume=True, **changes)
    same(resumed, whole, rtol=0, atol=0)


def test_a_checkpoint_elsewhere_must_be_named_and_must_fit(tmp_path):
    changes = {"save_strategy": "steps", "save_steps": 2}
    for folder, rate in (("a", 0.05), ("b", 0.01)):
        model = vit()
        attach(model)
        train(model, Pictures(), tmp_path / folder, learning_rate=rate, **changes)
    there = tmp_path / "a" / "checkpoint-2"
    model = vit()
    method = attach(model)
    with pytest.raises(ValueError, match=r"was not resumed from .*IsingCallback"):
        train(model, Pictures(), tmp_path / "b", resume=str(there), **changes)
    assert method.steps == 0
    train(model, Pictures(), tmp_path / "b", callback=IsingCallback(checkpoint=there), resume=str(there), **changes)
    assert method.steps == STEPS
    shutil.copy(tmp_path / "b" / "checkpoint-2" / STATE_FILE, there)
    with pytest.raises(ValueError, match="belongs to other weights"):
        train(model, Pictures(), tmp_path / "a", resume=str(there), **changes)
    (there / STATE_FILE).unlink()
    with pytest.raises(FileNotFoundError, match=STATE_FILE):
        train(model, Pictures(), tmp_path / "a", resume=str(there), **changes)


def test_the_best_weights_come_with_their_q(tmp_path):
    model = vit()
    method = attach(model, refresh=1)
    worse_and_worse = iter(range(10))
    trainer = train(
        model, Pictures(), tmp_path, save_strategy="steps", save_steps=1, eval_strategy="steps", eval_steps=1,
        load_best_model_at_end=True, metric_for_best_model="eval_lost", greater_is_better=False,
        keywords={"eval_dataset": Pictures(), "compute_metrics": lambda given: {"lost": next(worse_and_worse)}},
    )  # fmt: skip
    assert trainer.state.best_model_checkpoint.endswith("checkpoint-1")
    saved = vit()
    attach(saved, refresh=1)
    train(saved, Pictures(), tmp_path / "one", max_steps=1)
    assert method.steps == 1
    same(model, saved, rtol=0, atol=0)


def test_half_precision_trains_and_the_hooks_are_gone_afterwards(tmp_path):
    model = vit().float()
    method = attach(model)

    class Floats(Pictures):
        def __getitem__(self, i):
            return {"pixel_values": self.x[i].float(), "labels": self.y[i]}

    before = len(model._forward_hooks), len(model._forward_pre_hooks)
    train(model, Floats(), tmp_path, bf16=True)
    assert method.steps == STEPS and all(bool((h >= 0).all()) for h in method.curvature().values())
    assert (len(model._forward_hooks), len(model._forward_pre_hooks)) == before
    assert all(q.dtype == torch.float32 and bool(q.isfinite().all()) for q in method.drop_probability().values())


def test_curvature_by_an_extra_pass_gets_its_labels(tmp_path):
    model = vit()
    method = isf.attach(
        model, isf.Ising(warmup=0, refresh=2, curvature="hutchinson"), examples=ROWS, likelihood="softmax"
    )
    model.set_attn_implementation("eager")
    train(model, Pictures(), tmp_path)
    assert method.steps == STEPS and any(bool(h.any()) for h in method.curvature().values())


@pytest.mark.parametrize("way", ["smoothing", "own"])
def test_a_loss_that_passes_the_callback_by_is_an_error(tmp_path, way):
    model = vit()
    attach(model)
    changes = {"label_smoothing_factor": 0.1} if way == "smoothing" else {}
    keywords = (
        {"compute_loss_func": lambda outputs, labels, num_items_in_batch: outputs.logits.sum()} if way == "own" else {}
    )
    with pytest.raises(RuntimeError, match=r"compute_loss_func=callback\.loss"):
        train(model, Pictures(), tmp_path, keywords=keywords, **changes)


def test_a_model_without_a_method_or_with_another_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"found 0; call isf\.attach"):
        train(vit(), Pictures(), tmp_path)
    other, model = vit(), vit()
    attach(model)
    with pytest.raises(ValueError, match="is not on the ViTForImageClassification"):
        train(model, Pictures(), tmp_path, callback=IsingCallback(attach(other)))


def test_without_the_library_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    monkeypatch.delitem(sys.modules, "isingformer.integrations.transformers")
    with pytest.raises(ImportError, match=r"pip install 'isingformer\[transformers\]'"):
        import isingformer.integrations.transformers  # noqa: F401


def test_a_training_that_broke_off_leaves_no_second_divergence(tmp_path):
    class Break(transformers.TrainerCallback):
        def on_substep_end(self, args, state, control, **kwargs):
            raise KeyboardInterrupt

    model, reference, data = vit(), vit(), Pictures()
    attach(model)
    with pytest.raises(KeyboardInterrupt):
        train(model, data, tmp_path, extra=[Break()])
    isf.attached_to(model).detach()
    model.zero_grad()
    attach(model)
    train(model, data, tmp_path)
    by_hand(reference, attach(reference), data)
    same(model, reference, **EXACT)


def test_the_checkpoint_is_a_folder_the_library_itself_can_read(tmp_path):
    model = vit()
    attach(model)
    train(model, Pictures(), tmp_path, save_strategy="steps", save_steps=STEPS)
    folder = tmp_path / f"checkpoint-{STEPS}"
    assert (folder / STATE_FILE).is_file()
    plain = transformers.ViTForImageClassification.from_pretrained(folder, dtype=torch.float64)
    for name, value in plain.state_dict().items():
        torch.testing.assert_close(value, model.state_dict()[name], rtol=0, atol=0)
