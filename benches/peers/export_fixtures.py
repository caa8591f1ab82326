"""Exports small random models as torch.export does, with what PyTorch makes of them.

    python export_fixtures.py [NAME ..]        default: all, into import/tests/fixtures of this repository

For each model an archive NAME.pt2, and NAME.safetensors: "input.N" and "output.N" (the first is what the loss looks at), "target",
the loss, "gradient.PARAMETER" for every parameter, and "losses" of 50 steps of AdamW at 1e-3 on this one batch. With integer targets the
loss is their cross-entropy, else the mean square of what lacks to them. "operators" has no parameters: its outputs are one operator each.
"""

import sys
from pathlib import Path

import torch
import transformers as hf
from safetensors.torch import save_file

OUT = Path(__file__).resolve().parents[2] / "import/tests/fixtures"
BATCH, LENGTH, VOCABULARY, WIDTH, LAYERS, HEADS = 2, 6, 24, 16, 2, 4


def tokens(*shape, first=2):
    return torch.randint(first, VOCABULARY, shape)


def text(config_class, model_class, **settings):
    """A language model, and tokens for it."""
    return lambda: (model_class(config_class(**settings)), {"input_ids": tokens(BATCH, LENGTH)})


def padded(config_class, model_class, **settings):
    """As `text`, with a mask of what is padding."""
    def build():
        mask = torch.ones(BATCH, LENGTH, dtype=torch.long)
        mask[1, 4:] = 0
        return model_class(config_class(**settings)), {"input_ids": tokens(BATCH, LENGTH), "attention_mask": mask}
    return build


def images(config_class, model_class, **settings):
    return lambda: (model_class(config_class(**settings)), {"pixel_values": torch.randn(BATCH, 3, 8, 8)})


LLAMA = dict(vocab_size=VOCABULARY, hidden_size=WIDTH, intermediate_size=24, num_hidden_layers=LAYERS, num_attention_heads=HEADS,
             num_key_value_heads=2, max_position_embeddings=16, use_cache=False, pad_token_id=None, bos_token_id=0, eos_token_id=1)
BERT = dict(vocab_size=VOCABULARY, hidden_size=WIDTH, intermediate_size=24, num_hidden_layers=LAYERS, num_attention_heads=HEADS,
            max_position_embeddings=16)
MODELS = {
    "gpt2": text(hf.GPT2Config, hf.GPT2LMHeadModel, vocab_size=VOCABULARY, n_embd=WIDTH, n_layer=LAYERS, n_head=HEADS,
                 n_positions=16, use_cache=False, bos_token_id=0, eos_token_id=1),
    "llama": text(hf.LlamaConfig, hf.LlamaForCausalLM, **LLAMA),
    "linear": lambda: (Small(), {"x": torch.randn(4, 3)}),
    "bert": padded(hf.BertConfig, hf.BertForMaskedLM, **BERT),
}


class Operators(torch.nn.Module):
    """Each operator of the table by itself, on small parameters."""

    def __init__(self):
        super().__init__()
        self.a = torch.nn.Parameter(torch.randn(2, 3, 4))
        self.b = torch.nn.Parameter(torch.rand(2, 3, 4) + 0.5)
        self.c = torch.nn.Parameter(torch.randn(2, 4, 3))
        self.w = torch.nn.Parameter(torch.randn(5, 4))
        self.v = torch.nn.Parameter(torch.randn(4))
        self.s = torch.nn.Parameter(torch.rand(4) + 0.5)
        self.p = torch.nn.Parameter(torch.randn(1, 4, 4, 4))
        self.k = torch.nn.Parameter(torch.randn(8, 2, 3, 3))

    def forward(self, i, m):
        o, a, b, c, w, v, s = torch.ops.aten, self.a, self.b, self.c, self.w, self.v, self.s
        f, truth, p, k = torch.float32, torch.bool, self.p, self.k
        results = [
            o.abs.default(a), o.neg.default(a), o.sign.default(a), o.exp.default(a), o.log.default(b), o.sqrt.default(b),
            o.rsqrt.default(b), o.reciprocal.default(b), o.sin.default(a), o.cos.default(a), o.erf.default(a), o.floor.default(a),
            o.ceil.default(a), o.tanh.default(a), o.sigmoid.default(a), o.relu.default(a), o.silu.default(a), o.gelu.default(a),
            o.gelu.default(a, approximate="tanh"), o.softplus.default(a), o.softplus.default(a, 2.0), o.leaky_relu.default(a, 0.2),
            o.elu.default(a, 0.7), o.hardtanh.default(a), o.clamp.default(a, -0.5, None), o.clamp.default(a, None, 0.3),
            o.clamp_min.default(a, 0.1), o.clamp_max.default(a, 0.1), o.add.Tensor(a, v), o.add.Tensor(a, i, alpha=3), o.add.Scalar(a, 2), o.sub.Tensor(a, b, alpha=2),
            o.sub.Scalar(a, 0.5), o.rsub.Scalar(a, 2.0), o.mul.Tensor(a, b), o.mul.Scalar(a, 3), o.div.Tensor(a, b), o.div.Tensor(i, 4),
            o.div.Scalar(a, 3), o.pow.Tensor_Scalar(a, 3), o.pow.Tensor_Scalar(b, -0.5), o.pow.Tensor_Scalar(b, 1.7),
            o.pow.Tensor_Tensor(b, a), o.pow.Scalar(2.0, a), o.maximum.default(a, b), o.minimum.default(a, b),
            o.eq.Tensor(i, i + 1 - m[..., :1].long()), o.eq.Scalar(i, 2), o.ne.Tensor(a, b), o.ne.Scalar(m, 0), o.lt.Tensor(a, v),
            o.lt.Scalar(i, 1.5), o.le.Tensor(i, a), o.le.Scalar(i, 2), o.gt.Tensor(a, b), o.gt.Scalar(a, 0), o.ge.Tensor(a, b),
            o.ge.Scalar(i, 2), o.isinf.default(a), o.isnan.default(a), o.logical_not.default(i), o.logical_and.default(m, i),
            o.logical_or.default(m, i), o.logical_xor.default(m, i), o.bitwise_not.default(m), o.bitwise_and.Tensor(m, m),
            o.__and__.Tensor(m, m), o.to.device(a, "cpu", f), o.diff.default(a), o.diff.default(i, 1, 1, i[:, :1]), o.bitwise_or.Tensor(i, i), o.bitwise_xor.Tensor(m, i.bool()), o.where.self(m, a, v), o.where.ScalarOther(m, a, 0.5),
            o.masked_fill.Scalar(a, m, 7.0), o.masked_fill.Tensor(a, m, v[0]), o._to_copy.default(m, dtype=f), o.to.dtype(a, truth),
            o.to.dtype_layout(i, dtype=f, layout=torch.strided, device="cpu"), o.clone.default(a), o.alias.default(a), o.contiguous.default(a),
            o.lift_fresh_copy.default(a), o.detach.default(a), o.dropout.default(a, 0.5, False),
            o.full.default([2, 2], 1.5, device="cpu"), o.full_like.default(a, 2), o.new_full.default(a, [3], 4.0),
            o.scalar_tensor.default(2.5, dtype=f), o.zeros.default([2], device="cpu"), o.zeros_like.default(i), o.new_zeros.default(a, [2]),
            o.ones.default([2], device="cpu"), o.ones_like.default(a), o.new_ones.default(i, [2]), o.arange.default(4, device="cpu"),
            o.arange.start(2, 5, device="cpu"), o.arange.start_step(5, 0, -2, device="cpu"), o.view.default(a, [6, -1]),
            o.reshape.default(c, [2, -1]), o._unsafe_view.default(a, [24]), o.flatten.using_ints(a, 0, 1), o.unsqueeze.default(a, -2),
            o.squeeze.dim(a[:1], 0), o.squeeze.dims(a[:1, :1], [0, 1]), o.expand.default(v, [3, -1]), o.permute.default(a, [2, 0, -2]),
            o.transpose.int(a, -1, 0), o.t.default(w), o.slice.Tensor(a, 1, -2), o.slice.Tensor(a, 2, 0, 9223372036854775807, 3),
            o.slice.Tensor(a, 2, 1, 3), o.select.int(a, 1, -1), *o.split.Tensor(w, 2), *o.split_with_sizes.default(a, [1, 3], -1),
            *o.chunk.default(w, 2), *o.unbind.int(a, 1), o.cat.default([a, c.transpose(1, 2)], -1), o.stack.default([a, b], 1),
            o.repeat.default(v, [2, 3]), o.constant_pad_nd.default(a, [1, 2, -1, 0], 0.5), o.flip.default(a, [0, 2]),
            o.embedding.default(w, i), o.embedding.default(w, i, 2), o.index_select.default(a, 2, i[0, :, 0]),
            o.gather.default(a, 1, i.clamp_max(2)), o.index.Tensor(w, [i]), o.index.Tensor(a, [i[:, 0] - 2, None, i[:, 1]]),
            o.index.Tensor(a, [None, i[0, :, 0].clamp_max(2), i[0, :, 0]]), o.tril.default(a), o.triu.default(a, 1), *o.topk.default(a, 2),
            *o.sort.default(a, 1, True), o.sum.default(a), o.sum.dim_IntList(a, [-1], True), o.sum.dim_IntList(m, [0]), o.mean.default(a),
            o.mean.dim(a, [0, 2]), o.amax.default(a, [1]), o.amin.default(a, [1], True), o.any.default(m), o.any.dim(m, 1),
            o.any.dims(m, [1, 2]), o.argmax.default(a, -1, True), o.argmax.default(a), *o.max.dim(a, 1), *o.min.dim(a, 1, True),
            o.var.correction(a, [1], correction=1), *o.var_mean.correction(a, [2], correction=0, keepdim=True), o.cumsum.default(a, 1),
            o.cumsum.default(i, 1), o.mm.default(w, w.t()), o.bmm.default(a, c), o.addmm.default(v[:3], a[0], c[0], beta=0.5, alpha=2),
            o.baddbmm.default(v[:3], a, c), o.linear.default(a, w, v.sum().expand(5)), o.linear.default(a, w), o.matmul.default(a, v),
            o.matmul.default(v, w.t()), o.matmul.default(a, w.t()), o._softmax.default(a, 1, False), o.softmax.int(a, -1),
            o._safe_softmax.default(torch.where(m, a, float("-inf")), -1), o._log_softmax.default(a, 1, False), o.log_softmax.int(a, -1),
            *o.native_layer_norm.default(a, [4], s, v, 1e-5), o.layer_norm.default(a, [3, 4]), o.rms_norm.default(a, [4], s),
            o.rms_norm.default(a, [4], s, 1e-3), *o._fused_rms_norm.default(a, [4], s, 1e-5),
            *o.native_group_norm.default(c, s, v, 2, 4, 3, 2, 1e-5), o.group_norm.default(c, 4, s, v),
            o._native_batch_norm_legit_no_training.default(c, s, v, s.detach(), b[0, 0].detach(), 0.1, 1e-5)[0],
            o.batch_norm.default(c, s, None, v.detach(), s.detach(), False, 0.1, 1e-5, False),
            o.scaled_dot_product_attention.default(a[:, None], a[:, None], c.transpose(1, 2)[:, None], is_causal=True),
            o.scaled_dot_product_attention.default(a[:, None].expand(2, 2, 3, 4), a[:, None], b[:, None], o.logical_or.default(m[:, None, :, :3], torch.eye(3, dtype=truth)), scale=0.3, enable_gqa=True),
            o.scaled_dot_product_attention.default(a, b, b, a @ c),
            o.convolution.default(p, k, self.k[:, 0, 0, 0], [2, 1], [1, 2], [1, 2], False, [0, 0], 2),
            o.conv2d.default(p, k[:, :1], None, [1, 1], [1, 1], [1, 1], 4), o.conv2d.default(p, k[:4, :1], None, [1, 1], [1, 1], [1, 1], 4),
            o.conv2d.default(p, k.view(-1)[:48].view(3, 4, 2, 2), v[:3], [2, 2]), o.conv1d.default(c, k.view(-1)[:40].view(5, 4, 2)),
            o.max_pool2d.default(p, [2, 2]), o.max_pool2d_with_indices.default(p, [3, 3], [1, 1], [1, 1])[0],
            o.avg_pool2d.default(p, [2, 2]), o.avg_pool2d.default(p, [3, 3], [2, 2], [1, 1]),
            o._scaled_dot_product_flash_attention_for_cpu.default(a[:, None], b[:, None], b[:, None])[0],
        ]
        return tuple(results)


def operators():
    return Operators(), {"i": torch.randint(0, 4, (2, 3, 4)), "m": torch.rand(2, 3, 4) > 0.4}


def write_operators(out):
    """Gradients are those of the sum of the mean squares of all outputs of floats; nothing is trained."""
    torch.manual_seed(1)
    model, inputs = operators()
    export("operators", model, inputs, out, decompose=False)
    outputs = model(**inputs)
    sum(output.square().mean() for output in outputs if output.is_floating_point()).backward()
    tensors = {f"input.{i}": value for i, value in enumerate(inputs.values())}
    tensors |= {f"output.{i}": value for i, value in enumerate(outputs)}
    tensors |= {f"gradient.{key}": p.grad for key, p in model.named_parameters()}
    save(tensors, out / "operators.safetensors")


class Small(torch.nn.Module):
    """What corrupt archives are made of."""

    def __init__(self):
        super().__init__()
        self.up = torch.nn.Linear(3, 5)

    def forward(self, x):
        return self.up(x)


def loss_of(output, target):
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


def export(name, model, inputs, out, decompose=True):
    program = torch.export.export(model, (), inputs)
    program = program.run_decompositions() if decompose else program
    shorten(program)
    torch.export.save(program, out / f"{name}.pt2")
    return program


# The models of core ATen operators alone.
CORE = ["linear", "bert"]


def is_class(name):
    return name not in ["linear", "vit"]


def write(name, build, out):
    torch.manual_seed(sum(map(ord, name)))
    model, inputs = build()
    model.eval()
    # What transformers calls is above the core operators; GPT-2's views of what attention gives fail to decompose.
    export(name, model, inputs, out, decompose=name in CORE)
    outputs = outputs_of(model, inputs)
    shape = outputs[0].shape
    target = torch.randint(0, shape[-1], shape[:-1]) if is_class(name) else torch.randn(shape)
    tensors = {f"input.{i}": value for i, value in enumerate(inputs.values())}
    tensors |= {f"output.{i}": value for i, value in enumerate(outputs)}
    loss_of(outputs[0], target).backward()
    tensors["target"] = target
    tensors |= {f"gradient.{key}": p.grad for key, p in model.named_parameters() if p.grad is not None}
    tensors["losses"] = torch.tensor(train(model, inputs, target))
    save(tensors, out / f"{name}.safetensors")
    print(name, [round(x, 4) for x in (tensors["losses"][0].item(), tensors["losses"][-1].item())])


def train(model, inputs, target):
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses = []
    for _ in range(50):
        optimizer.zero_grad()
        loss = loss_of(outputs_of(model, inputs)[0], target)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def save(tensors, path):
    narrow = lambda value: value.int() if value.dtype == torch.long else value
    save_file({key: narrow(value.detach()).contiguous().clone() for key, value in tensors.items()}, path)


if __name__ == "__main__":
    OUT.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    for name in sys.argv[1:] or [*MODELS, "operators"]:
        write_operators(OUT) if name == "operators" else write(name, MODELS[name], OUT)
