"""Writes all_types.gguf (one tensor of every storage type that src/formats reads) and all_types.safetensors (the floats that the
PyPI package `gguf` 0.19.0 makes of them).

    PYTHONPATH=.deps/oracle/gguf:.deps/oracle/numpy:.deps/oracle/safetensors python3 tests/golden/formats/make_gguf.py
"""
import os

import numpy as np
from gguf import GGMLQuantizationType as Q
from gguf import GGUFWriter, quants
from safetensors.numpy import save_file

HERE = os.path.dirname(os.path.abspath(__file__))
rng = np.random.default_rng(7)


def halves(blocks, lo, hi):
    """One float16 per block, as two bytes."""
    return rng.uniform(lo, hi, (blocks, 1)).astype(np.float16).view(np.uint8)


def random_blocks(kind, blocks):
    """Blocks of a type that the package cannot write: any bytes are legal but for the scales, which must be finite."""
    if kind == Q.Q4_K:
        return np.concatenate([halves(blocks, 0.01, 0.5), halves(blocks, 0, 0.5), rng.integers(0, 256, (blocks, 140), dtype=np.uint8)], axis=1)
    return np.concatenate([rng.integers(0, 256, (blocks, 208), dtype=np.uint8), halves(blocks, -0.5, 0.5)], axis=1)


values = rng.standard_normal((3, 512)).astype(np.float32)
values[0, :4] = [0.0, -0.0, 65504.0, 1e-7]
writer = GGUFWriter(os.path.join(HERE, "all_types.gguf"), "llama")
writer.add_uint32("test.answer", 42)
writer.add_float32("test.half", 0.5)
writer.add_bool("test.yes", True)
writer.add_string("test.text", "grüße")
writer.add_array("test.words", ["a", "", "bc"])
writer.add_array("test.counts", [-1, 0, 70000])
writer.add_array("test.scores", [0.25, -1.5])
expected = {}
for kind in (Q.F32, Q.F16, Q.BF16, Q.Q8_0, Q.Q4_0, Q.Q4_1):
    scaled = values if kind in (Q.F32, Q.F16, Q.BF16) else np.clip(values, -4, 4)
    data = scaled.astype(np.float16) if kind == Q.F16 else scaled if kind == Q.F32 else quants.quantize(scaled, kind)
    writer.add_tensor(kind.name, data, raw_dtype=kind)
    expected[kind.name] = data.astype(np.float32) if kind in (Q.F32, Q.F16) else quants.dequantize(data, kind)
for kind in (Q.Q4_K, Q.Q6_K):
    data = random_blocks(kind, 6).reshape(3, -1)
    writer.add_tensor(kind.name, data, raw_dtype=kind)
    expected[kind.name] = quants.dequantize(data, kind)
data = quants.quantize(np.clip(values, -4, 4), Q.Q5_0)
writer.add_tensor("unreadable", data, raw_dtype=Q.Q5_0)
writer.write_header_to_file()
writer.write_kv_data_to_file()
writer.write_tensors_to_file()
writer.close()
save_file({name: np.ascontiguousarray(array, dtype=np.float32) for name, array in expected.items()}, os.path.join(HERE, "all_types.safetensors"))
