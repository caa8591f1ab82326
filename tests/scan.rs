//! Loops (`Trace::scan`) against the same iterations written one after another: values and gradients by the reference
//! evaluator in `f64`, then compiled and in eager mode.

use kernfusion::HostTensor;
use kernfusion::compile::{Mode, Precision, Target};
use kernfusion::trace::{Iteration, ScanOrder, Tensor, Trace};
use kernfusion_codegen::States;
use kernfusion_ir::evaluate::{Precision as Rounding, evaluate};
use kernfusion_ir::random::element_bits;
use kernfusion_ir::samples::difference;
use kernfusion_ir::{DType, Graph, InputRole};
use std::collections::BTreeMap;

/// An iteration: from what is carried and the slices to the next values and results.
type Body<'a> = &'a dyn Fn(&[Tensor], &[Tensor]) -> Iteration;

/// The loop as one op.
fn looped(
    trace: &Trace,
    iterations: ScanOrder,
    length: usize,
    first: &[&Tensor],
    slices: &[&Tensor],
    body: Body<'_>,
) -> Iteration {
    trace.scan(iterations, length, first, slices, body)
}

/// The loop as its iterations.
fn unrolled(
    trace: &Trace,
    iterations: ScanOrder,
    length: usize,
    first: &[&Tensor],
    slices: &[&Tensor],
    body: Body<'_>,
) -> Iteration {
    let mut carried: Vec<_> = first.iter().map(|&x| x.clone()).collect();
    let mut each = vec![vec![]; length];
    for iteration in 0..length {
        let place = if iterations == ScanOrder::Backward { length - 1 - iteration } else { iteration };
        let slices: Vec<_> = slices.iter().map(|x| x.index(0, place)).collect();
        let next = body(&carried, &slices);
        carried = next.carried;
        each[place] = next.each;
    }
    let all =
        |number: usize| trace.stack(&each.iter().map(|iteration| &iteration[number]).collect::<Vec<_>>(), 0);
    Iteration { carried, each: (0..each[0].len()).map(all).collect() }
}

type Run = fn(&Trace, ScanOrder, usize, &[&Tensor], &[&Tensor], Body<'_>) -> Iteration;

fn random(graph: &Graph) -> BTreeMap<String, HostTensor> {
    let inputs = graph.inputs().filter(|(.., role)| *role == InputRole::Data);
    let tensor = |(id, name, _): (kernfusion_ir::ValueId, &str, InputRole)| {
        let ty = &graph[id].ty;
        let node = name.bytes().map(u32::from).sum();
        let value = |at| element_bits(9, node, 0, at) as f32 / 2f32.powi(31) - 1.0;
        let count = ty.elements() as u64;
        let tensor = match ty.dtype {
            DType::U32 => HostTensor::new(ty.shape.clone(), vec![7u32; count as usize]),
            _ => HostTensor::new(ty.shape.clone(), (0..count).map(value).collect::<Vec<f32>>()),
        };
        (name.to_string(), tensor)
    };
    inputs.map(tensor).collect()
}

/// Outputs and their gradients by the inputs, whose shapes are given, from a program that has loops by `run`.
fn traced(
    shapes: &[&[usize]],
    run: Run,
    build: impl Fn(&Trace, Run, &[Tensor]) -> Vec<Tensor>,
    twice: bool,
) -> kernfusion::trace::Program {
    let trace = Trace::training();
    let inputs: Vec<_> = shapes
        .iter()
        .enumerate()
        .map(|(number, shape)| trace.input(&format!("x{number}"), shape.to_vec(), DType::F32))
        .collect();
    let results = build(&trace, run, &inputs);
    let weigh = |tensors: &[Tensor]| {
        let terms = tensors.iter().map(|y| (y * y * 0.3 + y).sum_all());
        terms.reduce(|a, b| a + b).expect("an output")
    };
    let wrt: Vec<_> = inputs.iter().collect();
    let mut gradients = weigh(&results).grad(&wrt);
    if twice {
        gradients.extend(weigh(&gradients).grad(&wrt));
    }
    let outputs: Vec<_> = results.into_iter().chain(gradients).collect();
    let names: Vec<_> = (0..outputs.len()).map(|number| format!("y{number}")).collect();
    let named: Vec<_> = names.iter().map(String::as_str).zip(&outputs).collect();
    trace.finish(&named).expect("a correct program")
}

fn check(shapes: &[&[usize]], build: impl Fn(&Trace, Run, &[Tensor]) -> Vec<Tensor>, twice: bool) {
    let [as_loop, as_turns] = [looped as Run, unrolled as Run].map(|run| traced(shapes, run, &build, twice));
    let text = as_loop.graph.to_string();
    assert_eq!(Graph::parse(&text).expect("the text parses").to_string(), text);
    let inputs = random(&as_loop.graph);
    let expected = evaluate(&as_turns.graph, &inputs, Rounding::Double).unwrap();
    let judge = |what: &str, name: &str, found: &[f64], tolerance: f64| {
        if let Some(found) = difference(&expected[name].values, found, tolerance) {
            panic!("{name}, {what}: {found}");
        }
    };
    for (name, array) in &evaluate(&as_loop.graph, &inputs, Rounding::Double).unwrap() {
        judge("evaluated", name, &array.values, 1e-9);
    }
    let given: Vec<_> = inputs.iter().map(|(name, tensor)| (name.as_str(), tensor)).collect();
    for mode in [Mode::Eager, Mode::Compiled] {
        let mut results = vec![];
        for threads in [1, 2] {
            let target = Target::cpu().threads(threads).mode(mode);
            let mut compiled = as_loop.compile(&States::new(), &target).unwrap();
            // Twice, since memory is used again.
            compiled.run(&given).unwrap();
            let outputs = compiled.run(&given).unwrap();
            outputs.iter().for_each(|(name, tensor)| judge(&mode.to_string(), name, &tensor.to_f64(), 1e-4));
            results.push(outputs.iter().map(|(_, tensor)| tensor.data().clone()).collect::<Vec<_>>());
        }
        assert!(results[0] == results[1], "{mode}: the threads show");
    }
    let target = Target::cpu().threads(2).precision(Precision::Bf16);
    let outputs = as_loop.compile(&States::new(), &target).unwrap().run(&given).unwrap();
    for (name, tensor) in outputs.iter() {
        let norm = expected[name].values.iter().map(|x| x * x).sum::<f64>().sqrt();
        let off =
            expected[name].values.iter().zip(tensor.to_f64()).map(|(x, y)| (x - y) * (x - y)).sum::<f64>();
        assert!(off.sqrt() <= 0.05 * norm.max(0.1), "{name} in bf16 is off by {} of {norm}", off.sqrt());
    }
}

#[test]
fn a_recurrent_network_forward_and_backward() {
    // h ← tanh(h·Wᵀ + x)
    let build = |trace: &Trace, run: Run, x: &[Tensor]| {
        let iteration = |carried: &[Tensor], slices: &[Tensor]| {
            let h = ((carried[0].linear(&x[2]) + &slices[0]) * 0.3).tanh();
            Iteration { carried: vec![h.clone()], each: vec![h] }
        };
        let forward = run(trace, ScanOrder::Forward, 7, &[&x[1]], &[&x[0]], &iteration);
        let backward = run(trace, ScanOrder::Backward, 7, &[&x[1]], &[&forward.each[0]], &iteration);
        vec![forward.carried[0].clone(), backward.each[0].clone(), backward.carried[0].clone()]
    };
    check(&[&[7, 5, 24], &[5, 24], &[24, 24]], build, false);
}

/// A factor that all turns share stays packed while the loop runs, not longer.
#[test]
fn a_weight_may_change_between_runs() {
    const TURNS: usize = 4;
    let program = |run: Run| {
        let trace = Trace::new();
        let w = trace.state("w", [96, 96], DType::F32);
        let (x, h) = (trace.input("x", [TURNS, 12, 96], DType::F32), trace.input("h", [12, 96], DType::F32));
        let iteration = |carried: &[Tensor], slices: &[Tensor]| {
            let h = ((carried[0].linear(&w) + &slices[0]) * 0.3).tanh();
            Iteration { carried: vec![h.clone()], each: vec![h] }
        };
        let all = run(&trace, ScanOrder::Forward, TURNS, &[&h], &[&x], &iteration);
        trace.finish(&[("y", &all.each[0])]).expect("a correct program")
    };
    let [as_loop, as_turns] = [looped as Run, unrolled as Run].map(program);
    let mut values = random(&as_turns.graph);
    let weights = |scale: f32| {
        let value = |at| scale * (element_bits(3, 1, 0, at) as f32 / 2f32.powi(31) - 1.0);
        HostTensor::new([96, 96], (0..96 * 96).map(value).collect::<Vec<_>>())
    };
    let states = States::new();
    states.set("w", &weights(0.0)).unwrap();
    let mut compiled = as_loop.compile(&states, &Target::cpu().threads(2)).unwrap();
    for scale in [0.1, 0.2, -0.1] {
        states.set("w", &weights(scale)).unwrap();
        values.insert("w".into(), weights(scale));
        let expected = evaluate(&as_turns.graph, &values, Rounding::Double).unwrap();
        let given = ["x", "h"].map(|name| (name, &values[name]));
        let outputs = compiled.run(&given).unwrap();
        let found = outputs.iter().next().expect("an output").1.to_f64();
        if let Some(found) = difference(&expected["y"].values, &found, 1e-5) {
            panic!("scale {scale}: {found}");
        }
    }
}

#[test]
fn gradients_of_gradients() {
    type Next = fn(&Tensor, &Tensor, &[Tensor]) -> Tensor;
    let products: Next = |h, x, _| h * x;
    let constants: Next = |h, x, w| (h + x * x) * 0.5 + h * &w[1];
    let weights: Next = |h, x, w| (h.linear(&w[2]) + x).sigmoid();
    for next in [products, constants, weights] {
        let build = |trace: &Trace, run: Run, x: &[Tensor]| {
            let iteration = |carried: &[Tensor], slices: &[Tensor]| {
                let h = next(&carried[0], &slices[0], x);
                Iteration { carried: vec![h.clone()], each: vec![&h * &h] }
            };
            let last = run(trace, ScanOrder::Forward, 3, &[&x[1]], &[&x[0]], &iteration);
            vec![last.carried[0].clone(), last.each[0].clone()]
        };
        check(&[&[3, 2, 4], &[2, 4], &[4, 4]], build, true);
    }
}

#[test]
fn values_that_pass_through_change_places_and_are_dropped() {
    let build = |trace: &Trace, run: Run, x: &[Tensor]| {
        let iteration = |carried: &[Tensor], slices: &[Tensor]| {
            let [a, b, c] = [&carried[0], &carried[1], &carried[2]];
            let next = vec![b.clone(), a.clone(), (c + &slices[0]) * &x[4]];
            Iteration {
                carried: next,
                each: vec![a.clone(), c * 2.0, slices[0].clone(), x[4].clone(), c * 2.0],
            }
        };
        let result = run(trace, ScanOrder::Forward, 5, &[&x[0], &x[1], &x[2]], &[&x[3]], &iteration);
        [result.carried, result.each].concat()
    };
    check(&[&[6], &[6], &[6], &[5, 6], &[6]], build, false);
}

#[test]
fn one_turn_and_loops_without_slices_or_results() {
    for length in [1, 2] {
        let build = |trace: &Trace, run: Run, x: &[Tensor]| {
            let iteration = |carried: &[Tensor], _: &[Tensor]| Iteration {
                carried: vec![carried[0].linear(&x[1])],
                each: vec![],
            };
            run(trace, ScanOrder::Forward, length, &[&x[0]], &[], &iteration).carried
        };
        check(&[&[3, 8], &[8, 8]], build, false);
    }
}

#[test]
fn a_loop_in_a_loop() {
    let build = |trace: &Trace, run: Run, x: &[Tensor]| {
        let outer = |carried: &[Tensor], slices: &[Tensor]| {
            let inner = |h: &[Tensor], s: &[Tensor]| {
                let next = (&h[0] * &x[2] + &s[0] + &carried[0] * 0.1).tanh();
                Iteration { carried: vec![next.clone()], each: vec![next] }
            };
            let iterations = run(trace, ScanOrder::Backward, 4, &[&carried[0]], &[&slices[0]], &inner);
            Iteration { carried: iterations.carried.clone(), each: vec![iterations.each[0].sum(&[0])] }
        };
        let result = run(trace, ScanOrder::Forward, 3, &[&x[1]], &[&x[0]], &outer);
        [result.carried, result.each].concat()
    };
    check(&[&[3, 4, 10], &[10], &[10]], build, false);
}

#[test]
fn every_turn_draws_anew() {
    let trace = Trace::training();
    let x = trace.zeros([1]);
    let iterations = trace.scan(ScanOrder::Forward, 100, &[&x], &[], |carried, _| {
        let drawn = trace.random_uniform([1]);
        Iteration { carried: carried.to_vec(), each: vec![drawn] }
    });
    let program = trace.finish(&[("drawn", &iterations.each[0])]).unwrap();
    let scalar = |value: u32| HostTensor::new([], vec![value]);
    let (seed, step) = (scalar(1), scalar(2));
    let mut compiled = program.compile(&States::new(), &Target::cpu().threads(1)).unwrap();
    let drawn = compiled.run(&[("seed", &seed), ("step", &step)]).unwrap().get("drawn").unwrap().to_f64();
    let mean = drawn.iter().sum::<f64>() / 100.0;
    assert!((mean - 0.5).abs() < 0.1, "{mean}");
    assert!((1..100).all(|at| drawn[at] != drawn[at - 1]));
}

#[test]
fn mistakes_are_reported_at_the_call() {
    let message = |build: &dyn Fn(&Trace, &Tensor) -> Tensor| {
        let trace = Trace::new();
        let x = trace.input("x", [4, 3], DType::F32);
        let y = build(&trace, &x);
        trace.finish(&[("y", &y)]).expect_err("a mistake").to_string()
    };
    let changed = message(&|trace, x| {
        let iteration = |c: &[Tensor], s: &[Tensor]| Iteration {
            carried: vec![c[0].sum(&[0])],
            each: vec![s[0].clone()],
        };
        trace.scan(ScanOrder::Forward, 4, &[&trace.zeros([3])], &[x], iteration).each[0].clone()
    });
    assert!(changed.contains("carries carried.0: f32[3], which becomes f32[]"), "{changed}");
    assert!(changed.contains("tests/scan.rs"), "{changed}");
    let slices = message(&|trace, x| {
        let iteration = |c: &[Tensor], _: &[Tensor]| Iteration { carried: c.to_vec(), each: vec![] };
        trace.scan(ScanOrder::Forward, 5, &[x], &[x], iteration).carried[0].clone()
    });
    assert!(slices.contains("f32[4,3] has not 5 slices"), "{slices}");
    // Results have their places and shapes whatever was wrong.
    let scalar = message(&|trace, x| {
        let iteration = |_: &[Tensor], s: &[Tensor]| Iteration { carried: vec![], each: vec![s[0].clone()] };
        trace.scan(ScanOrder::Forward, 5, &[], &[&x.sum_all()], iteration).each[0].clone()
    });
    assert!(scalar.contains("f32[] has not 5 slices"), "{scalar}");
    let uncounted = message(&|trace, x| {
        let iteration = |_: &[Tensor], s: &[Tensor]| Iteration { carried: vec![], each: vec![s[0].clone()] };
        trace.scan(ScanOrder::Forward, 4, &[x], &[x], iteration).each[0].clone()
    });
    assert!(uncounted.contains("carries 1 values, but an iteration gives 0"), "{uncounted}");
    let escaped = message(&|trace, x| {
        let inside = std::cell::RefCell::new(None);
        trace.scan(ScanOrder::Forward, 4, &[], &[x], |_, s| {
            *inside.borrow_mut() = Some(s[0].clone());
            Iteration::default()
        });
        let escaped = inside.borrow().clone().expect("traced");
        escaped + 1.0
    });
    assert!(escaped.contains("a value of a loop's body is used outside of it"), "{escaped}");
    let counted = message(&|trace, x| {
        trace.scan(ScanOrder::Forward, 4, &[x], &[], |_, _| Iteration::default()).carried[0].clone()
    });
    assert!(counted.contains("carries 1 values, but an iteration gives 0"), "{counted}");
}
