"""Time of the parts of a training step: `python -m bench.step_profile` prints milliseconds per step for each kind of work."""

from __future__ import annotations

from torch.profiler import profile

from bench.corpus import corpus
from bench.measure import use_threads
from bench.training import BATCH, Product

STEPS = 5
# Operators by kind of work. Only self time is used, so that nothing is counted twice.
KINDS = {
    "matrix products (bf16)": ("aten::mm", "aten::addmm"),
    "matrix products of attention (float32)": ("aten::bmm",),
    "random numbers and masks of dropout": ("aten::random_", "aten::ge"),
    "casts and copies": ("aten::copy_", "aten::cat", "aten::clone"),
    "GELU": ("aten::gelu", "aten::gelu_backward"),
    "LayerNorm": ("aten::native_layer_norm", "aten::native_layer_norm_backward"),
    "AdamW": ("aten::_fused_adamw_",),
    "word embeddings": ("aten::embedding", "aten::embedding_dense_backward", "aten::index_select", "aten::index_add_"),
    "elementwise": (
        *(f"aten::{name}{tail}" for name in ("mul", "add", "sub", "div", "exp", "masked_fill", "square") for tail in ("", "_")),
        *("aten::addcmul_", "aten::reciprocal_", "aten::amax", "aten::sum", "aten::tanh", "aten::expm1", "aten::pow_"),
    ),
    "allocation and filling": ("aten::empty", "aten::empty_strided", "aten::fill_", "aten::zero_", "aten::empty_like"),
}


def main() -> None:
    """Profile some steps, after two that are not counted."""
    use_threads()
    product = Product(corpus(), "kl", batch_size=BATCH)
    for _ in range(2):
        product.step()
    with profile() as profiled:
        for _ in range(STEPS):
            product.step()
    kinds = {operator: kind for kind, operators in KINDS.items() for operator in operators}
    spent = dict.fromkeys((*KINDS, "everything else"), 0.0)
    for event in profiled.key_averages():
        spent[kinds.get(event.key, "everything else")] += event.self_cpu_time_total / 1000 / STEPS
    whole = sum(spent.values())
    print("| kind of work | ms a step | share |\n| --- | --- | --- |")
    for kind, milliseconds in spent.items():
        print(f"| {kind} | {milliseconds:.0f} | {100 * milliseconds / whole:.0f} % |")
    print(f"| together | {whole:.0f} | |")


if __name__ == "__main__":
    main()
