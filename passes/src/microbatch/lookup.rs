//! Lookups that stay within their part of the batch.
//!
//! A lookup in a table that has the batch as its axis may reach any place of it. But where row i of the indices finds nothing but the c entries
//! from c · i on, each part of the batch finds its own:
//!
//! ```text
//! gather table[6·c], indices[6, k]      indices = c · row + r, 0 ≤ r < c      →      parts of 2 rows: table[2·c], indices − c · first row
//! ```
//!
//! So are the largest elements of rows picked, and the rows of experts that each work on a group of tokens.

use super::batch_dependence::BatchDependence;
use kernfusion_ir::{Binary, Gather, Graph, Op, ScatterAdd, ValueId};

/// A lookup, or its opposite, along an axis that has the batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct LocalLookup {
    /// Which operand are the indices.
    pub(super) indices: usize,
    /// The axis of each operand that has the batch.
    pub(super) slices: [usize; 2],
    /// The axis of the result that has it.
    pub(super) axis: usize,
    /// The extent of what is indexed.
    pub(super) extent: usize,
}

impl LocalLookup {
    /// If a node is one, given what the batch has to do with its operands.
    pub(super) fn new(graph: &Graph, id: ValueId, operands: &[BatchDependence]) -> Option<Self> {
        let node = &graph[id];
        let (slots, lookup, extent) = match &node.op {
            Op::Gather(Gather { axis }) => ([1, 0], *axis, graph[node.operands[0]].ty.shape[*axis]),
            Op::ScatterAdd(ScatterAdd { axis, extent }) => ([0, 1], *axis, *extent),
            _ => return None,
        };
        let is_gather = matches!(node.op, Op::Gather(_));
        let [indices, indexed] = slots;
        let BatchDependence::Sliced(row) = operands[indices] else { return None };
        // A table has the batch along the axis of the lookup. What is added has it along that of the indices; it may be cut.
        let (table, added) = (lookup, lookup + row);
        let fits = match operands[indexed] {
            BatchDependence::Sliced(axis) => axis == if is_gather { table } else { added },
            BatchDependence::Whole => !is_gather,
            BatchDependence::Partial(_) | BatchDependence::Complete => false,
        };
        let rows = graph[node.operands[indices]].ty.shape[row];
        if !fits || rows == 0 || !extent.is_multiple_of(rows) {
            return None;
        }
        let (each, range) = (extent / rows, Linear::of(graph, node.operands[indices], Some(row)));
        let is_local = range.factor == each as f64 && range.low >= 0.0 && range.high < each as f64;
        let (axis, other) = if is_gather { (added, table) } else { (table, added) };
        let mut slices = [row, row];
        slices[indexed] = other;
        is_local.then_some(LocalLookup { indices, slices, axis, extent })
    }
}

/// What is known of an integer at coordinate i of an axis: it is `factor · i + r`, with `low ≤ r ≤ high`.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Linear {
    factor: f64,
    low: f64,
    high: f64,
}

const UNKNOWN: Linear = Linear { factor: 0.0, low: f64::NEG_INFINITY, high: f64::INFINITY };

impl Linear {
    /// Of a value along one of its axes; without an axis, of a value that is the same at each coordinate.
    fn of(graph: &Graph, id: ValueId, axis: Option<usize>) -> Linear {
        let node = &graph[id];
        let operand = |slot: usize, axis| Linear::of(graph, node.operands[slot], axis);
        match &node.op {
            Op::Constant(constant) => {
                let value = constant.value.value();
                Linear { factor: 0.0, low: value, high: value }
            }
            Op::Iota(iota) if axis == Some(iota.axis) => Linear { factor: 1.0, low: 0.0, high: 0.0 },
            Op::Iota(iota) => Linear { factor: 0.0, low: 0.0, high: iota.ty.shape[iota.axis] as f64 - 1.0 },
            Op::Broadcast(broadcast) => {
                operand(0, axis.and_then(|axis| broadcast.axes.iter().position(|&to| to == axis)))
            }
            Op::Permute(permute) => operand(0, axis.map(|axis| permute.axes[axis])),
            Op::Reshape(_) => match axis {
                None => operand(0, None),
                Some(axis) => {
                    let from = same_axis(&node.ty.shape, axis, &graph[node.operands[0]].ty.shape);
                    from.map_or(UNKNOWN, |from| operand(0, Some(from)))
                }
            },
            Op::Binary(op) if !node.ty.dtype.is_float() => operand(0, axis).combined(*op, operand(1, axis)),
            Op::Select(_) => operand(1, axis).or(operand(2, axis)),
            _ => UNKNOWN,
        }
    }

    fn combined(self, op: Binary, other: Linear) -> Linear {
        let (a, b) = (self, other);
        match op {
            Binary::Add => Linear { factor: a.factor + b.factor, low: a.low + b.low, high: a.high + b.high },
            Binary::Sub => Linear { factor: a.factor - b.factor, low: a.low - b.high, high: a.high - b.low },
            Binary::Mul => match (a.constant(), b.constant()) {
                (Some(times), _) => b.scaled(times),
                (_, Some(times)) => a.scaled(times),
                (None, None) => UNKNOWN,
            },
            Binary::Min if a.factor == b.factor => {
                Linear { factor: a.factor, low: a.low.min(b.low), high: a.high.min(b.high) }
            }
            Binary::Max if a.factor == b.factor => {
                Linear { factor: a.factor, low: a.low.max(b.low), high: a.high.max(b.high) }
            }
            _ => UNKNOWN,
        }
    }

    fn constant(self) -> Option<f64> {
        (self.factor == 0.0 && self.low == self.high).then_some(self.low)
    }

    fn scaled(self, times: f64) -> Linear {
        // Zero times what is not bounded is no number, and nothing is known of it then.
        let (one, other) = (self.low * times, self.high * times);
        match one.is_nan() || other.is_nan() {
            true => UNKNOWN,
            false => Linear { factor: self.factor * times, low: one.min(other), high: one.max(other) },
        }
    }

    /// What is known of one of two values.
    fn or(self, other: Linear) -> Linear {
        match self.factor == other.factor {
            true => Linear { low: self.low.min(other.low), high: self.high.max(other.high), ..self },
            false => UNKNOWN,
        }
    }
}

/// The axis of `to` with the same coordinates as an axis of `from`, where a reshape leaves it as it is.
fn same_axis(from: &[usize], axis: usize, to: &[usize]) -> Option<usize> {
    let before: usize = from[..axis].iter().product();
    (0..to.len()).find(|&at| to[..at].iter().product::<usize>() == before && to[at] == from[axis])
}

#[cfg(test)]
mod tests {
    use super::*;
    use kernfusion_ir::{Builder, DType, InputRole, Iota, Origin, Result, TensorType};

    /// Whether a lookup of a part of four rows of two entries is found to be local.
    fn is_local(indices: impl Fn(&mut Builder<'_>, ValueId, ValueId) -> Result<ValueId>) -> bool {
        let mut graph = Graph::new("lookup");
        let mut b = Builder::new(&mut graph, Origin::default());
        let table = b.input("table", InputRole::Data, TensorType::new(DType::F32, [8])).unwrap();
        let ty = TensorType::new(DType::I32, [4, 3]);
        let x = b.input("x", InputRole::Data, ty.clone()).unwrap();
        let row = b.op(Iota { ty, axis: 0 }, &[]).unwrap();
        let indices = indices(&mut b, x, row).unwrap();
        let found = b.op(Gather { axis: 0 }, &[table, indices]).unwrap();
        LocalLookup::new(&graph, found, &[BatchDependence::Sliced(0); 2]).is_some()
    }

    /// Between `low` and `high`.
    fn clamped(b: &mut Builder<'_>, x: ValueId, low: f64, high: f64) -> Result<ValueId> {
        let (low, high) = (b.full_like(low, x)?, b.full_like(high, x)?);
        let x = b.binary(Binary::Max, x, low)?;
        b.binary(Binary::Min, x, high)
    }

    #[test]
    fn a_lookup_is_local_where_its_range_is_known_and_its_own() {
        assert!(is_local(|b, x, row| {
            let (inside, start) = (clamped(b, x, 0.0, 1.0)?, b.scale(row, 2.0)?);
            b.add(inside, start)
        }));
        // Of a row too wide, too narrow a step, an unknown range, another axis, another row.
        for (low, high, step) in
            [(0.0, 2.0, 2.0), (-1.0, 1.0, 2.0), (0.0, 1.0, 1.0), (0.0, f64::from(i32::MAX), 2.0)]
        {
            assert!(!is_local(|b, x, row| {
                let (inside, start) = (clamped(b, x, low, high)?, b.scale(row, step)?);
                b.add(inside, start)
            }));
        }
        assert!(!is_local(|_, x, _| Ok(x)));
        assert!(!is_local(|b, x, _| {
            let inside = clamped(b, x, 0.0, 1.0)?;
            let column = b.op(Iota { ty: TensorType::new(DType::I32, [4, 3]), axis: 1 }, &[])?;
            let start = b.scale(column, 2.0)?;
            b.add(inside, start)
        }));
        assert!(!is_local(|b, x, row| {
            let (inside, turned) = (clamped(b, x, 0.0, 1.0)?, b.scale(row, -2.0)?);
            let last = b.full_like(6.0, turned)?;
            let start = b.add(last, turned)?;
            b.add(inside, start)
        }));
    }
}
