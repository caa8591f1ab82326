//! Operands of products: their axes, and whether they are bytes.

use kernfusion_ir::{Builder, DType, DotGeneral, Graph, KernelEntry, Op, Result, ValueId};

/// Whether a value is bytes that were widened, or a view of these.
pub(crate) fn is_widened(graph: &Graph, value: ValueId) -> bool {
    let node = &graph[value];
    match &node.op {
        Op::Cast(_) => graph[node.operands[0]].ty.dtype == DType::I8,
        op => op.entry() == KernelEntry::View && is_widened(graph, node.operands[0]),
    }
}

/// One operand of a product: its axes, and where they are in the result.
pub(crate) struct Side {
    pub(crate) summed: Vec<usize>,
    /// In the result, of each axis; of one that is summed, nowhere.
    pub(crate) places: Vec<Option<usize>>,
}

impl Side {
    /// Both operands of a product of these ranks.
    pub(crate) fn both(dot: &DotGeneral, ranks: [usize; 2]) -> [Side; 2] {
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

    /// In the result, of each axis that is not summed.
    pub(crate) fn row_places(&self) -> Vec<usize> {
        self.places.iter().copied().flatten().collect()
    }

    /// Rows of an operand of this shape in each of its matrices; the first `batch` axes of the result are the batch's.
    pub(crate) fn rows(&self, shape: &[usize], batch: usize) -> usize {
        let is_row = |axis: &usize| self.places[*axis].is_some_and(|place| place >= batch);
        (0..shape.len()).filter(is_row).map(|axis| shape[axis]).product()
    }
}

/// A value in a larger shape, of which its axes are those at `places`.
pub(crate) fn spread(
    b: &mut Builder<'_>,
    value: ValueId,
    places: Vec<usize>,
    shape: &[usize],
) -> Result<ValueId> {
    let mut order: Vec<usize> = (0..places.len()).collect();
    order.sort_unstable_by_key(|&axis| places[axis]);
    let value = b.permute(value, &order)?;
    b.broadcast(value, shape, &order.iter().map(|&axis| places[axis]).collect::<Vec<_>>())
}
