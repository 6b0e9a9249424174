"""An unmodified Keras model before and after: what is fused, how close, how fast.

Builds keras-hub's BertBackbone with random weights (nothing is downloaded), runs it as it is and
with its LayerNormalizations fused, compares both with a float64 run of the same weights, and shows
where to look. The last line of the output is JSON:

    norms, fused               LayerNormalization layers in the model, and how many were fused
    error_stock, error_fused   largest difference to the float64 run, over all outputs
    speedup                    median time of a stock call / median time of a fused call

Run it with `make demo`, or: python examples/keras_model.py --size base --policy mixed_bfloat16
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import IO, Any

# TensorFlow reads these when it is loaded: level 2 of remapper.cc is a line per fusion.
os.environ["TF_CPP_VMODULE"] = "remapper=2"
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "0"
os.environ["KERAS_BACKEND"] = "tensorflow"

SIZES = {
    "small": {
        "vocabulary_size": 2000,
        "num_layers": 4,
        "num_heads": 4,
        "hidden_dim": 256,
        "intermediate_dim": 1024,
        "max_sequence_length": 128,
    },
    "base": {
        "vocabulary_size": 30522,
        "num_layers": 12,
        "num_heads": 12,
        "hidden_dim": 768,
        "intermediate_dim": 3072,
        "max_sequence_length": 512,
    },
}
FUSION = re.compile(r"remapper\.cc:\d+\] (Fuse .* into Fused.*)")


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--size", choices=SIZES, default="small", help="of the BertBackbone")
    parser.add_argument("--policy", default="float32", help="Keras dtype policy of the model")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--length", type=int, default=128, help="tokens in a sequence")
    parser.add_argument("--calls", type=int, default=30, help="timed calls of each variant")
    return parser.parse_args()


@contextlib.contextmanager
def stderr_in_a_file() -> Iterator[IO[str]]:
    """Everything written to stderr, by TensorFlow's C++ code too; shown only if the block fails."""
    sys.stderr.flush()
    terminal = os.dup(2)
    with tempfile.TemporaryFile("w+", errors="replace") as log:
        os.dup2(log.fileno(), 2)
        try:
            yield log
        except BaseException:
            log.seek(0)
            os.write(terminal, log.read().encode())
            raise
        finally:
            os.dup2(terminal, 2)
            os.close(terminal)


def layer_norms(model: Any) -> int:
    """How many LayerNormalization layers a model has, counted in the model itself."""
    import keras

    layers = model._flatten_layers()
    return sum(isinstance(layer, keras.layers.LayerNormalization) for layer in layers)


def build(size: dict[str, int], policy: str, seed: int) -> tuple[Any, Any]:
    """The model and its twin in float64, with the same random weights."""
    import keras
    import keras_hub
    import numpy as np

    keras.utils.set_random_seed(seed)
    model = keras_hub.models.BertBackbone(**size, dtype=policy, name="bert")
    rng = np.random.default_rng(seed)
    for layer in model._flatten_layers():
        # Fresh norms have gamma = 1 and beta = 0, which would hide a wrong one.
        if isinstance(layer, keras.layers.LayerNormalization):
            for weight, centre in ((layer.gamma, 1.0), (layer.beta, 0.0)):
                weight.assign(rng.normal(centre, 0.2, weight.shape))
    exact = keras_hub.models.BertBackbone(**size, dtype="float64")
    exact.set_weights(model.get_weights())
    return model, exact


def inputs(size: dict[str, int], batch: int, length: int, seed: int) -> dict[str, Any]:
    """Random tokens, with some padding at the end of every second sequence."""
    import numpy as np
    import tensorflow as tf

    rng = np.random.default_rng(seed)
    mask = np.ones((batch, length), np.int32)
    mask[1::2, -length // 4 :] = 0
    return {
        "token_ids": tf.constant(
            rng.integers(0, size["vocabulary_size"], (batch, length)), "int32"
        ),
        "segment_ids": tf.zeros((batch, length), "int32"),
        "padding_mask": tf.constant(mask),
    }


def largest_difference(got: dict[str, Any], expected: dict[str, Any]) -> float:
    """Over all outputs of the model."""
    import numpy as np

    return max(
        float(np.max(np.abs(got[name].numpy().astype(np.float64) - expected[name].numpy())))
        for name in expected
    )


def interleaved_times(calls: dict[str, Callable[[], Any]], rounds: int) -> dict[str, list[float]]:
    """Seconds of each call, taken in turns so that a busy machine slows all of them alike."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for turn in range(rounds + 3):
        for name, call in calls.items():
            start = time.perf_counter()
            call()["pooled_output"].numpy()  # copying to the host waits for a GPU
            if turn >= 3:
                times[name].append(time.perf_counter() - start)
    return times


def show_fusions(console: Any, log: IO[str]) -> None:
    """The lines that TF_CPP_VMODULE=remapper=2 put on stderr."""
    from rich.text import Text

    log.seek(0)
    lines = [match.group(1) for match in map(FUSION.search, log) if match]
    for line in lines[:2]:
        console.print(Text(f"  {line}"), soft_wrap=True)
    if len(lines) > 2:
        console.print(f"  ... and {len(lines) - 2} more")
    if not lines:
        console.print("  (none)")


def device_name() -> str:
    """The device that the model runs on."""
    import tensorflow as tf

    gpus = tf.config.list_physical_devices("GPU")
    if not gpus:
        return f"the CPU ({os.cpu_count()} cores)"
    return tf.config.experimental.get_device_details(gpus[0]).get("device_name", "a GPU")


def run(arguments: argparse.Namespace, log: IO[str]) -> dict[str, Any]:
    """Everything but the command line; returns what the last line says."""
    import tensorflow as tf
    from rich.console import Console

    import nv_norms_rewriter

    console = Console(highlight=False, width=max(120, shutil.get_terminal_size().columns))
    size = SIZES[arguments.size]
    model, exact = build(size, arguments.policy, seed=0)
    x = inputs(size, arguments.batch, arguments.length, seed=1)
    norms = layer_norms(model)
    console.print(
        f"[bold]BertBackbone[/] ({arguments.size}, {arguments.policy}, random weights): "
        f"{model.count_params():,} parameters, {norms} LayerNormalizations, "
        f"{arguments.batch} x {arguments.length} tokens, on {device_name()}"
    )

    # TensorFlow optimizes a function when it first runs: that decides which one gets fused ops.
    stock = tf.function(lambda x: model(x, training=False))
    fused = tf.function(lambda x: model(x, training=False))
    reference = tf.function(lambda x: exact(x, training=False))
    with nv_norms_rewriter.disabled():
        y_exact, y_stock = reference(x), stock(x)
    nv_norms_rewriter.clear_report()
    y_fused = fused(x)
    report = nv_norms_rewriter.report()

    console.print("\n[bold]What TensorFlow's log says[/] (TF_CPP_VMODULE=remapper=2)")
    show_fusions(console, log)
    console.print("\n[bold]nv_norms_rewriter.report()[/]")
    console.print(report)

    error_stock = largest_difference(y_stock, y_exact)
    error_fused = largest_difference(y_fused, y_exact)
    console.print("\n[bold]Largest difference[/]")
    console.print(f"  stock to float64   {error_stock:.3g}")
    console.print(f"  fused to float64   {error_fused:.3g}")
    console.print(f"  fused to stock     {largest_difference(y_fused, y_stock):.3g}")

    times = interleaved_times(
        {"stock": lambda: stock(x), "fused": lambda: fused(x)}, arguments.calls
    )
    medians = {name: statistics.median(seconds) for name, seconds in times.items()}
    console.print(f"\n[bold]Time of a call[/] (median of {arguments.calls}, taken in turns)")
    for name, seconds in medians.items():
        console.print(f"  {name}   {1e3 * seconds:8.3f} ms")
    console.print()
    return {
        "norms": norms,
        "fused": sum(r.kind == "layer_norm" and r.direction == "forward" for r in report.fused),
        "error_stock": error_stock,
        "error_fused": error_fused,
        "speedup": round(medians["stock"] / medians["fused"], 3),
    }


def main() -> int:
    """0 if every LayerNormalization was fused, 1 otherwise."""
    arguments = parse_arguments()
    with stderr_in_a_file() as log:
        result = run(arguments, log)
    print(json.dumps(result))
    return 0 if result["fused"] == result["norms"] else 1


if __name__ == "__main__":
    sys.exit(main())
