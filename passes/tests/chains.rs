//! Attention with any score function, and a classifier with its loss, are chains: no tensor over the scores is in memory,
//! forward or backward, and masked columns are known not to matter.

use kernfusion_ir::evaluate::{Array, Precision, evaluate_arrays};
use kernfusion_ir::kernel::{self, Band, BufferRole, Form, KernelGraph, interpret};
use kernfusion_ir::random::philox4x32;
use kernfusion_ir::{
    Binary, Builder, Compare, DType, Graph, InputRole, Iota, Op, Origin, RandomBits, ReduceOp, TensorType,
    Unary, ValueId,
};
use kernfusion_passes::fuse::{Fusion, any_kernel, fuse};
use kernfusion_passes::{PIPELINE, grad, run};
use std::collections::{BTreeMap, BTreeSet};

const HEADS: [usize; 2] = [2, 3];
const TIME: usize = 24;
const WIDTH: usize = 5;

type Score = fn(&mut Builder<'_>, ValueId) -> ValueId;

/// softmax(score(q·kᵀ))·v with a loss, and the gradients of q, k and v.
fn attention(score: Score, time: usize) -> Graph {
    weighted_attention(score, plain, time)
}

/// weight(softmax(score(q·kᵀ)))·v with a loss, and the gradients of q, k and v.
fn weighted_attention(score: Score, weight_of: Score, time: usize) -> Graph {
    let mut graph = Graph::new("attention");
    let mut builder = Builder::new(&mut graph, Origin::default());
    let b = &mut builder;
    let shape = [HEADS[0], HEADS[1], time, WIDTH];
    let mut input =
        |name: &str| b.input(name, InputRole::Data, TensorType::new(DType::F32, shape)).expect("input");
    let [q, k, v, weight] = ["q", "k", "v", "weight"].map(&mut input);
    let loss = loss_of(b, [q, k, v], weight, score, weight_of);
    finish(&mut graph, loss, &["q", "k", "v"]);
    graph
}

/// A loss of weight_of(softmax(score(q·kᵀ)))·v.
fn loss_of(
    b: &mut Builder<'_>,
    [q, k, v]: [ValueId; 3],
    weight: ValueId,
    score: Score,
    weight_of: Score,
) -> ValueId {
    let transposed = b.permute(k, &[0, 1, 3, 2]).expect("permute");
    let scores = b.matmul(q, transposed).expect("scores");
    let scores = score(b, scores);
    let weights = softmax(b, scores);
    let weights = weight_of(b, weights);
    let mixed = b.matmul(weights, v).expect("mixed");
    // The gradient of the result depends on the result, so that backward is not one kernel with forward.
    let square = b.mul(mixed, mixed).expect("mul");
    let weighted = b.mul(square, weight).expect("mul");
    b.reduce(ReduceOp::Sum, &[0, 1, 2, 3], weighted).expect("sum")
}

fn finish(graph: &mut Graph, loss: ValueId, names: &[&str]) {
    let wrt: Vec<_> = names.iter().map(|name| graph.input(name).expect("input")).collect();
    // The largest score only keeps exponentials small; its gradient is zero.
    let is_maximum =
        |&id: &ValueId| matches!(&graph[id].op, Op::Reduce(reduce) if reduce.op == ReduceOp::Max);
    let stopped: BTreeSet<_> = graph.ids().filter(is_maximum).collect();
    let gradients = grad(graph, loss, &wrt, &stopped).expect("grad");
    graph.output("loss", loss);
    names.iter().zip(gradients).for_each(|(name, value)| graph.output(format!("d{name}"), value));
}

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

/// column − row at each score.
fn distance(b: &mut Builder<'_>, scores: ValueId) -> ValueId {
    let shape = b.ty(scores).shape.clone();
    let rank = shape.len();
    let mut iota =
        |axis| b.op(Iota { ty: TensorType::new(DType::I32, shape.clone()), axis }, &[]).expect("iota");
    let (row, column) = (iota(rank - 2), iota(rank - 1));
    b.binary(Binary::Sub, column, row).expect("sub")
}

/// Keeps scores whose distance compares so with `bound`.
fn where_distance(b: &mut Builder<'_>, compare: Compare, bound: f64, scores: ValueId) -> ValueId {
    let distance = distance(b, scores);
    let bound = b.full_like(bound, distance).expect("bound");
    let seen = b.compare(compare, distance, bound).expect("compare");
    let hidden = b.full_like(f64::NEG_INFINITY, scores).expect("-inf");
    b.select(seen, scores, hidden).expect("select")
}

fn causal(b: &mut Builder<'_>, scores: ValueId) -> ValueId {
    where_distance(b, Compare::Le, 0.0, scores)
}

fn window(b: &mut Builder<'_>, scores: ValueId) -> ValueId {
    let causal = causal(b, scores);
    where_distance(b, Compare::Gt, -6.0, causal)
}

fn soft_cap(b: &mut Builder<'_>, scores: ValueId) -> ValueId {
    let scaled = b.scale(scores, 0.1).expect("scale");
    let bent = b.unary(Unary::Tanh, scaled).expect("tanh");
    let capped = b.scale(bent, 10.0).expect("scale");
    causal(b, capped)
}

/// A bias that falls with the distance (Press, Smith, Lewis, 2022).
fn alibi(b: &mut Builder<'_>, scores: ValueId) -> ValueId {
    let distance = distance(b, scores);
    let distance = b.cast(distance, DType::F32).expect("cast");
    let bias = b.scale(distance, 0.25).expect("scale");
    let biased = b.add(scores, bias).expect("add");
    causal(b, biased)
}

fn scaled(b: &mut Builder<'_>, scores: ValueId) -> ValueId {
    let scaled = b.scale(scores, 0.3).expect("scale");
    causal(b, scaled)
}

fn plain(_: &mut Builder<'_>, scores: ValueId) -> ValueId {
    scores
}

/// A random value for each input of the graph.
fn inputs_of(graph: &Graph) -> BTreeMap<String, Array> {
    let value = |name: &str, i: usize| {
        let key = name.bytes().fold(7u32, |hash, byte| hash.wrapping_mul(31).wrapping_add(u32::from(byte)));
        f64::from(philox4x32([i as u32, 0, 0, 0], [key, 1])[0]) / f64::from(u32::MAX) * 2.0 - 1.0
    };
    let array = |name: &str, ty: &TensorType| {
        let draw = |i| match ty.dtype.is_float() {
            true => value(name, i),
            false => (value(name, i) * 9.0).abs().floor(),
        };
        let values = (0..ty.elements()).map(draw);
        Array { ty: ty.clone(), values: values.collect() }
    };
    graph.inputs().map(|(id, name, _)| (name.to_string(), array(name, &graph[id].ty))).collect()
}

/// Evaluates the graph, interprets its kernels, and compares; in the interpreter a band that leaves out what matters
/// gives other numbers.
fn check(graph: &Graph) -> KernelGraph {
    let inputs = inputs_of(graph);
    let mut simplified = graph.clone();
    run(&mut simplified, PIPELINE, None, &mut |_, _| {}).expect("passes");
    // Against the simplified graph, since simplification may round constants, which has tests of its own.
    let expected = evaluate_arrays(&simplified, inputs.clone(), Precision::Double).expect("evaluates");
    let kernels = fuse(&simplified, Fusion::Full, any_kernel).expect("fuses");
    kernel::verify(&kernels).unwrap_or_else(|error| panic!("{error}\n{kernels}"));
    let got = interpret(&kernels, &inputs, Precision::Double).expect("interprets");
    for (name, expected) in &expected {
        for (i, (x, y)) in got[name].values.iter().zip(&expected.values).enumerate() {
            assert!((x - y).abs() <= 1e-9 * y.abs().max(1.0), "{name}[{i}]: {x}, not {y}\n{kernels}");
        }
    }
    kernels
}

/// The chains, `expected` in number, after checking that no temporary has as many elements as the scores.
fn chains(kernels: &KernelGraph, expected: usize, scores: usize) -> Vec<Option<Band>> {
    let wide = kernels.buffers.iter().find(|b| b.role == BufferRole::Temporary && b.ty.elements() >= scores);
    assert!(wide.is_none(), "{} is in memory\n{kernels}", wide.expect("found").name);
    let band = |form: &Form| match form {
        Form::Contraction(contraction) if !contraction.consumers.is_empty() => Some(contraction.band),
        _ => None,
    };
    let chains: Vec<_> = kernels.kernels.iter().filter_map(|kernel| band(&kernel.form)).collect();
    assert_eq!(chains.len(), expected, "{kernels}");
    chains
}

#[test]
fn attention_with_any_score_function_is_one_kernel_forward_and_one_backward() {
    let upper = |upper| Some(Band { lower: None, upper: Some(upper) });
    let cases: [(Score, Option<Band>); 5] = [
        (plain, None),
        (causal, upper(0)),
        (window, Some(Band { lower: Some(-5), upper: Some(0) })),
        (soft_cap, upper(0)),
        (alibi, upper(0)),
    ];
    // Small tensors are not computed again, so that there must be enough rows.
    for (score, band) in cases {
        let time = 112;
        let kernels = check(&attention(score, time));
        let scores = HEADS[0] * HEADS[1] * time * time;
        assert_eq!(chains(&kernels, 2, scores), [band, band]);
    }
}

/// Grouped heads: keys and values are broadcast to the heads of their group, and their gradients are sums over those.
#[test]
fn heads_may_share_keys_and_values() {
    let (time, heads) = (112, 4);
    for groups in [1, 2] {
        let mut graph = Graph::new("grouped attention");
        let mut builder = Builder::new(&mut graph, Origin::default());
        let b = &mut builder;
        let mut input = |name: &str, heads| {
            let ty = TensorType::new(DType::F32, [HEADS[0], heads, time, WIDTH]);
            b.input(name, InputRole::Data, ty).expect("input")
        };
        let [q, weight] = ["q", "weight"].map(|name| input(name, heads));
        let [k, v] = ["k", "v"].map(|name| input(name, groups));
        let mut repeated = |x| {
            let shape = [HEADS[0], groups, heads / groups, time, WIDTH];
            let wide = b.broadcast(x, &shape, &[0, 1, 3, 4]).expect("broadcast");
            b.reshape(wide, &[HEADS[0], heads, time, WIDTH]).expect("reshape")
        };
        let [k, v] = [k, v].map(&mut repeated);
        let transposed = b.permute(k, &[0, 1, 3, 2]).expect("permute");
        let scores = b.matmul(q, transposed).expect("scores");
        let scores = causal(b, scores);
        let weights = softmax(b, scores);
        let mixed = b.matmul(weights, v).expect("mixed");
        let square = b.mul(mixed, mixed).expect("mul");
        let weighted = b.mul(square, weight).expect("mul");
        let loss = b.reduce(ReduceOp::Sum, &[0, 1, 2, 3], weighted).expect("sum");
        finish(&mut graph, loss, &["q", "k", "v"]);
        let kernels = check(&graph);
        let band = Some(Band { lower: None, upper: Some(0) });
        assert_eq!(chains(&kernels, 2, HEADS[0] * heads * time * time), [band, band]);
    }
}

/// Dropout on the weights draws the same numbers in both kernels.
#[test]
fn attention_with_dropout() {
    fn dropped(b: &mut Builder<'_>, weights: ValueId) -> ValueId {
        let scalar = |b: &mut Builder<'_>, name: &str| {
            b.input(name, InputRole::Data, TensorType::new(DType::U32, [])).expect("input")
        };
        let (seed, step) = (scalar(b, "seed"), scalar(b, "step"));
        let shape = b.ty(weights).shape.clone();
        let bits = b.op(RandomBits { node: 3, shape, parts: 1 }, &[seed, step]).expect("bits");
        let half = b.full_like(f64::from(1u32 << 31), bits).expect("half");
        let kept = b.compare(Compare::Lt, bits, half).expect("compare");
        let zero = b.zeros_like(weights).expect("zero");
        let doubled = b.scale(weights, 2.0).expect("scale");
        b.select(kept, doubled, zero).expect("select")
    }
    let time = 112;
    let graph = weighted_attention(causal, dropped, time);
    let kernels = check(&graph);
    let band = Some(Band { lower: None, upper: Some(0) });
    assert_eq!(chains(&kernels, 2, HEADS[0] * HEADS[1] * time * time), [band, band]);
}

/// A small score domain stays correct, whatever the planner chooses.
#[test]
fn small_attention_is_right() {
    for score in [plain, causal, window, soft_cap, alibi] {
        check(&attention(score, TIME));
    }
}

#[test]
fn the_scores_are_computed_again_for_backward() {
    let graph = attention(causal, 112);
    let products = graph.ids().filter(|&id| matches!(graph[id].op, Op::DotGeneral(_))).count();
    let kernels = check(&graph);
    let in_kernels = |kernel: &kernel::Kernel| kernel.products().len() + kernel.consumers().len();
    assert_eq!(kernels.kernels.iter().map(in_kernels).sum::<usize>(), products + 1);
}

/// Queries, keys and values are parts of one tensor, and scores are scaled. So are their gradients: backward puts each of them into its
/// place, multiplied by the scale.
#[test]
fn gradients_of_parts_of_a_tensor_are_written_in_place() {
    let (time, [batch, heads]) = (112, HEADS);
    let mut graph = Graph::new("attention over one tensor");
    let mut builder = Builder::new(&mut graph, Origin::default());
    let b = &mut builder;
    let shape = [batch, time, 3 * heads, WIDTH];
    let all = b.input("all", InputRole::Data, TensorType::new(DType::F32, shape)).expect("input");
    let shape = [batch, heads, time, WIDTH];
    let weight = b.input("weight", InputRole::Data, TensorType::new(DType::F32, shape)).expect("input");
    let mut part = |at: usize| {
        let (start, end) = ([0, 0, at * heads, 0], [batch, time, (at + 1) * heads, WIDTH]);
        let part = b.slice(all, &start, &end).expect("slice");
        b.permute(part, &[0, 2, 1, 3]).expect("permute")
    };
    let [q, k, v] = [0, 1, 2].map(&mut part);
    let loss = loss_of(b, [q, k, v], weight, scaled, plain);
    finish(&mut graph, loss, &["all"]);
    let kernels = check(&graph);
    let (_, gradient, _) = kernels.outputs.iter().find(|(name, ..)| name == "dall").expect("an output");
    let consumers = kernels.kernels.iter().flat_map(|kernel| kernel.consumers());
    assert_eq!(consumers.filter(|consumer| consumer.buffer == *gradient).count(), 3, "{kernels}");
}

/// Queries, keys and values are a product with a bias. Their gradients are read by products and by the sum that is the bias's
/// gradient; backward puts them into place for all of these.
#[test]
fn gradients_that_products_and_sums_read_are_written_in_place() {
    let (time, [batch, heads]) = (112, HEADS);
    let mut graph = Graph::new("attention with a bias");
    let mut builder = Builder::new(&mut graph, Origin::default());
    let b = &mut builder;
    let wide = 3 * heads * WIDTH;
    let mut input = |name: &str, shape: &[usize]| {
        b.input(name, InputRole::Data, TensorType::new(DType::F32, shape)).expect("input")
    };
    let (x, w) = (input("x", &[batch * time, 8]), input("w", &[8, wide]));
    let (bias, weight) = (input("bias", &[wide]), input("weight", &[batch, heads, time, WIDTH]));
    let all = b.matmul(x, w).expect("matmul");
    let bias = b.broadcast(bias, &[batch * time, wide], &[1]).expect("broadcast");
    let all = b.add(all, bias).expect("add");
    let all = b.reshape(all, &[batch, time, 3 * heads, WIDTH]).expect("reshape");
    let mut part = |at: usize| {
        let (start, end) = ([0, 0, at * heads, 0], [batch, time, (at + 1) * heads, WIDTH]);
        let part = b.slice(all, &start, &end).expect("slice");
        b.permute(part, &[0, 2, 1, 3]).expect("permute")
    };
    let [q, k, v] = [0, 1, 2].map(&mut part);
    let loss = loss_of(b, [q, k, v], weight, scaled, plain);
    finish(&mut graph, loss, &["x", "w", "bias"]);
    let kernels = check(&graph);
    let mut written: BTreeMap<_, usize> = BTreeMap::new();
    for consumer in kernels.kernels.iter().flat_map(|kernel| kernel.consumers()) {
        *written.entry(consumer.buffer).or_default() += 1;
    }
    let together: Vec<_> = written.into_iter().filter(|(_, parts)| *parts == 3).collect();
    let [(gradient, _)] = together[..] else { panic!("no tensor of three results\n{kernels}") };
    assert_eq!(kernels.buffers[gradient.0 as usize].ty.elements(), batch * time * wide, "{kernels}");
}

/// A result of `f64` that is rounded to `f32` and back is not stored as it is.
#[test]
fn results_are_rounded_where_the_program_rounds_them() {
    let mut graph = Graph::new("rounded attention");
    let mut builder = Builder::new(&mut graph, Origin::default());
    let b = &mut builder;
    let shape = [HEADS[0], HEADS[1], TIME, WIDTH];
    let mut input =
        |name: &str| b.input(name, InputRole::Data, TensorType::new(DType::F64, shape)).expect("input");
    let [q, k, v] = ["q", "k", "v"].map(&mut input);
    let transposed = b.permute(k, &[0, 1, 3, 2]).expect("permute");
    let scores = b.matmul(q, transposed).expect("scores");
    let weights = softmax(b, scores);
    let mixed = b.matmul(weights, v).expect("mixed");
    let rounded = b.cast(mixed, DType::F32).expect("cast");
    let back = b.cast(rounded, DType::F64).expect("cast");
    graph.output("result", back);
    let kernels = fuse(&graph, Fusion::Full, any_kernel).expect("fuses");
    assert!(kernels.kernels.iter().any(|kernel| !kernel.consumers().is_empty()), "{kernels}");
    let got = interpret(&kernels, &inputs_of(&graph), Precision::Declared).expect("interprets");
    assert!(got["result"].values.iter().all(|&x| x == f64::from(x as f32)), "{kernels}");
}

/// A result of `f32` that is wanted in `bf16` alone is rounded where the chain stores it, after it was multiplied by a number.
#[test]
fn results_are_stored_in_the_type_that_is_wanted() {
    let mut graph = Graph::new("attention in bf16");
    let mut builder = Builder::new(&mut graph, Origin::default());
    let b = &mut builder;
    let shape = [HEADS[0], HEADS[1], TIME, WIDTH];
    let mut input =
        |name: &str| b.input(name, InputRole::Data, TensorType::new(DType::F32, shape)).expect("input");
    let [q, k, v] = ["q", "k", "v"].map(&mut input);
    let transposed = b.permute(k, &[0, 1, 3, 2]).expect("permute");
    let scores = b.matmul(q, transposed).expect("scores");
    let weights = softmax(b, scores);
    let mixed = b.matmul(weights, v).expect("mixed");
    let scaled = b.scale(mixed, 0.3).expect("scale");
    let rounded = b.cast(scaled, DType::BF16).expect("cast");
    graph.output("result", rounded);
    let kernels = fuse(&graph, Fusion::Full, any_kernel).expect("fuses");
    let mut consumers = kernels.kernels.iter().flat_map(|kernel| kernel.consumers());
    assert_eq!(consumers.next().map(|consumer| consumer.dtype), Some(DType::BF16), "{kernels}");
    let inputs = inputs_of(&graph);
    let got = interpret(&kernels, &inputs, Precision::Declared).expect("interprets");
    let expected = evaluate_arrays(&graph, inputs, Precision::Declared).expect("evaluates");
    for (x, y) in got["result"].values.iter().zip(&expected["result"].values) {
        assert_eq!(*x, DType::BF16.round(*x));
        assert!((x - y).abs() <= 0.01 * y.abs().max(0.01), "{x}, not {y}");
    }
}
