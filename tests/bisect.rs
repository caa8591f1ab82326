//! Mistakes that are put into one step of compilation are found there, by name and line.

use kernfusion::bisect::{Bisection, Culprit, Pipeline, TOLERANCE, bisect};
use kernfusion::compile::{Precision, Target};
use kernfusion::prelude::*;
use kernfusion_ir::kernel::{InstrKind, Plan};
use kernfusion_ir::samples::Draws;
use kernfusion_ir::{Graph, IrError, Literal, Op, Unary};
use kernfusion_passes::Pass;
use kernfusion_passes::simplify::RuleSet;
use std::collections::BTreeMap;

/// A network of two layers with its gradients.
fn network() -> (Graph, BTreeMap<String, HostTensor>) {
    let trace = Trace::new();
    let x = trace.input("x", [6, 8], DType::F32);
    let (w, v) = (trace.input("w", [8, 12], DType::F32), trace.input("v", [12, 4], DType::F32));
    let hidden = (&x.matmul(&w) * 0.75).tanh();
    let y = hidden.matmul(&v);
    let loss = (&y * &y).mean_all();
    let gradients = loss.grad(&[&w, &v]);
    let outputs = [("loss", &loss), ("dw", &gradients[0]), ("dv", &gradients[1])];
    let graph = trace.finish(&outputs).unwrap().graph;
    let mut draws = Draws::new(5);
    let inputs = graph.inputs().map(|(id, name, _)| {
        let values: Vec<_> = (0..graph[id].ty.elements()).map(|_| draws.between(-1.0, 1.0)).collect();
        (name.to_string(), HostTensor::from_f64(&graph[id].ty, &values))
    });
    let inputs = inputs.collect();
    (graph, inputs)
}

fn cpu() -> Target {
    Target::cpu().threads(1)
}

fn search(pipeline: &Pipeline<'_>) -> Bisection {
    let (graph, inputs) = network();
    bisect(&graph, &inputs, pipeline, TOLERANCE).unwrap()
}

fn stages(found: &Bisection) -> Vec<&str> {
    found.stages.iter().map(|stage| stage.name).collect()
}

#[test]
fn nothing_is_found_where_nothing_is_wrong() {
    for precision in [Precision::F32, Precision::Bf16] {
        let pipeline = Pipeline::of(&cpu().precision(precision));
        let found = search(&pipeline);
        assert_eq!((found.finding.as_ref(), found.not_finite.len()), (None, 0), "{found:?}");
        let names: Vec<_> = pipeline.passes.iter().map(|pass| pass.name).chain(["fusion", "code"]).collect();
        assert_eq!(stages(&found), names);
        // It did compare: code in f32 is not f64.
        assert!(found.stages.last().unwrap().deviation > 1e-9, "{found:?}");
    }
}

/// The first `tanh` becomes a sine.
fn wrong_pass(graph: &mut Graph) -> Result<Vec<String>, IrError> {
    let mut new = Graph::new(graph.name.clone());
    let first = graph.ids().find(|&id| graph[id].op.name() == "tanh");
    for id in graph.ids() {
        let (node, wrong) = (&graph[id], first == Some(id));
        let op = if wrong { Op::from(Unary::Sin) } else { node.op.clone() };
        match &op {
            Op::Input(_) => new.add_unchecked(node.clone()),
            _ => new.add(op, &node.operands, node.origin.clone())?,
        };
    }
    graph.outputs().iter().for_each(|output| new.output(output.name.clone(), output.value));
    *graph = new;
    Ok(vec![])
}

#[test]
fn a_wrong_pass_is_found() {
    let mut pipeline = Pipeline::of(&cpu());
    pipeline.passes.insert(3, Pass::new("gentle", "makes tanh a sine", wrong_pass));
    let found = search(&pipeline);
    let finding = found.finding.as_ref().unwrap();
    assert_eq!(finding.culprit, Culprit::Pass { name: "gentle", number: 4 });
    assert_eq!(stages(&found).last(), Some(&"gentle"));
    let place = finding.place.as_ref().unwrap();
    assert_eq!((place.ops.as_slice(), place.was), (["sin"].as_slice(), Some("tanh")));
    let message = finding.to_string();
    assert!(
        message.contains("pass 4, gentle, changes the result ") && message.contains("tests/bisect.rs:"),
        "{message}"
    );
}

#[test]
fn a_wrong_rule_is_found_among_all_of_them() {
    let mut pipeline = Pipeline::of(&cpu());
    // Cheaper, so extraction takes it.
    pipeline.rules = Box::new(|| RuleSet::all().with("tanh-is-flat", "(tanh ?x)", "?x"));
    let found = search(&pipeline);
    let finding = found.finding.as_ref().unwrap();
    let Culprit::Rule { name, formula } = &finding.culprit else { panic!("{finding}") };
    assert_eq!((*name, formula.as_str()), ("tanh-is-flat", "(tanh ?x) = ?x"));
    assert_eq!(stages(&found).last(), Some(&"simplify"));
    assert!(finding.to_string().contains("tests/bisect.rs:"), "{finding}");
}

/// The plan with another number in one of its kernels, and the kernel's name.
fn changed(plan: &Plan) -> (Plan, String) {
    let mut plan = plan.clone();
    for kernel in &mut plan.graph.kernels {
        for instr in &mut kernel.region.instrs {
            if let InstrKind::Constant(number) = &mut instr.kind
                && number.value() != 0.0
            {
                *number = Literal::new(instr.dtype.round(1.25 * number.value()));
                let name = kernel.name.clone();
                return (plan, name);
            }
        }
    }
    panic!("no kernel has a number");
}

#[test]
fn a_wrong_fusion_is_found() {
    let right = Pipeline::of(&cpu());
    let name = std::cell::RefCell::new(String::new());
    let mut pipeline = Pipeline::of(&cpu());
    pipeline.fuse = Box::new(|graph| {
        let (plan, kernel) = changed(&(right.fuse)(graph)?);
        *name.borrow_mut() = kernel;
        Ok(plan)
    });
    let found = search(&pipeline);
    let finding = found.finding.as_ref().unwrap();
    assert_eq!(finding.culprit, Culprit::Fusion { kernel: name.borrow().clone() });
    assert!(finding.to_string().contains("tests/bisect.rs:"), "{finding}");
    assert_eq!(stages(&found).last(), Some(&"fusion"));
}

#[test]
fn wrong_code_is_found() {
    let right = Pipeline::of(&cpu());
    let name = std::cell::RefCell::new(String::new());
    let mut pipeline = Pipeline::of(&cpu());
    // The interpreter sees the right plan, and code is made of another one.
    pipeline.generate = Box::new(|plan, states| {
        let (plan, kernel) = changed(plan);
        *name.borrow_mut() = kernel;
        (right.generate)(&plan, states)
    });
    let found = search(&pipeline);
    let finding = found.finding.as_ref().unwrap();
    let Culprit::Code { kernel, rounding } = &finding.culprit else { panic!("{finding}") };
    assert_eq!(*kernel, *name.borrow());
    assert!(*rounding < 1e-5 && finding.worst.size > 1e-2, "{finding}");
    assert!(finding.to_string().contains("tests/bisect.rs:"), "{finding}");
    assert_eq!(stages(&found).last(), Some(&"code"));
}
