//! Fused kernels compute what the graph computes, and as few kernels as they should.

use kernfusion_ir::evaluate::{Array, Precision, evaluate_arrays};
use kernfusion_ir::kernel::{self, Direction, InstrKind, KernelGraph, interpret};
use kernfusion_ir::random::philox4x32;
use kernfusion_ir::{
    Binary, Builder, Compare, DType, DotGeneral, Gather, Graph, InputRole, Iota, Literal, Op, Origin, Pad,
    ReduceOp, Slice, TensorType, Unary, ValueId, Windows,
};
use kernfusion_passes::fuse::{Fusion, any_kernel, fuse};
use kernfusion_passes::{PIPELINE, grad, run};
use std::collections::{BTreeMap, BTreeSet};

/// Random values for every input; integers stay below 7.
fn inputs(graph: &Graph) -> BTreeMap<String, Array> {
    let value = |name: &str, i: usize, ty: &TensorType| {
        let key = name.bytes().fold(7u32, |hash, byte| hash.wrapping_mul(31).wrapping_add(u32::from(byte)));
        let bits = philox4x32([i as u32, 0, 0, 0], [key, 1])[0];
        if ty.dtype.is_float() {
            f64::from(bits) / f64::from(u32::MAX) * 2.0 - 1.0
        } else {
            f64::from(bits % 7)
        }
    };
    let array = |name: &str, ty: &TensorType| Array {
        ty: ty.clone(),
        values: (0..ty.elements()).map(|i| value(name, i, ty)).collect(),
    };
    graph.inputs().map(|(id, name, _)| (name.to_string(), array(name, &graph[id].ty))).collect()
}

/// Evaluates the graph and interprets its kernels, fused and unfused; returns the fused kernels.
fn check(graph: &Graph) -> KernelGraph {
    let inputs = inputs(graph);
    let expected = evaluate_arrays(graph, inputs.clone(), Precision::Double).expect("evaluates");
    let mut simplified = graph.clone();
    run(&mut simplified, PIPELINE, None, &mut |_, _| {}).expect("passes");
    // Simplification joins numbers, which round to their dtype.
    let after = evaluate_arrays(&simplified, inputs.clone(), Precision::Double).expect("evaluates");
    compare(&after, &expected, 1e-6, || simplified.to_string());
    let full = fuse(&simplified, Fusion::Full, any_kernel).expect("fuses");
    for (kernels, expected) in
        [(&fuse(graph, Fusion::None, any_kernel).expect("unfused"), &expected), (&full, &after)]
    {
        kernel::verify(kernels).unwrap_or_else(|error| panic!("{error}\n{}", show(kernels)));
        let got = interpret(kernels, &inputs, Precision::Double).expect("interprets");
        compare(&got, expected, 1e-9, || show(kernels));
    }
    full
}

fn compare(
    got: &BTreeMap<String, Array>,
    expected: &BTreeMap<String, Array>,
    tolerance: f64,
    shown: impl Fn() -> String,
) {
    for (name, expected) in expected {
        for (i, (x, y)) in got[name].values.iter().zip(&expected.values).enumerate() {
            let close = (x - y).abs() <= tolerance * y.abs().max(1.0);
            assert!(close, "{name}[{i}]: {x}, not {y}\n{}", shown());
        }
    }
}

fn show(kernels: &KernelGraph) -> String {
    let kernel = |kernel: &kernel::Kernel| format!("{} {:?}\n", kernel.name, kernel.domain);
    let refusal = |r: &kernel::RefusedFusion| format!("{} → {}: {}\n", r.producer, r.consumer, r.reason);
    let kernels_shown: String = kernels.kernels.iter().map(kernel).collect();
    kernels_shown + &kernels.refusals.iter().map(refusal).collect::<String>()
}

fn build(name: &str, body: impl FnOnce(&mut Builder<'_>)) -> Graph {
    let mut graph = Graph::new(name);
    body(&mut Builder::new(&mut graph, Origin::default()));
    graph
}

fn float(b: &mut Builder<'_>, name: &str, shape: &[usize]) -> ValueId {
    b.input(name, InputRole::Data, TensorType::new(DType::F32, shape)).expect("input")
}

/// Reduces over the last axis and repeats the result along it.
fn along(b: &mut Builder<'_>, op: ReduceOp, x: ValueId) -> ValueId {
    let shape = b.ty(x).shape.clone();
    let last = shape.len() - 1;
    let reduced = b.reduce(op, &[last], x).expect("reduce");
    b.broadcast(reduced, &shape, &(0..last).collect::<Vec<_>>()).expect("broadcast")
}

fn softmax(b: &mut Builder<'_>, x: ValueId) -> ValueId {
    let max = along(b, ReduceOp::Max, x);
    let shifted = b.sub(x, max).expect("sub");
    let e = b.unary(Unary::Exp, shifted).expect("exp");
    let sum = along(b, ReduceOp::Sum, e);
    b.div(e, sum).expect("div")
}

fn layer_norm(b: &mut Builder<'_>, x: ValueId, gain: ValueId, bias: ValueId) -> ValueId {
    let shape = b.ty(x).shape.clone();
    let (last, d) = (shape.len() - 1, *shape.last().expect("rank"));
    let total = along(b, ReduceOp::Sum, x);
    let mean = b.scale(total, 1.0 / d as f64).expect("mean");
    let centred = b.sub(x, mean).expect("sub");
    let square = b.mul(centred, centred).expect("mul");
    let total = along(b, ReduceOp::Sum, square);
    let variance = b.scale(total, 1.0 / d as f64).expect("variance");
    let eps = b.full_like(1e-5, variance).expect("eps");
    let shifted = b.add(variance, eps).expect("add");
    let deviation = b.unary(Unary::Sqrt, shifted).expect("sqrt");
    let unit = b.div(centred, deviation).expect("div");
    let gain = b.broadcast(gain, &shape, &[last]).expect("gain");
    let bias = b.broadcast(bias, &shape, &[last]).expect("bias");
    let scaled = b.mul(unit, gain).expect("mul");
    b.add(scaled, bias).expect("add")
}

/// x · wᵀ for x [rows.., k] and w [n, k].
fn linear(b: &mut Builder<'_>, x: ValueId, w: ValueId) -> ValueId {
    let last = b.ty(x).rank() - 1;
    let dot = DotGeneral {
        lhs_batch: vec![],
        rhs_batch: vec![],
        lhs_contract: vec![last],
        rhs_contract: vec![1],
        dtype: DType::F32,
    };
    b.op(dot, &[x, w]).expect("dot")
}

#[test]
fn softmax_is_one_kernel() {
    let mut graph = build("softmax", |b| {
        let x = float(b, "x", &[3, 4, 7]);
        softmax(b, x);
    });
    let last = graph.ids().last().expect("nodes");
    graph.output("y", last);
    assert_eq!(check(&graph).kernels.len(), 1);
}

#[test]
fn elementwise_chains_with_views_are_one_map_with_two_outputs() {
    let mut graph = build("map", |b| {
        let (x, y) = (float(b, "x", &[4, 6]), float(b, "y", &[6, 4]));
        let y = b.permute(y, &[1, 0]).expect("permute");
        let sum = b.add(x, y).expect("add");
        let e = b.unary(Unary::Exp, sum).expect("exp");
        let flat = b.reshape(e, &[2, 2, 2, 3]).expect("reshape");
        let part = b.permute(flat, &[0, 2, 1, 3]).expect("permute");
        b.unary(Unary::Tanh, part).expect("tanh");
    });
    let ids: Vec<_> = graph.ids().collect();
    graph.output("sum", ids[3]);
    graph.output("y", *ids.last().expect("nodes"));
    let kernels = check(&graph);
    assert_eq!(kernels.kernels.len(), 1, "{}", show(&kernels));
    assert_eq!(kernels.kernels[0].stores.len(), 2);
}

#[test]
fn layer_norm_and_its_gradients() {
    let mut graph = build("norm", |b| {
        let (x, gain, bias) = (float(b, "x", &[5, 3, 8]), float(b, "gain", &[8]), float(b, "bias", &[8]));
        let weight = float(b, "weight", &[5, 3, 8]);
        let y = layer_norm(b, x, gain, bias);
        let weighted = b.mul(y, weight).expect("mul");
        b.reduce(ReduceOp::Sum, &[0, 1, 2], weighted).expect("sum");
    });
    let loss = graph.ids().last().expect("nodes");
    let wrt = ["x", "gain", "bias"].map(|name| graph.input(name).expect("input"));
    let gradients = grad(&mut graph, loss, &wrt, &BTreeSet::new()).expect("grad");
    graph.output("loss", loss);
    ["dx", "dgain", "dbias"].into_iter().zip(gradients).for_each(|(name, value)| graph.output(name, value));
    let kernels = check(&graph);
    assert!(kernels.kernels.len() <= 3, "{} kernels\n{}", kernels.kernels.len(), show(&kernels));
}

/// Causal attention of two heads with its projections, a gathered embedding, GELU and cross-entropy, and all gradients.
#[test]
fn a_small_transformer_and_its_gradients() {
    let (batch, time, width, heads, vocabulary) = (2, 5, 8, 2, 11);
    let head = width / heads;
    let mut graph = build("transformer", |b| {
        let ids = b.input("ids", InputRole::Data, TensorType::new(DType::I32, [batch, time])).expect("input");
        let targets =
            b.input("targets", InputRole::Data, TensorType::new(DType::I32, [batch, time])).expect("input");
        let table = float(b, "table", &[vocabulary, width]);
        let x = b.op(Gather { axis: 0 }, &[table, ids]).expect("gather");
        let (gain, bias) = (float(b, "gain", &[width]), float(b, "bias", &[width]));
        let h = layer_norm(b, x, gain, bias);
        let qkv = float(b, "qkv", &[3 * width, width]);
        let qkv = linear(b, h, qkv);
        let qkv = b.reshape(qkv, &[batch, time, 3, heads, head]).expect("reshape");
        let part = |b: &mut Builder<'_>, i: usize| {
            let (start, end) = ([0, 0, i, 0, 0], [batch, time, i + 1, heads, head]);
            let slice = b.slice(qkv, &start, &end).expect("slice");
            let flat = b.reshape(slice, &[batch, time, heads, head]).expect("reshape");
            b.permute(flat, &[0, 2, 1, 3]).expect("permute")
        };
        let (q, k, v) = (part(b, 0), part(b, 1), part(b, 2));
        let kt = b.permute(k, &[0, 1, 3, 2]).expect("permute");
        let scores = b.matmul(q, kt).expect("scores");
        let scores = b.scale(scores, 1.0 / (head as f64).sqrt()).expect("scale");
        let shape = [batch, heads, time, time];
        let iota = |b: &mut Builder<'_>, axis| {
            b.op(Iota { ty: TensorType::new(DType::I32, shape), axis }, &[]).expect("iota")
        };
        let (row, column) = (iota(b, 2), iota(b, 3));
        let seen = b.compare(Compare::Le, column, row).expect("compare");
        let hidden = b.full_like(f64::NEG_INFINITY, scores).expect("-inf");
        let masked = b.select(seen, scores, hidden).expect("select");
        let weights = softmax(b, masked);
        let mixed = b.matmul(weights, v).expect("mixed");
        let mixed = b.permute(mixed, &[0, 2, 1, 3]).expect("permute");
        let mixed = b.reshape(mixed, &[batch, time, width]).expect("reshape");
        let projection = float(b, "projection", &[width, width]);
        let projected = linear(b, mixed, projection);
        let x = b.add(x, projected).expect("residual");
        let up = float(b, "up", &[2 * width, width]);
        let up_bias = float(b, "up_bias", &[2 * width]);
        let h = linear(b, x, up);
        let up_bias = b.broadcast(up_bias, &[batch, time, 2 * width], &[2]).expect("bias");
        let h = b.add(h, up_bias).expect("add");
        let scaled = b.scale(h, std::f64::consts::FRAC_1_SQRT_2).expect("scale");
        let erf = b.unary(Unary::Erf, scaled).expect("erf");
        let one = b.full_like(1.0, erf).expect("one");
        let sum = b.add(erf, one).expect("add");
        let half = b.scale(h, 0.5).expect("half");
        let h = b.mul(half, sum).expect("gelu");
        let down = float(b, "down", &[width, 2 * width]);
        let h = linear(b, h, down);
        let x = b.add(x, h).expect("residual");
        let logits = linear(b, x, table);
        let max = along(b, ReduceOp::Max, logits);
        let shifted = b.sub(logits, max).expect("sub");
        let e = b.unary(Unary::Exp, shifted).expect("exp");
        let total = b.reduce(ReduceOp::Sum, &[2], e).expect("sum");
        let log = b.unary(Unary::Log, total).expect("log");
        let logit_shape = TensorType::new(DType::I32, [batch, time, vocabulary]);
        let column = b.op(Iota { ty: logit_shape, axis: 2 }, &[]).expect("iota");
        let target = b.broadcast(targets, &[batch, time, vocabulary], &[0, 1]).expect("target");
        let chosen = b.compare(Compare::Eq, column, target).expect("compare");
        let zero = b.zeros_like(shifted).expect("zero");
        let picked = b.select(chosen, shifted, zero).expect("select");
        let picked = b.reduce(ReduceOp::Sum, &[2], picked).expect("sum");
        let losses = b.binary(Binary::Sub, log, picked).expect("sub");
        let total = b.reduce(ReduceOp::Sum, &[0, 1], losses).expect("sum");
        b.scale(total, 1.0 / (batch * time) as f64).expect("mean");
    });
    let loss = graph.ids().last().expect("nodes");
    let wrt: Vec<_> = graph
        .inputs()
        .filter(|(id, ..)| graph[*id].ty.dtype.is_float())
        .map(|(id, name, _)| (id, format!("d{name}")))
        .collect();
    let values: Vec<_> = wrt.iter().map(|(id, _)| *id).collect();
    let gradients = grad(&mut graph, loss, &values, &BTreeSet::new()).expect("grad");
    graph.output("loss", loss);
    wrt.into_iter().zip(gradients).for_each(|((_, name), value)| graph.output(name, value));
    let kernels = check(&graph);
    let dots = graph.ids().filter(|&id| matches!(graph[id].op, Op::DotGeneral(_))).count();
    println!("{} kernels for {dots} products\n{}", kernels.kernels.len(), show(&kernels));
    assert!(kernels.kernels.len() <= dots + 20, "{} kernels for {dots} products", kernels.kernels.len());
}

/// A convolution by one product whose operand is what a window of 3 × 3 sees of images with rows of `size`.
fn convolution(size: usize, stride: usize) -> Graph {
    let mut graph = build("convolution", |b| {
        let (x, w) = (float(b, "x", &[2, 3, size, size]), float(b, "w", &[4, 27]));
        let windows = Windows { places: vec![3; 2], stride: vec![stride; 2], dilation: vec![1; 2] };
        let seen = b.op(windows, &[x]).unwrap();
        let results = (size - 3) / stride + 1;
        let seen = b.permute(seen, &[1, 4, 5, 0, 2, 3]).unwrap();
        let seen = b.reshape(seen, &[27, 2 * results * results]).unwrap();
        let dot = DotGeneral {
            lhs_batch: vec![],
            rhs_batch: vec![],
            lhs_contract: vec![1],
            rhs_contract: vec![0],
            dtype: DType::F32,
        };
        b.op(dot, &[w, seen]).unwrap();
    });
    let last = graph.ids().last().expect("nodes");
    graph.output("y", last);
    graph
}

#[test]
fn a_product_reads_what_a_window_sees_as_it_lies() {
    assert_eq!(check(&convolution(11, 1)).kernels.len(), 1);
    assert_eq!(check(&convolution(16, 2)).kernels.len(), 1);
    // Runs of five.
    assert_eq!(check(&convolution(11, 2)).kernels.len(), 2);
}

/// Each place of a window is a slice of what is added up, padded to where the window was: it reads beyond its rows, under bounds.
#[test]
fn a_gradient_of_windows_is_one_kernel() {
    let mut graph = build("gradient of windows", |b| {
        let seen = float(b, "seen", &[2, 3, 3, 3, 5, 5]);
        let mut sum = None;
        for (i, j) in (0..3).flat_map(|i| (0..3).map(move |j| (i, j))) {
            let place = Slice { start: vec![0, 0, i, j, 0, 0], end: vec![2, 3, i + 1, j + 1, 5, 5] };
            let place = b.op(place, &[seen]).unwrap();
            let place = b.reshape(place, &[2, 3, 5, 5]).unwrap();
            let (low, high) = (vec![0, 0, i, j], vec![0, 0, 2 - i, 2 - j]);
            let place = b.op(Pad { low, high, value: Literal::new(0.0) }, &[place]).unwrap();
            sum = Some(sum.map_or(place, |sum| b.add(sum, place).unwrap()));
        }
    });
    let last = graph.ids().last().expect("nodes");
    graph.output("y", last);
    let kernels = check(&graph);
    assert_eq!(kernels.kernels.len(), 1, "{}", show(&kernels));
}

/// Attention's product with the values, whose heads are joined, is written as the next product reads it: packing rows that lie in runs takes
/// longer than packing a matrix.
#[test]
fn joined_heads_are_written_in_the_order_that_a_product_reads() {
    let mut graph = build("heads", |b| {
        let (weights, values) = (float(b, "weights", &[2, 3, 10, 10]), float(b, "values", &[2, 3, 10, 8]));
        let w = float(b, "w", &[24, 5]);
        let product = |lhs_contract: usize, batch: &[usize], rhs_contract: usize| DotGeneral {
            lhs_batch: batch.to_vec(),
            rhs_batch: batch.to_vec(),
            lhs_contract: vec![lhs_contract],
            rhs_contract: vec![rhs_contract],
            dtype: DType::F32,
        };
        let heads = b.op(product(3, &[0, 1], 2), &[weights, values]).unwrap();
        let heads = b.permute(heads, &[0, 2, 1, 3]).unwrap();
        let joined = b.reshape(heads, &[20, 24]).unwrap();
        b.op(product(1, &[], 0), &[joined, w]).unwrap();
    });
    let last = graph.ids().last().expect("nodes");
    graph.output("y", last);
    let kernels = check(&graph);
    let [_, projection] = &kernels.kernels[..] else { panic!("{}", show(&kernels)) };
    let rows = &projection.products()[0].a;
    let InstrKind::Load { index, .. } = &rows.region.instr(rows.value).kind else { panic!("{rows:?}") };
    // One row, one column, and what is summed.
    assert_eq!(index.strides, [24, 0, 1], "{}", show(&kernels));
}

/// Twelve sums of twelve rows: what follows them has as many elements as there are rows, but none for each row.
#[test]
fn sums_across_rows_read_rows_as_they_lie() {
    let mut graph = build("sums", |b| {
        let (x, w) = (float(b, "x", &[4, 3, 12]), float(b, "w", &[12]));
        let sums = b.reduce(ReduceOp::Sum, &[0, 1], x).unwrap();
        let squares = b.mul(sums, sums).unwrap();
        b.add(squares, w).unwrap();
    });
    let last = graph.ids().last().expect("nodes");
    graph.output("y", last);
    let kernels = check(&graph);
    let rows = |kernel: &kernel::Kernel| {
        kernel
            .region
            .instrs
            .iter()
            .any(|instr| matches!(instr.kind, InstrKind::Reduce(_, Direction::Rows, _)))
    };
    assert!(kernels.kernels.iter().any(rows), "{}", show(&kernels));
}
