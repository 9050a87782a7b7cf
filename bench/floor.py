"""The least that a server of pair similarities needs: FastAPI, ONNX Runtime and a tokenizer, one process, no limits, no batches.

python -m bench.floor FOLDER --port PORT    (FOLDER: written by `gausscse export --format onnx`)
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import uvicorn
from fastapi import FastAPI
from pydantic import BaseModel
from tokenizers import Tokenizer

app = FastAPI()
folder, threads = Path(sys.argv[1]), int(os.environ.get("OMP_NUM_THREADS") or os.cpu_count() or 1)
tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
tokenizer.enable_padding(pad_id=0)
options = onnxruntime.SessionOptions()
options.intra_op_num_threads = threads
encoder = onnxruntime.InferenceSession(str(folder / "encoder.onnx"), options)


class Pairs(BaseModel):
    """n pairs of sentences."""

    a: list[str]
    b: list[str]


@app.get("/ready")
def ready() -> str:
    """It answers."""
    return "ready"


# In a thread of a pool: ONNX Runtime computes several requests at once.
@app.post("/similarity")
def similarity(pairs: Pairs) -> dict[str, Any]:
    """sim(a‖b) of each pair, by KL."""
    rows = tokenizer.encode_batch(pairs.a + pairs.b)
    ids, mask = (np.array(part) for part in zip(*((row.ids, row.attention_mask) for row in rows), strict=True))
    mean, log_var, *_ = (np.asarray(one) for one in encoder.run(None, {"input_ids": ids, "attention_mask": mask}))
    (m, n), (s, t) = np.split(mean, 2), np.split(log_var, 2)
    kl = 0.5 * (np.exp(s - t) + (n - m) ** 2 / np.exp(t) - 1 + t - s).sum(-1)
    return {"similarity": (1 / (1 + kl)).tolist()}


uvicorn.run(app, port=int(sys.argv[sys.argv.index("--port") + 1]), log_level="error")
