"""Write a copy of a GGUF model with fewer layers, small enough to carry to another machine.

    python bench/truncate_model.py OUT.gguf --layers 12 [--model smollm2 | --gguf PATH]

The copy is a real model file with real weights (its text is worse); embeddings and the first
layers are kept as they are stored.
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path

import gguf

from kvcore.lab.fetch import fetch


def truncate(source: Path, target: Path, layers: int) -> None:
    """Copy metadata and tensors of `source`, keeping the first `layers` layers."""
    reader = gguf.GGUFReader(source)
    architecture = reader.fields["general.architecture"].contents()
    writer = gguf.GGUFWriter(target, architecture)
    for name, field in reader.fields.items():
        if name.startswith("GGUF.") or name == "general.architecture":
            continue
        value = field.contents()
        if name == f"{architecture}.block_count":
            value = layers
        inner = field.types[1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
        writer.add_key_value(name, value, field.types[0], inner)
    for tensor in reader.tensors:
        block = re.match(r"blk\.(\d+)\.", tensor.name)
        if block is None or int(block.group(1)) < layers:
            writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--gguf", type=Path)
    options = parser.parse_args()
    source = options.gguf or fetch(options.model)
    truncate(source, options.out, options.layers)
    print(f"{options.out}: {options.layers} layers, {options.out.stat().st_size / 2**20:.1f} MiB")


if __name__ == "__main__":
    main()
