"""Fine-tune a Hugging Face ViT on a folder of images with the usual Trainer, and ask it how sure it is.

    python examples/finetune_vit.py [--images FOLDER] [--model google/vit-base-patch16-224-in21k] [--out runs/vit]

FOLDER has one folder of images a class. Without one, scikit-learn's handwritten digits are written out as one.
Without --model, or where it cannot be downloaded, a small ViT with random weights stands in. A minute on one core.
"""

import argparse
import math
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from sklearn.datasets import load_digits
from transformers import Trainer, TrainingArguments, ViTConfig, ViTForImageClassification

import isingformer as isf
from isingformer.integrations.transformers import IsingCallback

SMALL = {
    "image_size": 16, "patch_size": 4, "hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "intermediate_size": 96, "initializer_range": 0.1,
}  # fmt: skip


def write_digits(folder, count):
    """Digits as PNG files, FOLDER/LABEL/NUMBER.png."""
    data = load_digits()
    for number, (image, label) in enumerate(zip(data.images[:count], data.target[:count], strict=True)):
        file = folder / str(label) / f"{number:04d}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray((image * 15.9).astype(np.uint8)).save(file)
    return folder


class Pictures(torch.utils.data.Dataset):
    """Images of a folder in the form that the Trainer hands to a ViT."""

    def __init__(self, files, classes, size):
        self.files, self.classes, self.size = files, classes, size

    def __len__(self):
        return len(self.files)

    def __getitem__(self, i):
        image = Image.open(self.files[i]).convert("RGB").resize((self.size, self.size))
        pixels = torch.from_numpy(np.asarray(image, dtype=np.float32)).permute(2, 0, 1) / 127.5 - 1
        return {"pixel_values": pixels, "labels": self.classes.index(self.files[i].parent.name)}

    def tensors(self):
        items = [self[i] for i in range(len(self))]
        return torch.stack([i["pixel_values"] for i in items]), torch.tensor([i["labels"] for i in items])


def load_model(name, classes):
    if name is not None:
        try:
            return ViTForImageClassification.from_pretrained(name, num_labels=classes, ignore_mismatched_sizes=True)
        except OSError as error:
            print(f"{name} cannot be had ({str(error).splitlines()[0]}); a small ViT with random weights stands in")
    return ViTForImageClassification(ViTConfig(num_labels=classes, **SMALL))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=Path, help="a folder of folders of images, one a class")
    parser.add_argument("--model", help="a ViT on the hub, or in a folder")
    parser.add_argument("--out", type=Path, default=Path("runs/finetune-vit"))
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--count", type=int, default=1797, help="how many digits to write")
    parser.add_argument("--resume", action="store_true", help="go on from the last checkpoint in --out")
    args = parser.parse_args()
    torch.manual_seed(0)
    folder = args.images or write_digits(args.out / "images", args.count)
    files = sorted(file for file in folder.glob("*/*") if file.suffix.lower() in {".png", ".jpg", ".jpeg"})
    classes = sorted({file.parent.name for file in files})
    if len(classes) < 2:
        parser.error(f"{folder} must hold two or more folders of images, found {len(classes)}")
    model = load_model(args.model, len(classes))
    train, test = (
        Pictures([file for i, file in enumerate(files) if (i % 5 == 0) is held_out], classes, model.config.image_size)
        for held_out in (False, True)
    )

    batch, parts = 16, 2
    steps = args.epochs * math.ceil(math.ceil(len(train) / batch) / parts)
    method = isf.attach(model, isf.Ising(delta=0.1, sampling="mask"), examples=len(train), steps=steps)
    settings = TrainingArguments(
        output_dir=str(args.out), num_train_epochs=args.epochs, per_device_train_batch_size=batch,
        gradient_accumulation_steps=parts, learning_rate=2e-3, warmup_steps=steps // 10, lr_scheduler_type="cosine",
        max_grad_norm=1.0, logging_steps=max(1, steps // 8), save_strategy="epoch", save_total_limit=1,
        report_to="none", disable_tqdm=True, dataloader_pin_memory=torch.cuda.is_available(),
    )  # fmt: skip
    trainer = Trainer(model, settings, train_dataset=train, callbacks=[IsingCallback()])
    trainer.train(resume_from_checkpoint=args.resume or None)

    x, y = test.tensors()
    p = isf.predict(model, x.to(model.device), samples=20).to("cpu")
    right = p.classes == y
    nll = -p.probs.gather(1, y[:, None]).log().mean()
    print(f"\n{len(y)} test images: accuracy {right.float().mean():.3f}, NLL {nll:.3f}")
    for name, some in (("right", right), ("wrong", ~right)):
        if some.any():
            print(f"  {name}: {int(some.sum())} images, mean entropy {p.entropy[some].mean():.3f} nats")
    isf.save(model, args.out / "model")
    print(f"{method}\nsaved in {args.out / 'model'}")


if __name__ == "__main__":
    main()
