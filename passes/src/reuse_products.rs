//! Sums over the entries of a product, weighed by what another product multiplies as well, taken from that product instead.
//!
//! ```text
//! O = P · V        Σ_c P[r, c] · (X · Vᵀ)[r, c]  =  Σ_k X[r, k] · O[r, k]
//! ```
//!
//! Both are Σ_c Σ_k P[r, c] · X[r, k] · V[c, k]. The right one goes over k terms of a row instead of c, and needs no entry of a product. The
//! gradient of softmax in attention has such a sum, for P the weights, V the values and X the gradient of O (Dao, Fu, Ermon, Rudra, Ré, 2022,
//! arXiv:2205.14135, section 3.1). P, X and V may have been rounded for either product, and O is what it was rounded to. Where one sweep over a row's entries finds the sum beside other things, as on a CPU, nothing is gained.

use crate::Rebuild;
use kernfusion_ir::{Binary, DotGeneral, Graph, Op, ReduceOp, Result, ValueId};

pub(crate) fn reuse_products(graph: &mut Graph) -> Result<()> {
    let mut rebuild = Rebuild::new(graph);
    for id in graph.ids() {
        let Some(Reuse { x, order, product, first_term }) = reuse(graph, id) else {
            rebuild.copy(id)?;
            continue;
        };
        let views = views(graph, product, id);
        let last = views.last().copied().unwrap_or(product);
        let [x, mut seen] = [x, last].map(|value| rebuild.place(value));
        let mut b = rebuild.builder(id);
        for view in views.into_iter().rev() {
            seen = match &graph[view].op {
                Op::Permute(permute) => {
                    let place = |axis| permute.axes.iter().position(|other| *other == axis);
                    let inverse: Option<Vec<_>> = (0..permute.axes.len()).map(place).collect();
                    b.permute(seen, &inverse.expect("a permutation"))?
                }
                _ => b.reshape(seen, &graph[graph[view].operands[0]].ty.shape)?,
            };
        }
        let x = b.permute(x, &order)?;
        let dtype = graph[id].ty.dtype;
        let [x, seen] = [b.cast(x, dtype)?, b.cast(seen, dtype)?];
        let terms: Vec<usize> = (first_term..order.len()).collect();
        let weighed = b.mul(x, seen)?;
        let sum = b.reduce(ReduceOp::Sum, &terms, weighed)?;
        rebuild.replace(id, sum);
    }
    *graph = rebuild.finish();
    Ok(())
}

/// A value before it was converted from one type of floats to another.
fn unrounded(graph: &Graph, value: ValueId) -> ValueId {
    match &graph[value].op {
        Op::Cast(cast) if cast.dtype.is_float() && graph[graph[value].operands[0]].ty.dtype.is_float() => {
            unrounded(graph, graph[value].operands[0])
        }
        _ => value,
    }
}

/// The views of a value that lead to what others read, if nothing else reads it and they stand before `end`: O is stored once, as its reader
/// wants it.
fn views(graph: &Graph, value: ValueId, end: ValueId) -> Vec<ValueId> {
    let (mut views, mut last) = (vec![], value);
    loop {
        let mut readers = graph.ids().filter(|id| graph[*id].operands.contains(&last));
        match (readers.next(), readers.next()) {
            (Some(view), None) if view < end && matches!(graph[view].op, Op::Permute(_) | Op::Reshape(_)) => {
                views.push(view);
                last = view;
            }
            _ => return views,
        }
    }
}

/// A sum as one over X and O.
struct Reuse {
    x: ValueId,
    /// The axes of X in the order of those of O.
    order: Vec<usize>,
    /// O.
    product: ValueId,
    /// The first of the axes of O that are summed.
    first_term: usize,
}

/// How the sum `id` is found from a product before it.
fn reuse(graph: &Graph, id: ValueId) -> Option<Reuse> {
    let Op::Reduce(reduce) = &graph[id].op else { return None };
    let Op::Binary(Binary::Mul) = graph[graph[id].operands[0]].op else { return None };
    if reduce.op != ReduceOp::Sum {
        return None;
    }
    let factors = &graph[graph[id].operands[0]].operands;
    [[factors[0], factors[1]], [factors[1], factors[0]]].into_iter().find_map(|[weights, entries]| {
        let Op::DotGeneral(dot) = &graph[entries].op else { return None };
        let [x, v] = graph[entries].operands[..] else { return None };
        let [rank_of_x, rank_of_v] = [x, v].map(|operand| graph[operand].ty.rank());
        let columns = dot.rhs_free(rank_of_v);
        let rank = graph[entries].ty.rank();
        let are_summed = reduce.axes.iter().copied().eq(rank - columns.len()..rank);
        let is_shorter = graph[x].ty.elements() < graph[entries].ty.elements();
        if !are_summed || !is_shorter {
            return None;
        }
        let is_same = |a: ValueId, b: ValueId| unrounded(graph, a) == unrounded(graph, b);
        let wanted = DotGeneral {
            lhs_batch: (0..dot.lhs_batch.len()).collect(),
            rhs_batch: dot.rhs_batch.clone(),
            lhs_contract: reduce.axes.clone(),
            rhs_contract: columns,
            dtype: dot.dtype,
        };
        let is_product = |other: &ValueId| match (&graph[*other].op, &graph[*other].operands[..]) {
            (Op::DotGeneral(other), [a, b]) => {
                DotGeneral { dtype: dot.dtype, ..other.clone() } == wanted
                    && is_same(*a, weights)
                    && is_same(*b, v)
            }
            _ => false,
        };
        let product = graph.ids().take_while(|other| *other < id).find(is_product)?;
        // Terms stand in the order of the axes of V.
        let mut terms: Vec<_> = dot.rhs_contract.iter().zip(&dot.lhs_contract).collect();
        terms.sort();
        let rows = [dot.lhs_batch.clone(), dot.lhs_free(rank_of_x)].concat();
        let first_term = rows.len();
        let order = rows.into_iter().chain(terms.into_iter().map(|(_, axis)| *axis)).collect();
        Some(Reuse { x, order, product, first_term })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{OF_GPUS, run};
    use kernfusion_ir::evaluate::{Array, Precision, evaluate_arrays};
    use kernfusion_ir::samples::difference;
    use kernfusion_ir::{Builder, DType, Input, InputRole, Origin, TensorType};
    use std::collections::BTreeMap;

    /// Where the values of a matrix of a batch stand: their axes, and which of them are the batch, the columns and the terms.
    #[derive(Debug, Clone, Copy)]
    struct Layout {
        shape: [usize; 4],
        batch: [usize; 2],
        columns: usize,
        terms: usize,
    }

    /// O = P·V and Σ P∘(X·Vᵀ), either factor first; or with other weights in the sum.
    fn sum_of_weighed(v: Layout, weights_first: bool, weighs_others: bool) -> Graph {
        let mut graph = Graph::new("sum");
        let mut b = Builder::new(&mut graph, Origin::default());
        let mut input = |name: &str, shape: &[usize]| {
            let ty = TensorType::new(DType::F32, shape.to_vec());
            b.op(Input { name: name.into(), role: InputRole::Data, ty }, &[]).expect("an input")
        };
        let [p, other] = ["p", "other"].map(|name| input(name, &[2, 3, 5, 9]));
        // Rows, the batch's second axis, terms, its first one.
        let [x, v_value] = [input("x", &[5, 3, 4, 2]), input("v", &v.shape)];
        let dot = |lhs: ([usize; 2], usize), rhs_contract| DotGeneral {
            lhs_batch: lhs.0.into(),
            rhs_batch: v.batch.into(),
            lhs_contract: vec![lhs.1],
            rhs_contract: vec![rhs_contract],
            dtype: DType::F32,
        };
        let output = b.op(dot(([0, 1], 3), v.columns), &[p, v_value]).expect("a product");
        let turned = b.permute(output, &[1, 3, 0, 2]).expect("a permutation");
        let shown = b.reshape(turned, &[12, 10]).expect("as many numbers");
        let entries = b.op(dot(([3, 1], 2), v.terms), &[x, v_value]).expect("a product");
        let weights = if weighs_others { other } else { p };
        let factors = if weights_first { [weights, entries] } else { [entries, weights] };
        let weighed = b.mul(factors[0], factors[1]).expect("of one shape");
        let sum = b.reduce(ReduceOp::Sum, &[3], weighed).expect("a sum");
        graph.output("o", shown);
        graph.output("sum", sum);
        graph
    }

    fn results(graph: &Graph) -> BTreeMap<String, Array> {
        let numbers = |ty: &TensorType, seed: usize| {
            (0..ty.elements()).map(|at| ((at * 7 + seed) % 11) as f64 - 5.0).collect()
        };
        let inputs = graph.inputs().enumerate().map(|(seed, (id, name, _))| {
            let ty = graph[id].ty.clone();
            (name.to_string(), Array { values: numbers(&ty, seed), ty })
        });
        evaluate_arrays(graph, inputs.collect(), Precision::Double).expect("evaluates")
    }

    fn products(graph: &Graph) -> usize {
        graph.ids().filter(|id| matches!(graph[*id].op, Op::DotGeneral(_))).count()
    }

    #[test]
    fn a_sum_over_weighed_entries_is_one_over_what_the_weights_give() {
        let layouts = [
            Layout { shape: [2, 3, 9, 4], batch: [0, 1], columns: 2, terms: 3 },
            Layout { shape: [9, 3, 4, 2], batch: [3, 1], columns: 0, terms: 2 },
        ];
        for (layout, weights_first) in
            layouts.into_iter().flat_map(|layout| [(layout, true), (layout, false)])
        {
            let before = sum_of_weighed(layout, weights_first, false);
            let mut after = before.clone();
            run(&mut after, OF_GPUS, None, &mut |_, _| {}).expect("passes");
            assert_eq!((products(&before), products(&after)), (2, 1), "{layout:?}\n{after}");
            let expected = results(&before);
            for (name, found) in results(&after) {
                let wrong = difference(&expected[&name].values, &found.values, 1e-12);
                assert!(wrong.is_none(), "{layout:?}, {name}: {wrong:?}");
            }
        }
    }

    #[test]
    fn other_weights_have_another_sum() {
        let layout = Layout { shape: [2, 3, 9, 4], batch: [0, 1], columns: 2, terms: 3 };
        let mut graph = sum_of_weighed(layout, true, true);
        run(&mut graph, OF_GPUS, None, &mut |_, _| {}).expect("passes");
        assert_eq!(products(&graph), 2, "{graph}");
    }
}
