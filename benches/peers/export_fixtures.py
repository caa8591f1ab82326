"""Exports small random models as torch.export does, with what PyTorch makes of them.

    python export_fixtures.py [NAME ..]        default: all, into import/tests/fixtures of this repository

For each model an archive NAME.pt2, and NAME.safetensors: "input.N" and "output.N" (the first is what the loss looks at), "target",
the loss, "gradient.PARAMETER" for every parameter, "losses" of 50 steps of AdamW at 1e-3 on this one batch, and "buffer.NAME" after them
for buffers that the model changes. With integer targets the loss is their cross-entropy, else the mean square of what lacks to them; without targets the first output is the loss.
"operators" and "corners" have no target: their outputs are one operator each. "dropout" is an archive alone. Files are packed by zlib (.z) but for those of `PLAIN`.
"""

import sys
import zlib
from pathlib import Path

import torch
from safetensors.torch import save

from export_models import CORE, MODELS, SIZED, TRAINED
from export_operators import Dropout, corners, operators

OUT = Path(__file__).resolve().parents[2] / "import/tests/fixtures"
# What tests of commands and of corrupt archives read as it is.
PLAIN = ["linear", "linear_sized", "linear_loss"]


def write_operators():
    """Gradients are those of the sum of the mean squares of all outputs of floats; nothing is trained."""
    torch.manual_seed(1)
    model, inputs = operators()
    export("operators", model, inputs)
    outputs = model(**inputs)
    sum(output.square().mean() for output in outputs if output.is_floating_point()).backward()
    tensors = {f"input.{i}": value for i, value in enumerate(inputs.values())}
    tensors |= {f"output.{i}": value for i, value in enumerate(outputs)}
    tensors |= {f"gradient.{key}": p.grad for key, p in model.named_parameters()}
    write_tensors("operators", tensors)
    export("dropout", Dropout(), {"x": torch.ones(60, 50)})


def write_corners():
    """Gradients are those of the mean square of the first output."""
    torch.manual_seed(2)
    model, inputs = corners()
    export("corners", model, inputs)
    outputs = model(**inputs)
    outputs[0].square().mean().backward()
    tensors = {f"input.{i}": value for i, value in enumerate(inputs.values())}
    tensors |= {f"output.{i}": value for i, value in enumerate(outputs)}
    write_tensors("corners", tensors | {f"gradient.{key}": p.grad for key, p in model.named_parameters()})


def loss_of(output, target):
    if target is None:
        return output
    if target.dtype == torch.long:
        return torch.nn.functional.cross_entropy(output.flatten(0, -2), target.flatten())
    return (output - target).square().mean()


def outputs_of(model, inputs):
    outputs = model(**inputs)
    outputs = list(outputs.values()) if isinstance(outputs, dict) else outputs
    return [outputs] if isinstance(outputs, torch.Tensor) else [output for output in outputs if output is not None]


def shorten(program):
    """Leaves of each traceback the last line, of the modules the innermost, and nothing of where a node was before decomposition: a tenth of the file."""
    for module in program.graph_module.modules():
        for node in getattr(module, "graph", torch.fx.Graph()).nodes:
            if trace := node.meta.get("stack_trace"):
                # What stands above the packages is of this machine.
                last = trace[trace.rindex('File "') + len('File "'):].splitlines()[0]
                node.meta["stack_trace"] = '  File "' + last.rpartition("site-packages/")[2].rpartition("benches/")[2]
            if modules := node.meta.get("nn_module_stack"):
                node.meta["nn_module_stack"] = dict(list(modules.items())[-1:])
            for name in ["from_node", "source_fn_stack", "torch_fn", "custom"]:
                node.meta.pop(name, None)


def put(name, content):
    """A file of a fixture, packed or as it is."""
    plain = name.partition(".")[0] in PLAIN
    (OUT / (name if plain else f"{name}.z")).write_bytes(content if plain else zlib.compress(content, 9))


def export(name, model, inputs):
    inputs, dynamic_shapes = SIZED.get(name, (inputs, None))
    program = torch.export.export(model, (), inputs, dynamic_shapes=dynamic_shapes)
    program = program.run_decompositions() if name in CORE else program
    shorten(program)
    if name not in PLAIN:
        # Those are stored as "input.N".
        program._example_inputs = None
    archive = OUT / f"{name}.pt2"
    torch.export.save(program, archive)
    content = archive.read_bytes()
    archive.unlink()
    put(archive.name, content)


def write(name, build):
    torch.manual_seed(sum(map(ord, name)))
    model, inputs = build()
    model.train(name in TRAINED)
    export(name, model, inputs)
    tensors = measured(name, model, inputs)
    write_tensors(name, tensors)
    print(name, [round(x, 4) for x in (tensors["losses"][0].item(), tensors["losses"][-1].item())], flush=True)


def measured(name, model, inputs):
    """What PyTorch makes of a model, which is trained then."""
    tensors = {f"input.{i}": value for i, value in enumerate(inputs.values())}
    buffers = {key: value.clone() for key, value in model.named_buffers()}
    outputs = outputs_of(model, inputs)
    shape = outputs[0].shape
    target = None if shape == () else torch.randn(shape) if name in ["linear", "linear_sized", "unet"] else torch.randint(0, shape[-1], shape[:-1])
    tensors |= {f"output.{i}": value for i, value in enumerate(outputs)}
    loss_of(outputs[0], target).backward()
    tensors |= {} if target is None else {"target": target}
    tensors |= {f"gradient.{key}": p.grad for key, p in model.named_parameters() if p.grad is not None}
    changed = [key for key, value in model.named_buffers() if not torch.equal(value, buffers[key])]
    model.load_state_dict(buffers, strict=False)
    tensors["losses"] = torch.tensor(train(model, inputs, target))
    return tensors | {f"buffer.{key}": value for key, value in model.named_buffers() if key in changed}


def train(model, inputs, target, steps=50, rate=1e-3):
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = loss_of(outputs_of(model, inputs)[0], target)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def packed(tensors):
    narrow = lambda value: value.int() if value.dtype == torch.long else value
    return save({key: narrow(value.detach()).contiguous().clone() for key, value in tensors.items()})


def write_tensors(name, tensors):
    put(f"{name}.safetensors", packed(tensors))


if __name__ == "__main__":
    OUT.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    others = {"operators": write_operators, "corners": write_corners}
    for name in sys.argv[1:] or [*MODELS, *others]:
        others[name]() if name in others else write(name, MODELS[name])
