//! Products with matrices that are kept as bytes multiply whole numbers: rows of the other operand are rounded to bytes, too.
//!
//! ```text
//! %1 = cast %w : f32[8,6]                      %q = i8 of x's rows, each times 127 over its largest number
//! %2 = dot_general %x, %1 : f32[4,8]    →      %2 = dot_general (cast %q), (cast %w) : f32[4,8]
//!                                              %3 = mul %2, (rows' largest numbers over 127)
//! ```
//!
//! A row is what one sum runs over. The scales of a matrix are moved behind the product, if they are not there already. Both operands
//! are then bytes in memory that are read as `f32`, which is all that a back end has to see: sums of such products are whole numbers, and a
//! processor may have instructions for them. Rounding with one scale for each row, made anew for each input, is that of Dettmers, Lewis, Belkada and
//! Zettlemoyer ("LLM.int8(): 8-bit matrix multiplication for transformers at scale", 2022), without its exception for columns with outliers.
//!
//! Invariant: without rounding, the program computes what it did; inputs and outputs keep their types.

use crate::{Rebuild, loops};
use kernfusion_ir::{Binary, DType, DotGeneral, Graph, KernelEntry, Op, ReduceOp, Result, Unary, ValueId};
use std::collections::BTreeMap;

/// The largest byte that numbers are rounded to.
const LARGEST: f64 = 127.0;
/// What the largest number of a row counts as at least: rows of zeros stay zeros.
const LEAST: f64 = 1e-30;

pub(crate) fn use_int8_products(graph: &mut Graph) -> Result<()> {
    loops::change_bodies(graph, use_int8_products)?;
    let mut rounding = Rounding { old: graph, rebuild: Rebuild::new(graph), rounded: BTreeMap::new() };
    for id in graph.ids() {
        match &graph[id].op {
            Op::DotGeneral(dot) => rounding.product(id, dot)?,
            _ => {
                rounding.rebuild.copy(id)?;
            }
        }
    }
    *graph = rounding.rebuild.finish();
    Ok(())
}

/// A matrix of bytes as a product reads it.
struct Bytes<'a> {
    /// The bytes, widened.
    wide: ValueId,
    /// What they are multiplied by, with the axes of the matrix that it has.
    scales: Option<(ValueId, &'a [usize])>,
}

impl<'a> Bytes<'a> {
    /// What a value is, if it is bytes times numbers that are the same along the axes that are summed.
    fn of(graph: &'a Graph, value: ValueId, summed: &[usize]) -> Option<Self> {
        if is_widened(graph, value) {
            return Some(Bytes { wide: value, scales: None });
        }
        let node = &graph[value];
        let Op::Binary(Binary::Mul) = node.op else { return None };
        let scaled = |wide: ValueId, scales: ValueId| match &graph[scales].op {
            Op::Broadcast(spread)
                if is_widened(graph, wide) && !spread.axes.iter().any(|axis| summed.contains(axis)) =>
            {
                Some(Bytes { wide, scales: Some((graph[scales].operands[0], &spread.axes)) })
            }
            _ => None,
        };
        scaled(node.operands[0], node.operands[1]).or_else(|| scaled(node.operands[1], node.operands[0]))
    }
}

/// Whether a value is bytes that were widened, or a view of these.
fn is_widened(graph: &Graph, value: ValueId) -> bool {
    let node = &graph[value];
    match &node.op {
        Op::Cast(_) => graph[node.operands[0]].ty.dtype == DType::I8,
        op => op.entry() == KernelEntry::View && is_widened(graph, node.operands[0]),
    }
}

/// One operand of a product: its axes, and where they are in the result.
struct Side {
    summed: Vec<usize>,
    /// In the result, of each axis; of one that is summed, nowhere.
    places: Vec<Option<usize>>,
}

impl Side {
    /// Both operands of a product of these ranks.
    fn both(dot: &DotGeneral, ranks: [usize; 2]) -> [Side; 2] {
        let mut next = dot.lhs_batch.len();
        let sides =
            [(&dot.lhs_batch, &dot.lhs_contract, ranks[0]), (&dot.rhs_batch, &dot.rhs_contract, ranks[1])];
        sides.map(|(batch, summed, rank)| {
            let mut place = |axis: usize| {
                if summed.contains(&axis) {
                    return None;
                }
                let own = || {
                    next += 1;
                    next - 1
                };
                Some(batch.iter().position(|&other| other == axis).unwrap_or_else(own))
            };
            Side { summed: summed.clone(), places: (0..rank).map(&mut place).collect() }
        })
    }
}

struct Rounding<'a> {
    old: &'a Graph,
    rebuild: Rebuild<'a>,
    /// Old values whose rows along these axes were rounded: as bytes, widened, and what rows must be multiplied by.
    rounded: BTreeMap<(ValueId, Vec<usize>), [ValueId; 2]>,
}

impl Rounding<'_> {
    fn product(&mut self, id: ValueId, dot: &DotGeneral) -> Result<()> {
        let node = &self.old[id];
        let operands = [node.operands[0], node.operands[1]];
        let sides = Side::both(dot, operands.map(|operand| self.old[operand].ty.rank()));
        let bytes = [0, 1].map(|side| Bytes::of(self.old, operands[side], &sides[side].summed));
        let is_f32 = operands.iter().chain([&id]).all(|&value| self.old[value].ty.dtype == DType::F32);
        let (of_bytes, Bytes { wide, scales }) = match bytes {
            [Some(bytes), None] if is_f32 => (0, bytes),
            [None, Some(bytes)] if is_f32 => (1, bytes),
            _ => return self.rebuild.copy(id).map(drop),
        };
        let other = 1 - of_bytes;
        let summed = &sides[other].summed;
        if summed.is_empty() {
            return self.rebuild.copy(id).map(drop);
        }
        let [rows, of_rows] = self.rounded(operands[other], summed)?;
        let mut read = [rows; 2];
        read[of_bytes] = self.rebuild.place(wide);
        let left: Vec<usize> = sides[other].places.iter().copied().flatten().collect();
        let mut factors = vec![(of_rows, left)];
        if let Some((scales, axes)) = scales {
            let place = |&axis: &usize| sides[of_bytes].places[axis].expect("it is not summed");
            factors.push((self.rebuild.place(scales), axes.iter().map(place).collect()));
        }
        let mut b = self.rebuild.builder(id);
        let mut product = b.op(dot.clone(), &read)?;
        for (factor, places) in factors {
            let mut order: Vec<usize> = (0..places.len()).collect();
            order.sort_unstable_by_key(|&axis| places[axis]);
            let places: Vec<usize> = order.iter().map(|&axis| places[axis]).collect();
            let factor = if order.is_sorted() { factor } else { b.permute(factor, &order)? };
            let factor = b.broadcast(factor, &node.ty.shape, &places)?;
            product = b.mul(product, factor)?;
        }
        self.rebuild.replace(id, product);
        Ok(())
    }

    /// A value with its rows along these axes as bytes, widened again, and the factor of each row.
    fn rounded(&mut self, value: ValueId, along: &[usize]) -> Result<[ValueId; 2]> {
        let mut along = along.to_vec();
        along.sort_unstable();
        if let Some(&rounded) = self.rounded.get(&(value, along.clone())) {
            return Ok(rounded);
        }
        let (x, shape) = (self.rebuild.place(value), &self.old[value].ty.shape);
        let left: Vec<usize> = (0..shape.len()).filter(|axis| !along.contains(axis)).collect();
        let mut b = self.rebuild.builder(value);
        let size = b.unary(Unary::Abs, x)?;
        let largest = b.reduce(ReduceOp::Max, &along, size)?;
        let least = b.full_like(LEAST, largest)?;
        let largest = b.binary(Binary::Max, largest, least)?;
        let whole = b.full_like(LARGEST, largest)?;
        let (factors, scales) = (b.div(whole, largest)?, b.div(largest, whole)?);
        let factors = b.broadcast(factors, shape, &left)?;
        let scaled = b.mul(x, factors)?;
        let half = b.full_like(0.5, scaled)?;
        let raised = b.add(scaled, half)?;
        let nearest = b.unary(Unary::Floor, raised)?;
        let bytes = b.cast(nearest, DType::I8)?;
        let wide = b.cast(bytes, DType::F32)?;
        self.rounded.insert((value, along), [wide, scales]);
        Ok([wide, scales])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kernfusion_ir::evaluate::{Array, Precision, evaluate_arrays};
    use kernfusion_ir::{Input, InputRole, Origin, TensorType};
    use std::collections::BTreeMap;

    /// Wherever axes of both operands lie, results are off by half a step for each number that was rounded at most.
    #[test]
    fn every_arrangement_of_axes_is_rounded_by_rows() {
        let dot =
            |lhs_batch: &[usize], rhs_batch: &[usize], lhs_contract: &[usize], rhs_contract: &[usize]| {
                let [lhs_batch, rhs_batch] = [lhs_batch, rhs_batch].map(<[usize]>::to_vec);
                let [lhs_contract, rhs_contract] = [lhs_contract, rhs_contract].map(<[usize]>::to_vec);
                DotGeneral { lhs_batch, rhs_batch, lhs_contract, rhs_contract, dtype: DType::F32 }
            };
        // Shapes of x and of the matrix, whose last axis has no scales, and the product.
        let cases: [(&[usize], &[usize], DotGeneral); 5] = [
            (&[3, 8], &[5, 8], dot(&[], &[], &[1], &[1])),
            (&[8, 2, 3], &[5, 8], dot(&[], &[], &[0], &[1])),
            (&[3, 4, 8], &[4, 5, 8], dot(&[1], &[0], &[2], &[2])),
            (&[3, 4, 2, 8], &[2, 4, 5, 8], dot(&[1, 2], &[1, 0], &[3], &[3])),
            (&[4, 2, 3, 6, 8], &[2, 4, 6, 8], dot(&[0, 1], &[1, 0], &[4], &[3])),
        ];
        for (number, (x, w, dot)) in cases.into_iter().enumerate() {
            for turned in [false, true] {
                let dot = match turned {
                    false => dot.clone(),
                    true => DotGeneral {
                        lhs_batch: dot.rhs_batch.clone(),
                        rhs_batch: dot.lhs_batch.clone(),
                        lhs_contract: dot.rhs_contract.clone(),
                        rhs_contract: dot.lhs_contract.clone(),
                        dtype: dot.dtype,
                    },
                };
                let (graph, inputs) = program(x, w, &dot, turned, number);
                let mut rounded = graph.clone();
                use_int8_products(&mut rounded).unwrap();
                assert!(rounded.ids().any(|id| rounded[id].op == Op::Unary(Unary::Floor)));
                let of = |graph: &Graph| evaluate_arrays(graph, inputs.clone(), Precision::Double).unwrap();
                let (exact, found) = (of(&graph)["y"].values.clone(), of(&rounded)["y"].values.clone());
                // Numbers and scales are below 1, bytes at most 127, and there are 8 terms.
                let bound = 0.5 / 127.0 * 127.0 * 8.0;
                let far = exact.iter().zip(&found).map(|(x, y)| (x - y).abs()).fold(0.0, f64::max);
                assert!(far > 0.0 && far < bound, "{number} {turned}: {far}");
                let size = exact.iter().fold(0.0_f64, |size, x| size.max(x.abs()));
                assert!(far < 0.02 * size, "{number} {turned}: {far} of {size}");
            }
        }
    }

    /// x times a matrix of bytes with a scale for each row, or the other way round.
    fn program(
        x: &[usize],
        w: &[usize],
        dot: &DotGeneral,
        turned: bool,
        seed: usize,
    ) -> (Graph, BTreeMap<String, Array>) {
        let mut graph = Graph::default();
        let mut b = kernfusion_ir::Builder::new(&mut graph, Origin::default());
        let rows = &w[..w.len() - 1];
        let types = [
            ("x", TensorType::new(DType::F32, x)),
            ("w", TensorType::new(DType::I8, w)),
            ("s", TensorType::new(DType::F32, rows)),
        ];
        let [x, bytes, scales] = types
            .clone()
            .map(|(name, ty)| b.op(Input { name: name.into(), role: InputRole::State, ty }, &[]).unwrap());
        let wide = b.cast(bytes, DType::F32).unwrap();
        let spread = b.broadcast(scales, w, &(0..rows.len()).collect::<Vec<_>>()).unwrap();
        let matrix = b.mul(spread, wide).unwrap();
        let operands = if turned { [matrix, x] } else { [x, matrix] };
        let y = b.op(dot.clone(), &operands).unwrap();
        graph.output("y", y);
        let mut number = seed as u64 * 977 + 1;
        let mut next = || {
            number = number.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (number >> 40) as f64 / (1u64 << 23) as f64 - 1.0
        };
        let value = |(name, ty): (&str, TensorType)| {
            let mut one = || if ty.dtype == DType::I8 { (127.0 * next()).round() } else { next() };
            let values = (0..ty.elements()).map(|_| one()).collect();
            (name.to_string(), Array { ty, values })
        };
        (graph, types.into_iter().map(value).collect())
    }
}
