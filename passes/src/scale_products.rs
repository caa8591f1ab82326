//! Factors of a product's operand, taken out of the product.
//!
//! ```text
//! Q · (c K)ᵀ  =  c (Q · Kᵀ)
//! ```
//!
//! Simplification multiplies what has fewer elements. Where K is read without the factor as well, as the keys of attention are in backward, a kernel
//! of its own then writes c K, and one that reads both has to keep two panels instead of one. A GPU multiplies entries in registers
//! for next to nothing.

use crate::Rebuild;
use crate::fuse::chain::number;
use kernfusion_ir::{Binary, Builder, Cast, DType, Graph, Op, Result, ValueId};

pub(crate) fn scale_products(graph: &mut Graph) -> Result<()> {
    let mut rebuild = Rebuild::new(graph);
    for id in graph.ids() {
        let factors = match &graph[id].op {
            Op::DotGeneral(dot) if dot.dtype == DType::F32 => {
                graph[id].operands.iter().map(|&operand| scaled(graph, operand)).collect()
            }
            _ => vec![],
        };
        if factors.iter().all(Option::is_none) {
            rebuild.copy(id)?;
            continue;
        }
        let (mut operands, mut all) = (vec![], 1.0);
        for (&operand, scaled) in graph[id].operands.iter().zip(factors) {
            operands.push(match scaled {
                Some(Scaled { x, factor }) => {
                    all *= factor;
                    rounded(graph, &mut rebuild, id, x, graph[operand].ty.dtype)?
                }
                None => rebuild.place(operand),
            });
        }
        let mut b = rebuild.builder(id);
        let product = b.op(graph[id].op.clone(), &operands)?;
        let product = b.scale(product, all)?;
        rebuild.replace(id, product);
    }
    *graph = rebuild.finish();
    Ok(())
}

/// A value times a number.
struct Scaled {
    x: ValueId,
    factor: f64,
}

/// An operand as a value times a number, if the value is in memory without it, in the operand's type.
fn scaled(graph: &Graph, operand: ValueId) -> Option<Scaled> {
    let dtype = graph[operand].ty.dtype;
    let product = match graph[operand].op {
        Op::Cast(_) if dtype.is_float() => graph[operand].operands[0],
        _ => operand,
    };
    let Op::Binary(Binary::Mul) = graph[product].op else { return None };
    let [x, y] = graph[product].operands[..] else { return None };
    let (x, factor) = match (number(graph, x), number(graph, y)) {
        (None, Some(factor)) => (x, factor.value()),
        (Some(factor), None) => (y, factor.value()),
        _ => return None,
    };
    let seen = root(graph, x);
    let is_there = |id: ValueId| match &graph[id].op {
        op if is_view(op) || id == product => false,
        Op::Cast(cast) if graph[seen].ty.dtype != dtype => {
            cast.dtype == dtype && graph[id].operands[0] == seen
        }
        _ => {
            graph[seen].ty.dtype == dtype
                && graph[id].operands.iter().any(|&operand| root(graph, operand) == seen)
        }
    };
    graph.ids().any(is_there).then_some(Scaled { x, factor })
}

/// Whether an op is a view, through which a conversion may be taken.
fn is_view(op: &Op) -> bool {
    matches!(op, Op::Reshape(_) | Op::Permute(_) | Op::Slice(_))
}

/// What views show.
fn root(graph: &Graph, value: ValueId) -> ValueId {
    match is_view(&graph[value].op) {
        true => root(graph, graph[value].operands[0]),
        false => value,
    }
}

/// The views of a value on what they show in another type, as others read it.
fn rounded(
    graph: &Graph,
    rebuild: &mut Rebuild<'_>,
    helped: ValueId,
    value: ValueId,
    dtype: DType,
) -> Result<ValueId> {
    let node = &graph[value];
    if node.ty.dtype == dtype {
        return Ok(rebuild.place(value));
    }
    let (op, operand): (Op, _) = match is_view(&node.op) {
        true => (node.op.clone(), rounded(graph, rebuild, helped, node.operands[0], dtype)?),
        false => (Cast { dtype }.into(), rebuild.place(value)),
    };
    let mut b: Builder<'_> = rebuild.builder(helped);
    b.op(op, &[operand])
}

#[cfg(test)]
mod tests {
    use crate::{OF_GPUS, run};
    use kernfusion_ir::evaluate::{Array, Precision, evaluate_arrays};
    use kernfusion_ir::samples::difference;
    use kernfusion_ir::{
        Binary, Builder, DType, DotGeneral, Graph, Input, InputRole, Op, Origin, ReduceOp, TensorType,
    };

    /// Scores of keys that are multiplied by a number and are a part of what others read, too; with conversions to a type or without.
    fn scores(dtype: DType, is_read: bool) -> Graph {
        let mut graph = Graph::new("scores");
        let mut b = Builder::new(&mut graph, Origin::default());
        let ty = TensorType::new(DType::F32, [6, 8]);
        let all = b.op(Input { name: "all".into(), role: InputRole::Data, ty }, &[]).expect("an input");
        let all = b.scale(all, 3.0).expect("a product");
        let part = |b: &mut Builder<'_>, of, first| {
            let part = b.slice(of, &[0, first], &[6, first + 4]).expect("a part");
            b.permute(part, &[1, 0]).expect("a permutation")
        };
        let keys = part(&mut b, all, 4);
        let scaled = b.scale(keys, 0.5).expect("a product");
        let scaled = b.cast(scaled, dtype).expect("a conversion");
        let narrow = b.cast(all, dtype).expect("a conversion");
        let queries = part(&mut b, narrow, 0);
        let dot = |side: usize| DotGeneral {
            lhs_batch: vec![],
            rhs_batch: vec![],
            lhs_contract: vec![side],
            rhs_contract: vec![side],
            dtype: DType::F32,
        };
        let queries = if is_read { queries } else { scaled };
        let scores = b.op(dot(0), &[queries, scaled]).expect("a product");
        let other = part(&mut b, narrow, 4);
        let gradient = if is_read { b.op(dot(1), &[other, other]) } else { b.op(dot(1), &[scaled, scaled]) };
        let gradient = gradient.expect("a product");
        let sum = b.reduce(ReduceOp::Sum, &[0, 1], gradient).expect("a sum");
        graph.output("scores", scores);
        graph.output("sum", sum);
        graph
    }

    fn results(graph: &Graph) -> Vec<f64> {
        let ty = TensorType::new(DType::F32, [6, 8]);
        let values = (0..48).map(|at| (at % 11) as f64 - 5.0).collect();
        let inputs = [("all".to_string(), Array { values, ty })].into();
        let found = evaluate_arrays(graph, inputs, Precision::Double).expect("evaluates");
        found.into_values().flat_map(|array| array.values).collect()
    }

    /// Operands of products that are multiplied by a number.
    fn scaled_operands(graph: &Graph) -> usize {
        let is_scaled = |&operand: &kernfusion_ir::ValueId| match graph[operand].op {
            Op::Cast(_) => {
                let product = graph[operand].operands[0];
                matches!(graph[product].op, Op::Binary(Binary::Mul))
            }
            ref op => matches!(op, Op::Binary(Binary::Mul)),
        };
        let products = graph.ids().filter(|id| matches!(graph[*id].op, Op::DotGeneral(_)));
        products.flat_map(|id| graph[id].operands.iter()).filter(|operand| is_scaled(operand)).count()
    }

    #[test]
    fn a_factor_of_what_is_there_without_it_is_one_of_the_product() {
        for dtype in [DType::F32, DType::BF16] {
            let before = scores(dtype, true);
            let mut after = before.clone();
            run(&mut after, OF_GPUS, None, &mut |_, _| {}).expect("passes");
            assert_eq!((scaled_operands(&before), scaled_operands(&after)), (1, 0), "{after}");
            let wrong = difference(&results(&before), &results(&after), 1e-12);
            assert!(wrong.is_none(), "{dtype}: {wrong:?}");
        }
    }

    #[test]
    fn a_factor_stays_where_nothing_has_the_value_without_it() {
        let before = scores(DType::F32, false);
        let mut after = before.clone();
        run(&mut after, OF_GPUS, None, &mut |_, _| {}).expect("passes");
        assert_eq!(scaled_operands(&after), scaled_operands(&before), "{after}");
    }
}
