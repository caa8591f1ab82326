//! A program that breaks a check, made smaller as long as it breaks it.
//!
//! Results are left out; nodes become inputs that have their values, or one of their operands. What is left is what the mistake
//! takes.

use super::judge::{Check, judge};
use super::program::{Case, inputs};
use kernfusion_ir::evaluate::{Array, Precision, evaluate_all};
use kernfusion_ir::{Graph, Input, InputRole, Op, Tensor, ValueId};
use std::collections::BTreeMap;

/// Seeds of inputs that are tried instead of the values that a program was found with.
const SEEDS: u64 = 10;

/// What is left of a program that breaks a check, and the seed of [`inputs`] with which it still does, if there is one.
pub fn shrink(program: &Case, check: &Check) -> (Case, Option<u64>) {
    let breaks = |program: &Case| judge(program, std::slice::from_ref(check)).is_some();
    let mut least = program.clone();
    loop {
        let smaller = candidates(&least).find(|candidate| breaks(candidate));
        match smaller {
            Some(smaller) => least = smaller,
            None => break,
        }
    }
    let drawn = |seed: u64| Case { inputs: inputs(&least.graph, seed), graph: least.graph.clone() };
    match (1..=SEEDS).find(|&seed| breaks(&drawn(seed))) {
        Some(seed) => (drawn(seed), Some(seed)),
        None => (least, None),
    }
}

/// What stands for a node.
#[derive(Clone, Copy)]
enum Stand {
    /// An input with its value.
    Value,
    /// One of its operands.
    Operand(usize),
}

/// Smaller programs, those that are smallest first.
fn candidates(program: &Case) -> impl Iterator<Item = Case> {
    let graph = &program.graph;
    let outputs = graph.outputs().len();
    let one = (0..outputs).filter(move |_| outputs > 1).map(|kept| (Some(vec![kept]), None));
    let without = move |left: usize| (0..outputs).filter(|&number| number != left).collect();
    let fewer = (0..outputs).filter(move |_| outputs > 2).map(move |left| (Some(without(left)), None));
    let nodes: Vec<_> = graph.ids().filter(|&id| !matches!(graph[id].op, Op::Input(_))).collect();
    let stands = nodes.into_iter().rev().flat_map(|id| {
        let node = &graph[id];
        let same = |slot: &usize| graph[node.operands[*slot]].ty == node.ty;
        let operands = (0..node.operands.len()).filter(same).map(Stand::Operand);
        // A number is as small as an input is.
        let value = (!matches!(node.op, Op::Constant(_))).then_some(Stand::Value);
        operands.chain(value).map(move |stand| (None, Some((id, stand)))).collect::<Vec<_>>()
    });
    one.chain(fewer).chain(stands).filter_map(|(kept, stand)| smaller(program, kept, stand))
}

/// The program with some of its outputs, and something else in a node's place; without what is not needed then.
fn smaller(program: &Case, kept: Option<Vec<usize>>, stand: Option<(ValueId, Stand)>) -> Option<Case> {
    let graph = &program.graph;
    let outputs: Vec<_> = match &kept {
        Some(kept) => kept.iter().map(|&number| &graph.outputs()[number]).collect(),
        None => graph.outputs().iter().collect(),
    };
    let states = outputs.iter().filter(|output| output.updates_state);
    let states = states.filter_map(|output| graph.input(&output.name));
    let needed = needed(graph, outputs.iter().map(|output| output.value).chain(states).collect(), stand);
    let values = match stand {
        Some((_, Stand::Value)) => evaluate_all(graph, arrays(program), Precision::Declared).ok()?,
        _ => vec![],
    };
    // A program that is handed a NaN shows only that.
    if let Some((id, _)) = stand
        && values.get(id.index()).is_some_and(|array| array.values.iter().any(|x| x.is_nan()))
    {
        return None;
    }
    let (mut new, mut inputs, mut places) =
        (Graph::new(graph.name.clone()), BTreeMap::new(), BTreeMap::new());
    for id in graph.ids().filter(|id| needed[id.index()]) {
        let node = &graph[id];
        let place = match stand {
            Some((stood, Stand::Operand(slot))) if stood == id => places[&node.operands[slot]],
            Some((stood, Stand::Value)) if stood == id => {
                let name = format!("v{}", id.index());
                inputs.insert(name.clone(), Tensor::from_f64(&node.ty, &values[id.index()].values));
                let op = Input { name, role: InputRole::Data, ty: node.ty.clone() };
                new.add(op, &[], node.origin.clone()).ok()?
            }
            _ => {
                if let Op::Input(input) = &node.op {
                    inputs.insert(input.name.clone(), program.inputs[&input.name].clone());
                }
                let operands: Vec<ValueId> = node.operands.iter().map(|operand| places[operand]).collect();
                new.add(node.op.clone(), &operands, node.origin.clone()).ok()?
            }
        };
        places.insert(id, place);
    }
    for output in &outputs {
        match output.updates_state {
            true => new.update(output.name.clone(), places[&output.value]),
            false => new.output(output.name.clone(), places[&output.value]),
        }
    }
    let is_smaller = new.len() < graph.len() || kept.is_some() || matches!(stand, Some((_, Stand::Value)));
    (is_smaller && new.verify().is_ok()).then_some(Case { graph: new, inputs })
}

/// For each node whether results depend on it.
fn needed(graph: &Graph, results: Vec<ValueId>, stand: Option<(ValueId, Stand)>) -> Vec<bool> {
    let (mut needed, mut stack) = (vec![false; graph.len()], results);
    while let Some(id) = stack.pop() {
        if std::mem::replace(&mut needed[id.index()], true) {
            continue;
        }
        let operands = &graph[id].operands;
        let of = match stand {
            Some((stood, Stand::Value)) if stood == id => &[][..],
            Some((stood, Stand::Operand(slot))) if stood == id => &operands[slot..=slot],
            _ => &operands[..],
        };
        stack.extend(of);
    }
    needed
}

fn arrays(program: &Case) -> BTreeMap<String, Array> {
    let array = |tensor: &Tensor| Array { ty: tensor.ty(), values: tensor.to_f64() };
    program.inputs.iter().map(|(name, tensor)| (name.clone(), array(tensor))).collect()
}
