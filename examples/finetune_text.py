"""Fine-tune a text classifier with the usual Trainer, and ask it how sure it is.

    python examples/finetune_text.py [--texts FILE.csv] [--model bert-base-uncased] [--out runs/text]

FILE.csv has two columns, label and text. Without one, short reviews are made up. Without --model, or where it cannot be
downloaded, a small BERT with random weights stands in, with the texts' words as its vocabulary. Seconds on one core.
"""

import argparse
import csv
import itertools
import math
import random
from pathlib import Path

import torch
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers
from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    BertConfig,
    BertForSequenceClassification,
    DataCollatorWithPadding,
    PreTrainedTokenizerFast,
    Trainer,
    TrainingArguments,
)

import isingformer as isf
from isingformer.integrations.transformers import IsingCallback

GOOD = ["wonderful", "moving", "clever", "funny", "beautiful", "sharp"]
BAD = ["dull", "awful", "clumsy", "boring", "flat", "endless"]
THINGS = ["the film", "the book", "this play", "her song", "the ending", "every scene"]
HOW = ["is", "was", "felt"]
DEGREES = ["very", "quite", "truly", "not"]


def made_up():
    """(label, text) of 864 reviews; a "not" turns one around."""
    rows = []
    for thing, how, degree, word in itertools.product(THINGS, HOW, DEGREES, GOOD + BAD):
        label = "good" if (word in GOOD) is not (degree == "not") else "bad"
        rows.append((label, f"{thing} {how} {degree} {word}"))
    return rows


def read(file):
    with file.open(newline="", encoding="utf-8") as stream:
        return [(row[0], row[1]) for row in csv.reader(stream) if len(row) == 2]


def own_vocabulary(texts):
    words = sorted({word for text in texts for word in text.lower().split()})
    vocabulary = {word: i for i, word in enumerate(["[PAD]", "[UNK]", *words])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer, tokenizer.pre_tokenizer = normalizers.Lowercase(), pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]")


def load_model(name, texts, classes):
    if name is not None:
        try:
            tokenizer = AutoTokenizer.from_pretrained(name)
            return tokenizer, AutoModelForSequenceClassification.from_pretrained(name, num_labels=classes)
        except OSError as error:
            print(f"{name} cannot be had ({str(error).splitlines()[0]}); a small BERT with random weights stands in")
    tokenizer = own_vocabulary(texts)
    config = BertConfig(
        vocab_size=len(tokenizer), num_labels=classes, hidden_size=32, num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=64, max_position_embeddings=64, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
        initializer_range=0.1,
    )  # fmt: skip
    return tokenizer, BertForSequenceClassification(config)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--texts", type=Path, help="a CSV file of label and text")
    parser.add_argument("--model", help="a text classifier or encoder on the hub, or in a folder")
    parser.add_argument("--out", type=Path, default=Path("runs/finetune-text"))
    parser.add_argument("--epochs", type=int, default=8)
    args = parser.parse_args()
    torch.manual_seed(0)
    rows = made_up() if args.texts is None else read(args.texts)
    random.Random(0).shuffle(rows)
    labels = sorted({label for label, _ in rows})
    if len(labels) < 2:
        parser.error(f"{args.texts} must have two or more labels, found {len(labels)}")
    tokenizer, model = load_model(args.model, [text for _, text in rows], len(labels))

    def encoded(text):
        return tokenizer(text, truncation=True, max_length=64, return_token_type_ids=False)

    held_out = len(rows) // 5
    test, train = rows[:held_out], [{**encoded(text), "labels": labels.index(label)} for label, text in rows[held_out:]]

    batch, parts = 16, 2
    steps = args.epochs * math.ceil(math.ceil(len(train) / batch) / parts)
    method = isf.attach(model, isf.Ising(delta=0.1, sampling="mask"), examples=len(train), steps=steps)
    settings = TrainingArguments(
        output_dir=str(args.out), num_train_epochs=args.epochs, per_device_train_batch_size=batch,
        gradient_accumulation_steps=parts, learning_rate=3e-3, warmup_steps=steps // 10, lr_scheduler_type="cosine",
        logging_steps=max(1, steps // 6), save_strategy="no", report_to="none", disable_tqdm=True,
        dataloader_pin_memory=torch.cuda.is_available(),
    )  # fmt: skip
    collate = DataCollatorWithPadding(tokenizer)
    Trainer(model, settings, train_dataset=train, data_collator=collate, callbacks=[IsingCallback()]).train()

    def ask(texts):
        return isf.predict(model, dict(collate([encoded(text) for text in texts]).to(model.device)), samples=20).to(
            "cpu"
        )

    p, y = ask([text for _, text in test]), torch.tensor([labels.index(label) for label, _ in test])
    print(f"\n{len(y)} test texts: accuracy {(p.classes == y).float().mean():.3f}, mean entropy {p.entropy.mean():.3f}")
    if args.texts is None:
        asked = ["the film was very wonderful", "the film was not wonderful"]
        answer = ask(asked)
        for i, text in enumerate(asked):
            print(
                f"  {labels[int(answer.classes[i])]:>4} {answer.probs[i].max():.2f}  entropy {answer.entropy[i]:.2f}, "
                f"of it epistemic {answer.epistemic[i]:.2f}: {text!r}"
            )
    print(method)


if __name__ == "__main__":
    main()
