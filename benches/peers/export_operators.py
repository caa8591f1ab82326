"""A module whose outputs are one operator of the import each, for `export_fixtures.py`."""

import torch


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
        return (*results, *self.elementwise(i, m), *self.moved(i, m), *self.windows(), *self.recurrent(), *self.losses(i, m), *self.in_place(i, m),
                *self.later(i, m), *self.in_place_by_views(i))

    def elementwise(self, i, m):
        o, a, b, c, w, v, s = torch.ops.aten, self.a, self.b, self.c, self.w, self.v, self.s
        inf = float("inf")
        return [
            o.log10.default(b), o.tan.default(a), o.rsub.Tensor(a, v, alpha=2), o.exp2.default(a), o.expm1.default(a), o.log1p.default(b), o.log2.default(b), o.square.default(a), o.trunc.default(a * 3),
            o.round.default(a * 3), o.round.default(i / 2 - 1), o.log_sigmoid.default(a), o.relu6.default(a * 4), o.mish.default(a),
            o.hardsigmoid.default(a * 3), o.hardswish.default(a * 3), o.prelu.default(c, s), o.prelu.default(a, s[:1]), o.elu.default(a, 0.5, 1.5),
            o.celu.default(a, 0.7), o.selu.default(a), o.threshold.default(a, 0.2, -1.0), o.glu.default(a, -1), o.clamp.Tensor(a, v - 1, s),
            o.div.Tensor_mode(a, b, rounding_mode="floor"), o.div.Tensor_mode(i - 3, i + 1, rounding_mode="trunc"),
            o.div.Scalar_mode(i - 5, 2, rounding_mode="floor"), o.floor_divide.default(i - 5, 3), o.remainder.Tensor(i - 5, i + 1),
            o.remainder.Scalar(a, 0.3), o.fmod.Tensor(a, b), o.fmod.Scalar(i - 5, 3), o.addcmul.default(a, b, v, value=0.5),
            o.addcdiv.default(a, v, b), o.lerp.Scalar(a, b, 0.3), o.lerp.Tensor(a, b, s), o.max.other(a, v), o.min.other(a, v),
            o.isfinite.default(torch.where(m, a, inf)), o.nan_to_num.default(torch.where(m, a, float("nan")), 2.0),
            o.nan_to_num.default(torch.where(m, a.detach(), -inf), 0.0, None, -3.0), o.bitwise_and.Scalar(i, 2), o.__or__.Tensor(i, i + 1),
            o.where.ScalarSelf(m, 0.5, a), o.where.Scalar(m, 1.5, 0.5), o.type_as.default(i, a), *o.native_dropout.default(a, 0.0, True),
            o.max.default(a), o.min.default(a), o.logsumexp.default(a, [0, 2]), o.linalg_vector_norm.default(a, 2, [1]),
            o.linalg_vector_norm.default(a, 1), o.linalg_vector_norm.default(a, 3, [0, 1], True), o.linalg_vector_norm.default(a, inf, [2]),
            o.all.default(m), o.all.dim(m, 1), o.argmin.default(a, 1), o.argmin.default(a), o.std.correction(a, [1], correction=1),
            o.mv.default(w, v), o.dot.default(v, s), o.outer.default(v, s), o.einsum.default("bij,bjk->bik", [a, c]),
            o.einsum.default("...ij,...jk,k->i...", [a, c, v[:3]]), o.einsum.default("bij,kj", [a, w]), o.einsum.default("bij->ji", [a]),
            o.einsum.default("bij,bij->", [a, b]), o.einsum.default("bi,j->bij", [a[:, :, 0], v]), o.instance_norm.default(c, s, v, None, None, True, 0.1, 1e-5, False),
            o.batch_norm.default(c, s, v, None, None, True, 0.1, 1e-5, False),
            *o._native_batch_norm_legit_functional.default(c, s, v, v.detach(), s.detach(), True, 0.3, 1e-5),
        ]

    def moved(self, i, m):
        o, a, b, c, w, v = torch.ops.aten, self.a, self.b, self.c, self.w, self.v
        # Of several values for one place PyTorch hands the gradient to all: those have none here.
        places, each = torch.tensor([4, 0, 4]), torch.tensor([3, 0, 4])
        order = torch.tensor([[[2, 0, 1, 2], [0, 1, 2, 0]]]).expand(2, -1, -1)
        return [
            o.swapaxes.default(a, 0, -1), o.unfold.default(a, 2, 2, 1), o.unfold.default(a, 0, 1, 3), *o.meshgrid.indexing([v, b[0, 0]], indexing="ij"),
            *o.meshgrid.indexing([v[:3], b[0, 0], v], indexing="xy"), o.argsort.default(a, 1, True), *o.sort.stable(a, stable=True, dim=1),
            o.squeeze.default(a[:1]), o.unflatten.int(a, 2, [2, 2]), o.view_as.default(c, a), o.expand_as.default(v, a), o.movedim.int(a, 0, -1),
            o.numpy_T.default(w), o.narrow.default(a, 2, -3, 2), o.repeat_interleave.self_int(a, 2, 1), o.repeat_interleave.self_int(v, 3),
            o.roll.default(a, [1, -2], [1, 2]), o.pad.default(a, [1, 2], "constant", 0.5), o.pad.default(a, [1, 2], "replicate"),
            o.pad.default(a, [2, 1], "reflect"), o._unsafe_index.Tensor(w, [i]), o.take_along_dim.default(a, i[:, :1].clamp_max(2), 1),
            o.one_hot.default(i, 5), o.fill.Scalar(a, 2.5), o.zero.default(i),
            o.index_put.default(w, [places], a[0].detach()), o.index_put.default(w, [each], a[0]), o.index_put.default(w, [places], a[0], True), o.index_put.default(w, [places, places - 1], v[0].detach()), o.index_put.default(w, [each, each - 1], v[0]), o.index_put.default(w, [each, each - 1], v[:3]),
            o.index_put.default(a, [None, places % 3, places % 2], b[:, :, 0].detach()), o.index_put.default(a, [i[0, :, 0] % 2, None, i[0, :, 1]], b[0, :3, :3].detach()),
            o.index_put.default(a, [each % 2, None, each // 2], b[0, :3, :3]),
            o.index_put.default(a, [m], torch.tensor(0.5)), o.index_put.default(i, [places % 2], i[0]), o.index_add.default(w, 0, places, a[1], alpha=2),
            o.scatter.src(a, 1, i[:, :2] % 3, b.detach()), o.scatter.src(a, 1, order, b[:, :2]),
            o.scatter.src(w, 0, torch.tensor([[0, 1, 2], [3, 2, 4]]), b[0, :2, :3]), o.scatter.value(a, 2, i[..., :1], 1.5),
            o.scatter_add.default(a, 2, i, b), o.select_scatter.default(a, b[:, :, 0], 2, -2),
            o.slice_scatter.default(a, b[:, :2], 1, 1), o.slice_scatter.default(a, b[..., :2], 2, 0, 2), o.copy.default(a.detach(), v.detach()),
        ]

    def windows(self):
        o, c, k, v, s, p = torch.ops.aten, self.c, self.k, self.v, self.s, self.p
        flat, line = k.view(-1), p.view(4, 4, 4)
        q = p[..., :3]
        return [
            o.conv1d.padding(line, flat[:24].view(3, 4, 2), None, [1], "same"), o.conv1d.padding(line, flat[:24].view(3, 4, 2), None, [2], "valid"),
            o.conv2d.padding(p, flat[:96].view(4, 4, 2, 3), v, [1, 1], "same", [2, 1]), o.conv3d.default(p[:, :, None], flat[:64].view(2, 4, 2, 2, 2), None, [1, 1, 1], [1, 0, 0]),
            o.conv_transpose1d.default(line, flat[:36].view(4, 3, 3), v[:3], [2], [1], [1]),
            o.conv_transpose2d.input(p, flat[:48].view(4, 2, 2, 3), s, [2, 1], [0, 1], [1, 0], 2),
            o.conv_transpose2d.input(p, flat[:32].view(4, 2, 2, 2), None, [2, 3], [0, 0], [0, 0], 4, [2, 1]),
            o.convolution.default(q, flat[:48].view(4, 3, 2, 2), None, [2, 2], [0, 0], [1, 1], True, [1, 1], 1),
            # Of so many inputs that each place has a product of its own.
            o.conv2d.default(p.view(1, 16, 2, 2), flat[:128].view(2, 16, 2, 2), v[:2], [1, 1], [1, 1]),
            o.conv_transpose2d.input(p.view(1, 16, 2, 2), flat[:128].view(16, 2, 2, 2), None, [2, 2], [0, 1]),
            o.pixel_shuffle.default(p, 2), o.upsample_bicubic2d.vec(p, [7, 3], False, None), o.upsample_bicubic2d.vec(q, None, True, [2.0, 2.0]),
            o.max_pool1d.default(line, [3], [2], [1], [1], True), o.max_pool2d.default(p, [3, 2], [2, 2], [1, 0], [1, 2], True),
            o.avg_pool1d.default(line, [3], [2], [1], True, False), o.avg_pool2d.default(p, [3, 3], [2, 2], [1, 1], True, True),
            o.avg_pool2d.default(p, [3, 3], [2, 2], [1, 1], False, False), o.avg_pool2d.default(p, [2, 2], [2, 2], [0, 0], False, True, 3),
            o.adaptive_avg_pool1d.default(line, [3]), o.adaptive_avg_pool2d.default(q, [3, 2]), o._adaptive_avg_pool2d.default(p, [1, 1]),
            o.upsample_nearest1d.vec(line, [6], None), o.upsample_nearest2d.vec(p, None, [2.0, 1.6]), o.upsample_nearest2d.vec(q, [8, 6], None),
            o.upsample_bilinear2d.vec(p, [7, 3], False, None), o.upsample_bilinear2d.vec(q, None, True, [2.0, 2.0]),
        ]

    def recurrent(self):
        o, c, k = torch.ops.aten, self.c, self.k.view(-1)
        first = k[:8].view(1, 2, 4)
        # Two layers, both directions: the weights of x, of h, and the biases.
        lstm = [k[at:][:n].view(shape) for n, shape, at in 2 * ((24, (8, 3), 0), (16, (8, 2), 9), (8, (8,), 20), (8, (8,), 31))]
        lstm += [k[at:][:n].view(shape) for n, shape, at in 2 * ((32, (8, 4), 5), (16, (8, 2), 50), (8, (8,), 60), (8, (8,), 70))]
        states = k[:16].view(4, 2, 2)
        once = [k[:36].view(12, 3), k[36:84].view(12, 4), k[90:102], k[100:112]]
        return [
            *o.lstm.input(c, [states, states + 0.5], lstm, True, 2, 0.0, False, True, True),
            *o.gru.input(c.transpose(0, 1), first, once, True, 1, 0.0, False, False, False),
            *o.rnn_tanh.input(c, first, [once[0][:4], once[1][:4]], False, 1, 0.0, False, False, True),
        ]

    def losses(self, i, m):
        o, a, b, c, v = torch.ops.aten, self.a, self.b, self.c, self.v
        classes = i[:, 0] % 3
        truth, rows = m.float(), classes.flatten()
        return [
            o.cross_entropy_loss.default(a, classes), o.cross_entropy_loss.default(a, classes, b[0, :, 0].detach(), 0, 2),
            o.cross_entropy_loss.default(a, classes, None, 2, 1, 0.2), o.cross_entropy_loss.default(a, classes, None, 1, 1, 0.1),
            o.cross_entropy_loss.default(v, i[0, 0, 0]), o.nll_loss_nd.default(a, classes, b[0, :, 0].detach(), 1, 0),
            *o.nll_loss_forward.default(c.reshape(8, 3), rows, None, 1, 2), o.mse_loss.default(a, b), o.mse_loss.default(a, b, 0),
            o.l1_loss.default(a, b, 2), o.binary_cross_entropy_with_logits.default(a, truth),
            o.binary_cross_entropy_with_logits.default(a, truth, b.detach(), v.detach().abs(), 0),
        ]

    def in_place(self, i, m):
        """What was changed is read again, under its own name or that of the result."""
        o, a, b, v, s = torch.ops.aten, self.a, self.b, self.v, self.s
        x = a * 2
        y = o.add_.Tensor(x, b)
        o.mul_.Scalar(y, 0.5)
        z = o.relu_.default(x)
        rows = b.transpose(0, 1).contiguous() + 1
        view = rows.view(-1)
        o.div_.Scalar(view, 2)
        counts = i.clone()
        counts.index_put_([torch.tensor([1])], counts[0] + 1)
        filled = o.masked_fill_.Scalar(a.clone(), m, 0.25)
        return [x, y, z + x, view.tanh(), counts, filled, o.zero_.default(b.clone()), o.copy_.default(a.clone(), v),
                o.clamp_.default(a - 1, -0.5, 0.5)]

    def later(self, i, m):
        """Operators that came later, so that the others keep their places."""
        o, a, b, c, w, v, s, p, k = torch.ops.aten, self.a, self.b, self.c, self.w, self.v, self.s, self.p, self.k
        share, tie = b / 2, a - a.detach()
        flat, line, volume = k.view(-1), p.view(4, 4, 4), p.view(1, 2, 4, 2, 4)
        with torch.no_grad():
            still = o.tanh.default(a) + 1
        return [
            o.erfc.default(a), o.frac.default(a * 3), o.sinh.default(a), o.cosh.default(a), o.hypot.default(a, b), o.logaddexp.default(a, b),
            o.bitwise_or.Scalar(i, 5), o.bitwise_xor.Scalar(i, 5), 1 - a, o.fill.Tensor(a, v[0]), o.zero_.default(o.empty.memory_format([2], device="cpu")),
            o.zero_.default(o.new_empty.default(a, [3])), o.zero_.default(o.empty_like.default(a)), *o.tensor_split.sections(w, 2), *o.tensor_split.indices(a, [1, 3], 2),
            o.diagonal.default(a, 0, 1, 2), o.diagonal.default(a, -1, 2, 0), o.hstack.default([a, a]), o.hstack.default([v, s]), o.vstack.default([v, w]),
            o.native_channel_shuffle.default(p.detach(), 2), o.var.dim(a, [1]), o.var.dim(a, [0, 2], False, True), o.var.default(a), o.std.dim(a, [2], True),
            o.std.default(a, False), *o.var_mean.dim(a, [1]), *o.var_mean.default(a), o.addmv.default(v[:3], a[0], s, beta=0.5, alpha=2),
            o.linalg_vecdot.default(a, b), o.cosine_similarity.default(a, b, 1), o.cosine_similarity.default(a, v, -1),
            o.smooth_l1_loss.default(a, b, 1, 0.5), o.smooth_l1_loss.default(a, b, 0), o.huber_loss.default(a, b, 2, 0.7),
            o.kl_div.default(a, share.detach()), o.kl_div.default(a, b, 0, log_target=True), o.binary_cross_entropy.default(share.clamp(0.1, 0.9), m.float()),
            *o._native_batch_norm_legit.no_stats(c, s, v, True, 0.1, 1e-5)[:1], o._weight_norm.default(k, v[:2].view(1, 2, 1, 1), 1), o._weight_norm.default(w, s[:1].expand(5, 1), 0),
            o.index_fill.int_Scalar(a, 2, i[0, :, 0], 0.5), o.conv3d.padding(volume, flat[:48].view(3, 2, 2, 2, 2), None, [1, 1, 1], "same"),
            o.im2col.default(p, [2, 3], [1, 1], [1, 0], [2, 1]), o.im2col.default(p, [3, 3], [1, 1], [1, 1], [1, 1]),
            o.col2im.default(line[..., :3].reshape(1, 12, 4), [3, 4], [2, 3], [1, 1], [0, 1], [1, 2]), o.col2im.default(line.reshape(1, 16, 4), [5, 4], [2, 2], [1, 1], [0, 0], [2, 2]),
            o.max_pool3d.default(volume, [2, 2, 2]), o.avg_pool3d.default(volume, [2, 1, 2], [1, 1, 1], [1, 0, 0]), o.adaptive_avg_pool3d.default(volume, [2, 1, 3]),
            o.upsample_nearest3d.vec(volume, [8, 2, 6], None), o.upsample_linear1d.vec(line, [7], False, None), o.upsample_trilinear3d.vec(volume, [3, 4, 7], True, None),
            # One window over an axis, or over both.
            o.avg_pool2d.default(p, [4, 4]), o.avg_pool2d.default(p, [9, 9], [9, 9], [0, 0], True), o.avg_pool2d.default(p, [5, 2], [5, 2], [1, 0]),
            o.avg_pool2d.default(p, [6, 2], [6, 2], [1, 0], False, False), o.avg_pool2d.default(p, [4, 2], [4, 2], [0, 0], False, True, 3), o.max_pool2d.default(p, [4, 2]),
            o.max_pool2d.default(p, [5, 5], [3, 5], [1, 1]),
            # At the bounds, where derivatives jump.
            o.relu.default(tie) + 1, o.relu6.default(tie) + 1, o.relu6.default(tie + 6), o.hardtanh.default(tie, 0.0, 1.0) + 1, o.hardtanh.default(tie + 1),
            o.hardsigmoid.default(tie + 3), o.clamp.default(tie, 0.0, 1.0) + 1, o.clamp.default(tie, -1.0, 0.0) + 1, o.clamp_min.default(tie, 0.0) + 1,
            o.clamp_max.default(tie + 1, 1.0), o.clamp.Tensor(tie + s.detach(), s, None), o.leaky_relu.default(tie, 0.2) + 1, o.elu.default(tie) + 1, o.abs.default(tie) + 1,
            o.maximum.default(tie, v.detach() * 0) + 1, o.amax.default(tie + b.detach().round(), [1]), o.threshold.default(tie, 0.0, 2.0),
            o.multiply.Tensor(a, b), o.true_divide.Tensor(a, 2), o.subtract.Tensor(a, b, alpha=2), o.concat.default([a, b], 1), o.greater.Scalar(i, 1),
            o.clip.default(a, -0.5, 0.5), o.reshape_as.default(c, a), o.tile.default(v, [2, 3]), o.broadcast_to.default(v, [3, 4]), o.ravel.default(a),
            o.swapdims.default(a, 0, 2), o.special_expit.default(a), o.special_softmax.default(a, 1), still * a, *o.split.sizes(a, [1, 2], 1),
        ]

    def in_place_by_views(self, i):
        """Views of a tensor change, and others of it are read again."""
        o, a, b, v, s = torch.ops.aten, self.a, self.b, self.v, self.s
        x = a * 2
        first, rows = x[0], x.view(6, 4)
        first[:, 1:3] += 1
        x[:, 1] = v
        rows[::2, -1].mul_(s[0])
        steps = torch.zeros(3, 4)
        for at in range(3):
            steps[at] = (steps[at - 1] if at else 0) + b[0, at] * s
        turned = b.permute(2, 0, 1) + 0
        back = turned.transpose(0, 2)
        back[:, 1].add_(3)
        turned.movedim(0, -1).mul_(v)
        narrow = b.clone()
        narrow.narrow(2, -2, 2).unsqueeze(0).mul_(0.5)
        narrow.swapaxes(1, 2)[:, 0].sub_(1)
        copied = b.transpose(1, 2).reshape(2, 12)
        copied.zero_()
        every = b.flatten() + 0
        every[1:20:3] = v.sum()
        half = a[0] + 0
        torch.nn.functional.dropout(half, 0.3, False, inplace=True)
        counts = i.clone()
        counts.view(-1)[5:7] = 9
        # PyTorch changes one of several views only where there are no gradients.
        parts = counts.split([1, 2], 1)
        parts[1].add_(20)
        counts.unbind(2)[1].mul_(2)
        return [x, first * 2, rows, steps, turned, back, parts[0], parts[1], narrow, b * 1, copied, every, half, counts]


def operators():
    return Operators(), {"i": torch.randint(0, 4, (2, 3, 4)), "m": torch.rand(2, 3, 4) > 0.4}


class Corners(torch.nn.Module):
    """Operators on numbers that are extreme, and by arguments that are rare. The first result is attention with rows that see nothing."""

    def __init__(self):
        super().__init__()
        self.q = torch.nn.Parameter(torch.randn(2, 2, 3, 4))

    def forward(self, mask, image, large, x):
        o, q, inf = torch.ops.aten, self.q, float("inf")
        attention = torch.nn.functional.scaled_dot_product_attention
        seen = attention(q, q, q, mask)
        ends = torch.tensor([[inf, 1.0], [-inf, -inf], [2.0, -inf]]) + 0 * x[:3, :2]
        half = (x * 0 + 200).to(torch.float16).repeat(1, 300)
        divisors = torch.tensor([0.1, 3.0, inf, -inf])
        return [
            attention(seen, seen, seen, mask), attention(q, q, q, torch.where(mask, 0.0, -inf)), attention(q, q, q, torch.where(mask, 0.0, torch.finfo(torch.float32).min)), o.logsumexp.default(ends, [1]),
            o.logaddexp.default(ends, ends), o.cumsum.default(large, 1), o.mean.dim(half, [1]), o.linalg_vector_norm.default(half, 2, [1]),
            o.fmod.Tensor(x * 1e7, divisors), o.remainder.Tensor(x * 1e7, divisors), o.remainder.Scalar(x * 0 + 1, 0.1), o.floor_divide.default(x * 0 + 1, 0.1),
            o._to_copy.default(large - 2**24 + 127, dtype=torch.int8), o.to.dtype((x * 1000).int(), torch.int8), o.softplus.default(x, 2.0, 1.0),
            o.upsample_bicubic2d.vec(image, None, False, [1.1, 1.1]), o.argmin.default(torch.tensor([[5, -(2**31), 3, 7]], dtype=torch.int32) + 0 * large.int(), 1),
            o.nan_to_num.default(half * 1000), o.threshold.default(x, 0.2, -1.0),
        ]


def corners():
    mask = torch.tensor([[0, 0, 0], [0, 1, 0], [0, 1, 1]]).bool()
    large = torch.tensor([[16777217, 1, 1, 1], [16777216, 7, 200, 3]])
    return Corners(), {"mask": mask, "image": torch.randn(1, 2, 5, 6), "large": large, "x": torch.randn(3, 4)}


class Dropout(torch.nn.Module):
    """What draws random numbers: its results have no judge but their statistics."""

    def forward(self, x):
        o, (rows, columns) = torch.ops.aten, x.shape
        equal = torch.zeros(1, 1, rows, 1)
        shares = o.scaled_dot_product_attention.default(equal, torch.zeros(1, 1, columns, 1), torch.eye(columns)[None, None], None, 0.5)
        return (o.dropout.default(x, 0.25, True), *o.native_dropout.default(x, 0.1, True), shares[0, 0] * columns)
