//! The reference evaluator and the VJPs on every sample, and the text and JSON forms of all of them.

use kernfusion_ir::evaluate::{Array, Precision, evaluate, evaluate_arrays};
use kernfusion_ir::samples::{Draws, Sample, all, difference, random_graph};
use kernfusion_ir::{
    Binary, Builder, Compare, DType, Graph, InputRole, Op, Origin, ReduceOp, TensorType, Unary, ValueId, Vjp,
};
use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use std::collections::{BTreeMap, BTreeSet};

const SEED: u64 = 20_250_101;

fn arrays(sample: &Sample) -> BTreeMap<String, Array> {
    let array = |(name, tensor): (&String, &kernfusion_ir::Tensor)| {
        (name.clone(), Array { ty: tensor.ty(), values: tensor.to_f64() })
    };
    sample.inputs.iter().map(array).collect()
}

fn name(op: &Op) -> String {
    match op {
        Op::Reduce(reduce) => format!("reduce.{}", reduce.op.name()),
        op => op.name().into(),
    }
}

/// Every op has samples, on every dtype that its type rule accepts in the place of that of a sample.
#[test]
fn the_table_is_complete() {
    let samples = all(SEED);
    let names: BTreeSet<_> = samples.iter().map(|sample| &sample.name).collect();
    assert_eq!(names.len(), samples.len(), "names are unique");
    let (mut present, mut accepted) = (BTreeSet::new(), BTreeSet::new());
    for graph in samples.iter().map(|sample| &sample.graph) {
        for node in graph.ids().map(|id| &graph[id]) {
            let types: Vec<_> = node.operands.iter().map(|operand| graph[*operand].ty.clone()).collect();
            present.insert((name(&node.op), node.ty.dtype));
            present.extend(types.iter().map(|ty| (name(&node.op), ty.dtype)));
            let first = types.first().map(|ty| ty.dtype);
            let main = if types.iter().any(|ty| ty.dtype == DType::F32) { Some(DType::F32) } else { first };
            accepted.extend(DType::ALL.into_iter().filter_map(|dtype| {
                let other = |ty: &TensorType| {
                    if Some(ty.dtype) == main { ty.with_dtype(dtype) } else { ty.clone() }
                };
                let types: Vec<_> = types.iter().map(other).collect();
                let ok = main.is_some() && node.op.infer(&types.iter().collect::<Vec<_>>()).is_ok();
                ok.then(|| (name(&node.op), dtype))
            }));
        }
    }
    assert_eq!(accepted.difference(&present).collect::<Vec<_>>(), Vec::<&(String, DType)>::new());
    let ops: BTreeSet<_> = present.into_iter().map(|(op, _)| op).collect();
    let missing: Vec<_> = every_op().into_iter().filter(|op| !ops.contains(op)).collect();
    assert!(missing.is_empty(), "no samples of {missing:?}");
    let gradients = samples.iter().filter(|sample| sample.gradient).count();
    println!("{} samples, {gradients} with gradients", samples.len());
}

fn every_op() -> Vec<String> {
    let others = "input state constant iota random_bits select cast reshape permute broadcast slice pad concat \
        dot_general gather scatter_add dynamic_slice dynamic_update";
    let mut ops: Vec<_> = others.split_whitespace().map(String::from).collect();
    ops.extend(Unary::ALL.map(|op| name(&op.into())));
    ops.extend(Binary::ALL.map(|op| name(&op.into())));
    ops.extend(Compare::ALL.map(|op| name(&op.into())));
    ops.extend(ReduceOp::ALL.map(|op| format!("reduce.{}", op.name())));
    ops
}

#[test]
fn evaluation_has_the_inferred_shape_and_values_of_the_dtype() {
    for sample in all(SEED) {
        assert_eq!(sample.graph.verify(), Ok(()), "{}", sample.name);
        for (output, array) in sample.expected() {
            let value = sample.graph.output_value(&output).unwrap();
            assert_eq!(array.ty, sample.graph[value].ty, "{}", sample.name);
            assert_eq!(array.values.len(), array.ty.elements(), "{}", sample.name);
            let held = |x: &f64| array.ty.dtype.round(*x) == *x || x.is_nan();
            assert!(array.values.iter().all(held), "{}: {:?}", sample.name, array.values);
        }
    }
}

/// Rounding in the declared dtype stays within the tolerance that back ends have, so the tolerance is not too small.
#[test]
fn tolerances_cover_the_rounding_of_the_dtype() {
    for sample in all(SEED).into_iter().filter(|sample| sample.gradient) {
        let exact = evaluate(&sample.graph, &sample.inputs, Precision::Double).unwrap();
        for (output, array) in sample.expected() {
            let off = difference(&exact[&output].values, &array.values, sample.tolerance.max(1e-6));
            assert_eq!(off, None, "{}", sample.name);
        }
    }
}

#[test]
fn forms_read_back_every_sample() {
    for sample in all(SEED) {
        assert_eq!(Graph::parse(&sample.graph.to_string()).as_ref(), Ok(&sample.graph), "{}", sample.name);
        let json = sample.graph.to_json();
        assert_eq!(Graph::from_json(&json).unwrap(), sample.graph, "{}", sample.name);
    }
}

/// Every number of the JSON of every sample, in turn, becomes one at which arithmetic overflows. What reads back must
/// be verified without a panic.
#[test]
fn numbers_of_any_size_are_refused_or_verified() {
    let mut read = 0;
    for sample in all(SEED) {
        let json: serde_json::Value = serde_json::from_str(&sample.graph.to_json()).unwrap();
        for number in 0..numbers(&mut json.clone()).len() {
            for value in [0, u64::MAX, 1 << 63, u64::from(u32::MAX)] {
                let mut changed = json.clone();
                *numbers(&mut changed)[number] = value.into();
                if let Ok(graph) = Graph::from_json(&changed.to_string()) {
                    let _ = graph.verify();
                    read += 1;
                }
            }
        }
    }
    assert!(read > 10_000, "{read}");
}

fn numbers(json: &mut serde_json::Value) -> Vec<&mut serde_json::Value> {
    match json {
        serde_json::Value::Number(_) => vec![json],
        serde_json::Value::Array(items) => items.iter_mut().flat_map(numbers).collect(),
        serde_json::Value::Object(fields) => fields.values_mut().flat_map(numbers).collect(),
        _ => vec![],
    }
}

/// The sum over all outputs of cotangent · output, with its gradients by the float inputs as further outputs.
fn with_gradients(graph: &Graph) -> (Graph, Vec<String>) {
    let mut graph = graph.clone();
    let outputs: Vec<_> = graph.outputs().iter().map(|output| (output.name.clone(), output.value)).collect();
    let mut cotangents = vec![None; graph.len()];
    let last = graph.len();
    for (name, value) in outputs {
        let ty = graph[value].ty.clone();
        let mut b = Builder::new(&mut graph, Origin::default());
        let dy = b.input(&format!("dy.{name}"), InputRole::Data, ty).unwrap();
        cotangents[value.index()] = Some(dy);
    }
    for index in (0..last).rev() {
        let (id, Some(dy)) = (ValueId::from_index(index), cotangents[index]) else { continue };
        let node = graph[id].clone();
        let mut b = Builder::new(&mut graph, node.origin);
        let flows = node.op.vjp(&mut Vjp { b: &mut b, operands: &node.operands, result: id, dy }).unwrap();
        if !matches!(node.op, Op::Input(_)) {
            assert_eq!(flows.len(), node.operands.len(), "{}", node.op.name());
        }
        for (operand, flow) in node.operands.into_iter().zip(flows) {
            let Some(flow) = flow else { continue };
            assert_eq!(b.ty(flow), b.ty(operand), "the cotangent of an operand of {}", node.op.name());
            let slot = &mut cotangents[operand.index()];
            *slot = Some(slot.map_or(Ok(flow), |sum| b.add(sum, flow)).unwrap());
        }
    }
    let inputs: Vec<_> = graph.inputs().take_while(|(id, ..)| id.index() < last).collect();
    let float = inputs.into_iter().filter(|(id, ..)| graph[*id].ty.dtype.is_float());
    let gradients: Vec<_> = float.map(|(id, name, _)| (name.to_string(), cotangents[id.index()])).collect();
    for (name, gradient) in &gradients {
        if let Some(gradient) = gradient {
            graph.output(format!("gradient.{name}"), *gradient);
        }
    }
    (graph, gradients.into_iter().map(|(name, _)| name).collect())
}

fn direction(ty: &TensorType, draws: &mut Draws) -> Array {
    Array { ty: ty.clone(), values: (0..ty.elements()).map(|_| draws.between(-1.0, 1.0)).collect() }
}

fn inner(x: &[f64], y: &[f64]) -> f64 {
    x.iter().zip(y).map(|(x, y)| x * y).sum()
}

/// Along random directions v: ⟨gradient, v⟩ = (f(x + h·v) − f(x − h·v)) / 2h + O(h²).
#[test]
fn gradients_are_central_differences() {
    let (mut draws, mut checked, mut worst) = (Draws::new(7), 0, 0.0f64);
    for sample in all(SEED).into_iter().filter(|sample| sample.gradient) {
        let (graph, wrt) = with_gradients(&sample.graph);
        let mut at = arrays(&sample);
        for output in sample.graph.outputs() {
            let dy = direction(&sample.graph[output.value].ty, &mut draws);
            at.insert(format!("dy.{}", output.name), dy);
        }
        let results = evaluate_arrays(&graph, at.clone(), Precision::Double).unwrap();
        let value = |at: &BTreeMap<String, Array>| {
            let results = evaluate_arrays(&sample.graph, at.clone(), Precision::Double).unwrap();
            let dots = results.iter().map(|(name, y)| inner(&y.values, &at[&format!("dy.{name}")].values));
            dots.sum::<f64>()
        };
        for input in wrt {
            for _ in 0..3 {
                let v = direction(&at[&input].ty, &mut draws);
                let zeros = vec![0.0; v.values.len()];
                let gradient = results.get(&format!("gradient.{input}")).map_or(&zeros, |g| &g.values);
                let step = 1e-5;
                let moved = |sign: f64| {
                    let mut moved = at.clone();
                    let values = &mut moved.get_mut(&input).unwrap().values;
                    values.iter_mut().zip(&v.values).for_each(|(x, v)| *x += sign * step * v);
                    value(&moved)
                };
                let numeric = (moved(1.0) - moved(-1.0)) / (2.0 * step);
                let symbolic = inner(gradient, &v.values);
                let size = gradient.iter().zip(&v.values).map(|(g, v)| (g * v).abs()).sum::<f64>().max(1.0);
                let off = (numeric - symbolic).abs() / size;
                assert!(off < 1e-6, "{} by {input}: {symbolic}, numerically {numeric}", sample.name);
                worst = worst.max(off);
            }
            checked += 1;
        }
    }
    println!("{checked} gradients, off by {worst:e} at most");
    assert!(checked > 100);
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, rng_seed: RngSeed::Fixed(1), ..ProptestConfig::default() })]

    /// Random programs are sound, are tame, and survive both forms.
    #[test]
    fn random_graphs_are_sound(seed in any::<u64>(), size in 10usize..60) {
        let (graph, inputs) = random_graph(seed, size);
        prop_assert_eq!(graph.verify(), Ok(()));
        prop_assert!(graph.len() >= size, "{} nodes of {}", graph.len(), size);
        prop_assert!(Graph::parse(&graph.to_string()).as_ref() == Ok(&graph));
        prop_assert!(Graph::from_json(&graph.to_json()).unwrap() == graph);
        prop_assert!(random_graph(seed, size).0 == graph);
        let exact = evaluate(&graph, &inputs, Precision::Double).unwrap();
        for (name, rounded) in evaluate(&graph, &inputs, Precision::Declared).unwrap() {
            prop_assert!(rounded.values.iter().all(|x| x.abs() <= 1e4), "{} is too large", name);
            prop_assert_eq!(difference(&exact[&name].values, &rounded.values, 1e-4), None, "{}", name);
        }
    }
}

/// All ops but sources turn up in random programs.
#[test]
fn random_graphs_have_every_kind_of_op() {
    let mut seen = BTreeSet::new();
    for seed in 0..100 {
        let graph = random_graph(seed, 40).0;
        seen.extend(graph.ids().map(|id| name(&graph[id].op)));
    }
    let expected = [
        "exp",
        "tanh",
        "add",
        "mul",
        "lt",
        "select",
        "cast",
        "reduce.sum",
        "reduce.max",
        "reshape",
        "permute",
        "broadcast",
        "slice",
        "pad",
        "concat",
        "dot_general",
        "iota",
        "gather",
        "scatter_add",
        "dynamic_slice",
        "dynamic_update",
        "not",
        "and",
        "state",
    ];
    let missing: Vec<_> = expected.into_iter().filter(|op| !seen.contains(*op)).collect();
    assert!(missing.is_empty(), "{missing:?}");
}
