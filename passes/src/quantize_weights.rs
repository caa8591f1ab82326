//! Matrices that a program only reads are kept as `bf16`, `f16` or `i8`; those of `i8` with a scale for each row.
//!
//! ```text
//! %0 = state "w" : f32[5,4]   →   %0 = state "w" : i8[5,4]
//! %1 = use %0                     %1 = state "w.scale" : f32[5]
//!                                 %2 = cast %0 : f32[5,4]
//!                                 %3 = broadcast %1 {axes = [0]} : f32[5,4]
//!                                 %4 = mul %2, %3
//!                                 %5 = use %4
//! ```
//!
//! The program then takes other states, so the caller that runs this pass must make them: the row of a matrix is its scale times
//! whole numbers from −127 to 127. It stands before all others: widening and scaling a state is part of whatever reads it
//! (fusion's `is_widened`), and simplification takes the scales behind products, whose operands are then bytes.
//!
//! Invariant: with states that stand for the same numbers, the program computes what it did; what it changes, and what has
//! fewer than two axes, keeps its type.

use crate::Rebuild;
use kernfusion_ir::{DType, Graph, Input, InputRole, IrError, Op, Result, TensorType};
use std::collections::BTreeSet;

/// The name of the state with the scales of the rows of a matrix that is kept as `i8`.
pub fn scale_of(name: &str) -> String {
    format!("{name}.scale")
}

/// Keeps the `f32` matrices that a program only reads as `dtype`, if `chosen` takes their names; the names of those it
/// changed. Axes before a matrix's last two are a batch's.
///
/// # Errors
/// If a scale's name is another input's already.
pub fn quantize_weights(
    graph: &mut Graph,
    dtype: DType,
    chosen: impl Fn(&str) -> bool,
) -> Result<Vec<String>> {
    if dtype == DType::F32 {
        return Ok(vec![]);
    }
    let updates = graph.outputs().iter().filter(|output| output.updates_state);
    let changed: BTreeSet<_> = updates.map(|output| output.name.as_str()).collect();
    let mut names = vec![];
    let mut rebuild = Rebuild::new(graph);
    for id in graph.ids() {
        let node = &graph[id];
        let name = match &node.op {
            Op::Input(Input { name, role: InputRole::State, ty })
                if ty.dtype == DType::F32
                    && ty.rank() > 1
                    && !changed.contains(name.as_str())
                    && chosen(name) =>
            {
                name
            }
            _ => {
                rebuild.copy(id)?;
                continue;
            }
        };
        let shape = &node.ty.shape;
        let kept = Input {
            name: name.clone(),
            role: InputRole::State,
            ty: TensorType::new(dtype, shape.as_slice()),
        };
        let kept = rebuild.new.add(kept, &[], node.origin.clone())?;
        let mut b = rebuild.builder(id);
        let mut wide = b.cast(kept, DType::F32)?;
        if dtype == DType::I8 {
            let rows: Vec<usize> = (0..shape.len() - 1).collect();
            let scales = TensorType::new(DType::F32, &shape[..rows.len()]);
            if graph.input(&scale_of(name)).is_some() {
                return Err(IrError::Input {
                    name: scale_of(name),
                    reason: format!("the scales of \"{name}\" need this name"),
                });
            }
            let scales = b.input(&scale_of(name), InputRole::State, scales)?;
            let scales = b.broadcast(scales, shape, &rows)?;
            wide = b.mul(wide, scales)?;
        }
        rebuild.replace(id, wide);
        names.push(name.clone());
    }
    *graph = rebuild.finish();
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_scales_need_is_taken() {
        let text = "graph \"g\" {\n%0 = state {name = \"w\", dtype = f32, shape = [5, 4]}\n\
                    %1 = input {name = \"w.scale\", dtype = f32, shape = []}\noutput \"w\" = %0\n}";
        let graph = Graph::parse(text).unwrap();
        let error = quantize_weights(&mut graph.clone(), DType::I8, |_| true).unwrap_err();
        assert_eq!(error.to_string(), "input \"w.scale\": the scales of \"w\" need this name");
        // Of other types they have none, and what is not chosen stays.
        assert_eq!(quantize_weights(&mut graph.clone(), DType::F16, |_| true), Ok(vec!["w".to_string()]));
        let mut same = graph.clone();
        assert_eq!(quantize_weights(&mut same, DType::I8, |_| false), Ok(vec![]));
        assert_eq!(same, graph);
    }
}
