//! Programs cut into microbatches of their batch, against the whole program, by the reference evaluator.

use kernfusion_ir::evaluate::{Array, Precision, evaluate_arrays, tabulate};
use kernfusion_ir::samples::{Draws, all, difference, random_graph};
use kernfusion_ir::{
    Binary, Builder, Compare, DType, Graph, InputRole, Iota, Op, Origin, RandomBits, ReduceOp, Tensor,
    TensorType, Unary, ValueId,
};
use kernfusion_passes::microbatch::{Divided, Division, INDEX, MicrobatchError, batch_extent, divide};
use std::collections::BTreeMap;

type Arrays = BTreeMap<String, Array>;

/// Runs body and tail as a back end does: all outputs and new states, and how the body's states ended.
fn run(divided: &Divided, inputs: &Arrays) -> Arrays {
    let mut states: Arrays = BTreeMap::new();
    // Whatever an accumulator holds before must not matter.
    for (id, name, role) in divided.body.inputs() {
        if role == InputRole::State && !inputs.contains_key(name) {
            let ty = divided.body[id].ty.clone();
            states.insert(name.into(), Array { values: vec![f64::NAN; ty.elements()], ty });
        }
    }
    let given = |graph: &Graph, states: &Arrays, part: usize| -> Arrays {
        let input = |(id, name, _): (ValueId, &str, InputRole)| {
            let array = if name == INDEX {
                Array { ty: graph[id].ty.clone(), values: vec![part as f64] }
            } else if let Some(state) = states.get(name) {
                state.clone()
            } else {
                let whole = &inputs[name];
                let ty = graph[id].ty.clone();
                let start = if ty == whole.ty { 0 } else { part * ty.elements() };
                Array { values: whole.values[start..start + ty.elements()].to_vec(), ty }
            };
            (name.to_string(), array)
        };
        graph.inputs().map(input).collect()
    };
    let mut parts = vec![];
    for part in 0..divided.division.microbatches {
        let inputs = given(&divided.body, &states, part);
        let mut results = evaluate_arrays(&divided.body, inputs, Precision::Double).unwrap();
        parts.push(divided.joined.iter().map(|(name, _)| results.remove(name).unwrap()).collect::<Vec<_>>());
        states.extend(results);
    }
    let mut results =
        evaluate_arrays(&divided.tail, given(&divided.tail, &states, 0), Precision::Double).unwrap();
    // States of which each part has updated its rows.
    let is_updated = |name: &&String| inputs.contains_key(*name);
    results.extend(
        states.iter().filter(|(name, _)| is_updated(name)).map(|(n, value)| (n.clone(), value.clone())),
    );
    for (number, (name, axis)) in divided.joined.iter().enumerate() {
        let parts: Vec<_> = parts.iter().map(|part| &part[number]).collect();
        results.insert(name.clone(), join(&parts, *axis));
    }
    results
}

fn join(parts: &[&Array], axis: usize) -> Array {
    let mut ty = parts[0].ty.clone();
    let extent = ty.shape[axis];
    ty.shape[axis] *= parts.len();
    let within = |(along, &i): (usize, &usize)| if along == axis { i % extent } else { i };
    let values = tabulate(&ty, |at| parts[at[axis] / extent].at(at.iter().enumerate().map(within)));
    Array { ty, values }
}

fn arrays(graph: &Graph, inputs: &BTreeMap<String, Tensor>) -> Arrays {
    let array = |(name, tensor): (&String, &Tensor)| {
        let ty = graph[graph.input(name).unwrap()].ty.clone();
        (name.clone(), Array { ty, values: tensor.to_f64() })
    };
    inputs.iter().map(array).collect()
}

/// Compares; says whether the program could be cut.
fn check(name: &str, graph: &Graph, inputs: &Arrays, microbatches: usize) -> bool {
    graph.verify().unwrap();
    let divided = match divide(graph, Division::microbatches(microbatches)) {
        Ok(divided) => divided,
        Err(MicrobatchError::Graph(error)) => panic!("{name}: {error}"),
        Err(MicrobatchError::Refused { .. } | MicrobatchError::Batch { .. }) => return false,
    };
    for half in [&divided.body, &divided.tail] {
        half.verify().unwrap_or_else(|error| panic!("{name} in {microbatches}: {error}\n{half}"));
    }
    let expected = evaluate_arrays(graph, inputs.clone(), Precision::Double).unwrap();
    let found = run(&divided, inputs);
    assert_eq!(expected.keys().collect::<Vec<_>>(), found.keys().collect::<Vec<_>>(), "{name}");
    for (output, expected) in &expected {
        if let Some(found) = difference(&expected.values, &found[output].values, 1e-9) {
            panic!(
                "{name} in {microbatches}, {output}: {found}\n{graph}\nbody {}\ntail {}",
                divided.body, divided.tail
            );
        }
    }
    true
}

/// The program with one number for each output instead: the sum of its elements, each times a weight of its own.
fn weighed(graph: &Graph) -> Graph {
    let mut new = Graph::new("weighed");
    for id in graph.ids() {
        let node = &graph[id];
        new.add(node.op.clone(), &node.operands, node.origin.clone()).unwrap();
    }
    for output in graph.outputs() {
        let mut b = Builder::new(&mut new, Origin::default());
        let ty = b.ty(output.value).with_shape(b.ty(output.value).shape.clone());
        let x = b.cast(output.value, DType::F64).unwrap();
        let count = TensorType::new(DType::F64, [ty.elements()]);
        let number = b.op(Iota { ty: count, axis: 0 }, &[]).unwrap();
        let weight = b.unary(Unary::Sin, number).unwrap();
        let weight = b.reshape(weight, &ty.shape).unwrap();
        let product = b.mul(x, weight).unwrap();
        let sum = b.reduce(ReduceOp::Sum, &(0..ty.rank()).collect::<Vec<_>>(), product).unwrap();
        new.output(format!("sum.{}", output.name), sum);
    }
    new
}

fn check_all(name: &str, graph: &Graph, inputs: &BTreeMap<String, Tensor>) -> usize {
    let extent = batch_extent(graph).unwrap_or(1);
    let inputs = arrays(graph, inputs);
    let microbatches = (2..=extent.min(6)).filter(|microbatches| extent.is_multiple_of(*microbatches));
    let both = |microbatches: usize| {
        let joined = check(name, graph, &inputs, microbatches);
        let summed = check(name, &weighed(graph), &inputs, microbatches);
        usize::from(joined) + usize::from(summed)
    };
    microbatches.map(both).sum()
}

#[test]
fn op_samples_in_microbatches() {
    let (mut checked, mut loops) = (0, 0);
    for sample in all(83) {
        let count = check_all(&sample.name, &sample.graph, &sample.inputs);
        let has_loop = sample.graph.ids().any(|id| matches!(sample.graph[id].op, Op::Scan(_)));
        checked += count;
        loops += if has_loop { count } else { 0 };
    }
    assert!(checked > 250, "only {checked} samples could be cut");
    assert!(loops > 5, "only {loops} samples with loops could be cut");
}

#[test]
fn random_programs_in_microbatches() {
    let mut checked = 0;
    for seed in 0..400 {
        let (graph, inputs) = random_graph(seed, 12);
        checked += check_all(&graph.name, &graph, &inputs);
    }
    assert!(checked > 200, "only {checked} programs could be cut");
}

/// A linear model with dropout, a mask by row number, a norm of its gradient, and an update.
fn step(b: &mut Builder<'_>) -> [(String, ValueId); 2] {
    let data = |b: &mut Builder<'_>, name: &str, shape: &[usize]| {
        b.input(name, InputRole::Data, TensorType::new(DType::F64, shape)).unwrap()
    };
    let word = |b: &mut Builder<'_>, name: &str| {
        b.input(name, InputRole::Data, TensorType::scalar(DType::U32)).unwrap()
    };
    let x = data(b, "x", &[8, 6]);
    let w = b.input("w", InputRole::State, TensorType::new(DType::F64, [6, 3])).unwrap();
    let (seed, number) = (word(b, "seed"), word(b, "step"));
    let y = b.matmul(x, w).unwrap();
    let bits = b.op(RandomBits { node: 5, shape: vec![8, 3], parts: 1 }, &[seed, number]).unwrap();
    let half = b.full(f64::from(1u32 << 31), &TensorType::new(DType::U32, [8, 3])).unwrap();
    let keep = b.compare(Compare::Lt, bits, half).unwrap();
    let row = b.op(Iota { ty: TensorType::new(DType::F64, [8, 3]), axis: 0 }, &[]).unwrap();
    let y = b.select(keep, y, row).unwrap();
    let dw = {
        let xt = b.permute(x, &[1, 0]).unwrap();
        b.matmul(xt, y).unwrap()
    };
    let scaled = b.scale(dw, 0.25).unwrap();
    let square = b.mul(scaled, scaled).unwrap();
    let norm = b.reduce(ReduceOp::Sum, &[0, 1], square).unwrap();
    let small = b.scale(scaled, 0.1).unwrap();
    let wide = b.broadcast(norm, &[6, 3], &[]).unwrap();
    let change = b.div(small, wide).unwrap();
    let new = b.sub(w, change).unwrap();
    let loss = b.reduce(ReduceOp::Sum, &[0, 1], y).unwrap();
    let largest = b.reduce(ReduceOp::Max, &[0, 1], y).unwrap();
    let loss = b.binary(Binary::Add, loss, largest).unwrap();
    [("w".into(), new), ("loss".into(), loss)]
}

#[test]
fn a_step_draws_the_same_mask_and_keeps_one_accumulator_a_sum() {
    let mut graph = Graph::new("step");
    let [(state, new), (name, loss)] = step(&mut Builder::new(&mut graph, Origin::default()));
    graph.update(state, new);
    graph.output(name, loss);
    let mut draws = Draws::new(9);
    let mut draw = |id: ValueId| {
        let ty = graph[id].ty.clone();
        let number = |_| match ty.dtype {
            DType::U32 => f64::from(draws.word()),
            _ => draws.between(-1.0, 1.0),
        };
        Array { values: (0..ty.elements()).map(number).collect(), ty: ty.clone() }
    };
    let inputs: Arrays = graph.inputs().map(|(id, name, _)| (name.to_string(), draw(id))).collect();
    for microbatches in [2, 4, 8] {
        assert!(check("step", &graph, &inputs, microbatches));
        let divided = divide(&graph, Division::microbatches(microbatches)).unwrap();
        let states = divided.body.inputs().filter(|(_, _, role)| *role == InputRole::State);
        // The weights, their scaled gradient (not the gradient too), the sum and the maximum.
        let names: Vec<_> = states.map(|(_, name, _)| name).collect();
        assert_eq!(
            names,
            ["w", "microbatch.sum.0.f64[6,3]", "microbatch.sum.1.f64[]", "microbatch.sum.2.f64[]"]
        );
        assert_eq!(divided.batched, ["x"]);
    }
}

/// Each microbatch reads and writes its rows of a state, as recurrent layers do of what they hand on.
#[test]
fn rows_of_a_state_are_updated_in_place() {
    let mut graph = Graph::new("rows");
    let mut b = Builder::new(&mut graph, Origin::default());
    let ty = TensorType::new(DType::F64, [6, 4]);
    let x = b.input("x", InputRole::Data, ty.clone()).unwrap();
    let h = b.input("h", InputRole::State, ty.clone()).unwrap();
    let next = b.scale(h, 0.5).unwrap();
    let next = b.add(next, x).unwrap();
    let sum = sum(&mut b, next);
    graph.update("h", next);
    graph.output("sum", sum);
    let mut draws = Draws::new(5);
    let mut draw = || Array { values: (0..24).map(|_| draws.between(-1.0, 1.0)).collect(), ty: ty.clone() };
    let inputs: Arrays = [("x".to_string(), draw()), ("h".to_string(), draw())].into();
    for microbatches in [2, 3, 6] {
        assert!(check("rows", &graph, &inputs, microbatches));
        let divided = divide(&graph, Division::microbatches(microbatches)).unwrap();
        assert!(divided.tail.input("h").is_none());
    }
}

/// What is computed from the input of a refused program.
type Build = dyn Fn(&mut Builder<'_>, ValueId) -> ValueId;

fn sum(b: &mut Builder<'_>, x: ValueId) -> ValueId {
    b.reduce(ReduceOp::Sum, &[0, 1], x).unwrap()
}

#[test]
fn what_cannot_be_cut_is_refused_with_its_reason() {
    let refusal = |microbatches: usize, build: &Build| {
        let mut graph = Graph::new("refused");
        let mut b = Builder::new(&mut graph, Origin::new(None, "blocks.3.norm"));
        let x = b.input("x", InputRole::Data, TensorType::new(DType::F32, [6, 4])).unwrap();
        let w = b.input("w", InputRole::State, TensorType::new(DType::F32, [6, 4])).unwrap();
        let y = build(&mut b, x);
        match graph[y].ty == graph[w].ty {
            true => graph.update("w", y),
            false => graph.output("y", y),
        }
        divide(&graph, Division::microbatches(microbatches)).unwrap_err().to_string()
    };
    let cases: [(usize, &str, &Build); 5] = [
        (
            4,
            "cannot compute in 4 microbatches: the batch of 6 is not divisible by that: the nearest that divide it are 3 and 6",
            &sum,
        ),
        (2, "broadcast: a microbatch needs rows of a state that another one updates", &|b, x| {
            let w = b.graph().input("w").unwrap();
            let total = b.broadcast(w, &[6, 6, 4], &[1, 2]).unwrap();
            let total = b.reduce(ReduceOp::Sum, &[1], total).unwrap();
            b.mul(x, total).unwrap()
        }),
        (2, "mul: a microbatch needs a sum over the whole batch", &|b, x| {
            let total = b.reduce(ReduceOp::Sum, &[0], x).unwrap();
            let total = b.broadcast(total, &[6, 4], &[1]).unwrap();
            let y = b.mul(x, total).unwrap();
            sum(b, y)
        }),
        (3, "dot_general: the batch meets itself on another axis", &|b, x| {
            let xt = b.permute(x, &[1, 0]).unwrap();
            let y = b.matmul(x, xt).unwrap();
            sum(b, y)
        }),
        (2, "slice: it takes a part of the batch", &|b, x| {
            let y = b.slice(x, &[1, 0], &[4, 4]).unwrap();
            sum(b, y)
        }),
    ];
    for (microbatches, expected, build) in cases {
        let found = refusal(microbatches, build);
        assert!(found.contains(expected), "{found}");
        assert!(microbatches == 4 || found.contains("blocks.3.norm"), "{found}");
    }
}
