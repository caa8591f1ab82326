"""Exports the models of `export_models.py` as torch.onnx.export does: the ONNX fixtures of the import.

    python onnx_fixtures.py [--out DIR] [--optimized] [NAME ..]        default: all, into import/tests/fixtures of this repository

For each model NAME.onnx, whose weights are those of NAME.pt2: they are external data, at the offsets at which that archive has them. What
PyTorch makes of the model is in NAME.safetensors. `export_fixtures.py` writes both; this script fails where they are not of one model.
ONNX cannot say that a parameter has no gradient, or a row of an embedding (`padding_idx`): of models that have such NAME.safetensors is
written, too, with what PyTorch makes of them where all have. Nodes keep the innermost module and line of Python. "operators" is `onnx_operators.py`.

--optimized writes files as the exporter makes them by default, with weights and whole metadata. It computes what follows from weights and
merges equal ones, so that such a file runs, but does not train as the model does; the tests look at their outputs. Without it,
`optimize=False`.
"""

import argparse
import json
import struct
import zipfile
import zlib
from io import BytesIO
from pathlib import Path

import onnx
import torch

from export_fixtures import OUT, measured, packed
from export_models import CORE, MODELS, SIZED, TRAINED
from onnx_operators import OPSET, operators

STACK = "pkg.torch.onnx.stack_trace"
SCOPES = "pkg.torch.onnx.name_scopes"
KIND = "pkg.torch.export.graph_signature.InputSpec.kind"


def content(name):
    plain = OUT / name
    return plain.read_bytes() if plain.exists() else zlib.decompress((OUT / f"{name}.z").read_bytes())


def stored(archive):
    """For each parameter and buffer of an archive its bytes and where they are."""
    tensors = {}
    with zipfile.ZipFile(BytesIO(archive)) as zip:
        for folder, kind in [("constants", "constants"), ("weights", "weights")]:
            path = next(name for name in zip.namelist() if name.endswith(f"data/{folder}/model_{kind}_config.json"))
            for name, place in json.loads(zip.read(path))["config"].items():
                entry = zip.getinfo(path.rpartition("/")[0] + "/" + place["path_name"])
                names, extra = struct.unpack_from("<HH", archive, entry.header_offset + 26)
                start = entry.header_offset + 30 + names + extra
                tensors[name] = archive[start:start + entry.file_size], start
    return tensors


def model_of(name, tensors):
    """The model of an archive: built as that was, with its weights."""
    torch.manual_seed(sum(map(ord, name)))
    model, inputs = MODELS[name]()
    model.train(name in TRAINED)
    with torch.no_grad():
        for key, value in model.named_parameters():
            expected = torch.frombuffer(bytearray(tensors[key][0]), dtype=value.dtype)[:value.numel()].reshape(value.shape)
            if not torch.equal(value, expected):
                raise SystemExit(f"{name}: {key} is another one in {name}.pt2; write the fixture anew with export_fixtures.py")
    return model, inputs


def give_gradients(model):
    """Gives all parameters and all rows of embeddings gradients; whether some had none."""
    embeddings = [module for module in model.modules() if isinstance(module, torch.nn.Embedding)]
    padded = [module for module in embeddings if module.padding_idx is not None]
    for module in padded:
        module.padding_idx = None
    frozen = [value for value in model.parameters() if not value.requires_grad]
    for value in frozen:
        value.requires_grad_()
    return bool(padded or frozen)


def exported(name, model, inputs, optimize):
    inputs, dynamic_shapes = SIZED.get(name, (inputs, None))
    # What torch.onnx.export does itself fails for T5, of whose views it makes none that are possible.
    program = torch.export.export(model, (), inputs, dynamic_shapes=dynamic_shapes)
    program = program.run_decompositions() if name in CORE else program
    return torch.onnx.export(program, dynamo=True, optimize=optimize, verbose=False).model_proto


def shorten(proto):
    """Leaves of each node the innermost module and line, of the types of values those of inputs, results and the kinds of initializers."""
    for node in proto.graph.node:
        entries = {entry.key: entry.value for entry in node.metadata_props}
        del node.metadata_props[:]
        node.name, node.doc_string = "", ""
        if 'File "' in entries.get(STACK, ""):
            last = entries[STACK][entries[STACK].rindex('File "') + len('File "'):].splitlines()[0]
            line = 'File "' + last.rpartition("site-packages/")[2].rpartition("benches/")[2]
            node.metadata_props.add(key=STACK, value=line)
        if SCOPES in entries:
            node.metadata_props.add(key=SCOPES, value=str(eval(entries[SCOPES])[-2:]))
    kinds = {info.name: entry.value for info in proto.graph.value_info for entry in info.metadata_props if entry.key == KIND}
    del proto.graph.value_info[:]
    for name, kind in kinds.items():
        proto.graph.value_info.add(name=name).metadata_props.add(key=KIND, value=kind)


def refer(proto, model, tensors, archive):
    """Names initializers as PyTorch names parameters first, where these are tied, and makes them external data of the archive."""
    first = {id(value): key for key, value in model.named_parameters()}
    names = {key: first.get(id(value), key) for key, value in model.named_parameters(remove_duplicate=False)}
    for node in proto.graph.node:
        node.input[:] = [names.get(name, name) for name in node.input]
    for info in proto.graph.value_info:
        info.name = names.get(info.name, info.name)
    for tensor in proto.graph.initializer:
        tensor.name = names.get(tensor.name, tensor.name)
        found, start = tensors.get(tensor.name, (b"", 0))
        if tensor.raw_data and found[:len(tensor.raw_data)] == tensor.raw_data:
            entries = {"location": archive, "offset": start, "length": len(tensor.raw_data)}
            tensor.raw_data = b""
            tensor.data_location = onnx.TensorProto.EXTERNAL
            for key, value in entries.items():
                tensor.external_data.add(key=key, value=str(value))


def put(out, name, content):
    plain = name.startswith("linear")
    (out / (name if plain else f"{name}.z")).write_bytes(content if plain else zlib.compress(content, 9))


def write(out, name, optimize):
    tensors = stored(content(f"{name}.pt2"))
    model, inputs = model_of(name, tensors)
    is_changed = give_gradients(model)
    proto = exported(name, model, inputs, optimize)
    if not optimize:
        shorten(proto)
        refer(proto, model, tensors, f"{name}.pt2")
    put(out, f"{name}.onnx", proto.SerializeToString(deterministic=True))
    if is_changed:
        put(out, f"{name}.safetensors", packed(measured(name, model, inputs)))
    print(name, len(proto.graph.node), "nodes", flush=True)


def write_operators(out):
    model, inputs, outputs = operators()
    tensors = {f"input.{i}": value for i, value in enumerate(inputs)} | {f"output.{i}": value for i, value in enumerate(outputs)}
    from safetensors.numpy import save
    put(out, "onnx_operators.onnx", model.SerializeToString(deterministic=True))
    put(out, "onnx_operators.safetensors", save(tensors))
    print("operators of version", OPSET, len(model.graph.node), "nodes")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--optimized", action="store_true")
    parser.add_argument("names", nargs="*")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    # Buffers that a model in training changes are no results of a file of ONNX.
    for name in arguments.names or ["operators", *(name for name in MODELS if name not in TRAINED)]:
        write_operators(arguments.out) if name == "operators" else write(arguments.out, name, arguments.optimized)
