//! The iterations of a loop, for arrays of which something more is known than their elements: how far they may be off, or how they change.

use crate::evaluate::Array;
use crate::{Graph, Result, Scan};
use std::collections::BTreeMap;

/// An array with one more number for each element.
pub(crate) trait Annotated: Clone {
    /// An array with these numbers.
    fn new(array: Array, notes: Vec<f64>) -> Self;
    /// The array and its numbers.
    fn parts(&self) -> (&Array, &[f64]);
}

/// All results of a loop, whose body `run` evaluates: from its inputs by name the values of all nodes.
pub(crate) fn iterations<T: Annotated>(
    scan: &Scan,
    operands: &[&T],
    run: impl Fn(&Graph, BTreeMap<String, T>) -> Result<Vec<T>>,
) -> Result<Vec<T>> {
    let graph = scan.body.graph();
    let names: Vec<_> = graph.inputs().map(|(_, name, _)| name.to_string()).collect();
    let mut carried: Vec<_> = operands[..scan.carried].iter().map(|it| (*it).clone()).collect();
    let all = |value| {
        let ty: &crate::TensorType = &graph[value].ty;
        let all = Array::zeros(&ty.with_shape([&[scan.length], &ty.shape[..]].concat()));
        let notes = vec![0.0; all.values.len()];
        (all, notes)
    };
    let mut each: Vec<_> = graph.outputs()[scan.carried..].iter().map(|output| all(output.value)).collect();
    for place in (0..scan.length).map(|iteration| scan.place(iteration)) {
        let slice = |it: &&T| {
            let (array, notes) = it.parts();
            let ty = array.ty.with_shape(&array.ty.shape[1..]);
            let part = place * ty.elements()..(place + 1) * ty.elements();
            T::new(Array { ty, values: array.values[part.clone()].to_vec() }, notes[part].to_vec())
        };
        let slices = operands[scan.carried..][..scan.sliced].iter().map(slice);
        let constants = operands[scan.carried + scan.sliced..].iter().map(|it| (*it).clone());
        let given = names.iter().cloned().zip(carried.into_iter().chain(slices).chain(constants)).collect();
        let values = run(graph, given)?;
        let outputs = graph.outputs().iter().map(|output| values[output.value.index()].clone());
        let mut outputs: Vec<_> = outputs.collect();
        for (all, part) in each.iter_mut().zip(outputs.split_off(scan.carried)) {
            let (array, notes) = part.parts();
            let from = place * notes.len();
            all.0.values[from..][..notes.len()].copy_from_slice(&array.values);
            all.1[from..][..notes.len()].copy_from_slice(notes);
        }
        carried = outputs;
    }
    Ok(carried.into_iter().chain(each.into_iter().map(|(array, notes)| T::new(array, notes))).collect())
}
