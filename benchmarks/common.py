"""What every benchmark does: say where it ran, print one table, write it as JSON."""

import json
import os
import platform
import sys
from datetime import UTC, datetime
from pathlib import Path

import torch

import isingformer as isf
from isingformer.study.scoring import commit


def where():
    """Hardware, versions, commit and command."""
    cuda = torch.cuda.is_available()
    return {
        "device": torch.cuda.get_device_name() if cuda else f"{os.cpu_count()}-core {platform.machine()} CPU",
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "isingformer": isf.__version__,
        "commit": commit() or "unknown",
        "command": " ".join(["python", *sys.orig_argv[1:]]),
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
    }


def table(rows):
    """Rows (dicts with the same keys) as aligned text."""
    cells = [[*rows[0]], *([f"{v:.3g}" if isinstance(v, float) else str(v) for v in row.values()] for row in rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(cells[0]))]
    return "\n".join("  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip() for row in cells)


def report(title, rows, out, **more):
    """Print the table; write it with its circumstances to `out` (temporary name, then renamed)."""
    print(f"{title}\n{table(rows)}", flush=True)
    if out:
        path = Path(out)
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}.part")
        temporary.write_text(json.dumps({"title": title, **where(), **more, "rows": rows}, indent=2) + "\n")
        os.replace(temporary, path)
