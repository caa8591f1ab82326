//! Products of `bf16` operands with sums in `f32`; everything else stays as it is.
//!
//! ```text
//! %2 = dot_general %0, %1 : f32[4,8]      %2 = cast %0 : bf16[4,6]
//! %3 = exp %2             : f32[4,8]  →   %3 = cast %1 : bf16[6,8]
//!                                         %4 = dot_general %2, %3 : f32[4,8]
//!                                         %5 = exp %4 : f32[4,8]
//! ```
//!
//! An operand is converted once, before the views that lead to its products, so that what lies in memory is `bf16`.
//! What a product's result is depends on its readers (`Readers`): a result that will have to lie in memory is
//! `bf16`, as `torch.autocast` has it; one that becomes an output or a state stays `f32`, and so do scores, whose
//! maximum is subtracted before `exp` magnifies their errors. Parameters, statistics and the optimizer stay `f32`.
//!
//! Invariant: without rounding, the program computes what it did; inputs and outputs keep their types.

use crate::{Rebuild, forward_set, loops};
use kernfusion_ir::{Cast, DType, DotGeneral, Graph, KernelEntry, Op, ReduceOp, Result, ValueId};
use std::collections::BTreeMap;

pub(crate) fn use_bf16_products(graph: &mut Graph) -> Result<()> {
    loops::change_bodies(graph, use_bf16_products)?;
    let readers = Readers::of(graph, false);
    let mut narrowing = Narrowing { old: graph, rebuild: Rebuild::new(graph), narrow: BTreeMap::new() };
    for id in graph.ids() {
        match &graph[id].op {
            Op::DotGeneral(dot) if is_f32_product(graph, id) => {
                narrowing.product(id, dot, &readers[id.index()])?
            }
            _ => {
                narrowing.rebuild.copy(id)?;
            }
        }
    }
    *graph = narrowing.rebuild.finish();
    Ok(())
}

/// Results of products that lie in memory before they are normalised backward are `bf16`, as `torch.autocast` has them. A CPU computes
/// both in one kernel, and leaves them as they are.
pub(crate) fn narrow_results(graph: &mut Graph) -> Result<()> {
    loops::change_bodies(graph, narrow_results)?;
    let readers = Readers::of(graph, true);
    let mut rebuild = Rebuild::new(graph);
    for id in graph.ids() {
        let node = &graph[id];
        let is_narrow = |operand: &ValueId| graph[*operand].ty.dtype == DType::BF16;
        match &node.op {
            Op::DotGeneral(dot)
                if dot.dtype == DType::F32
                    && node.operands.iter().all(is_narrow)
                    && readers[id.index()].result_type(!dot.lhs_batch.is_empty()) == DType::BF16 =>
            {
                let operands: Vec<_> = node.operands.iter().map(|&operand| rebuild.place(operand)).collect();
                let mut b = rebuild.builder(id);
                let product = b.op(DotGeneral { dtype: DType::BF16, ..dot.clone() }, &operands)?;
                let wide = b.cast(product, DType::F32)?;
                rebuild.replace(id, wide);
            }
            _ => {
                rebuild.copy(id)?;
            }
        }
    }
    *graph = rebuild.finish();
    Ok(())
}

fn is_f32_product(graph: &Graph, id: ValueId) -> bool {
    let node = &graph[id];
    node.ty.dtype == DType::F32 && node.operands.iter().all(|&operand| graph[operand].ty.dtype == DType::F32)
}

struct Narrowing<'a> {
    old: &'a Graph,
    rebuild: Rebuild<'a>,
    /// The `bf16` form of old values that have one.
    narrow: BTreeMap<ValueId, ValueId>,
}

impl Narrowing<'_> {
    fn product(&mut self, id: ValueId, dot: &DotGeneral, readers: &Readers) -> Result<()> {
        let node = &self.old[id];
        let operands =
            node.operands.iter().map(|&operand| self.operand(operand)).collect::<Result<Vec<_>>>()?;
        let dtype = readers.result_type(!dot.lhs_batch.is_empty());
        let mut b = self.rebuild.builder(id);
        let product = b.op(DotGeneral { dtype, ..dot.clone() }, &operands)?;
        let wide = b.cast(product, DType::F32)?;
        if dtype == DType::BF16 {
            self.narrow.insert(id, product);
        }
        self.rebuild.replace(id, wide);
        Ok(())
    }

    /// The `bf16` form of a value: views of that of what they show, else a conversion, made once.
    fn operand(&mut self, value: ValueId) -> Result<ValueId> {
        if let Some(&narrow) = self.narrow.get(&value) {
            return Ok(narrow);
        }
        let node = &self.old[value];
        let narrow = match &node.op {
            op if op.entry() == KernelEntry::View => {
                let shown = self.operand(node.operands[0])?;
                self.rebuild.builder(value).op(op.clone(), &[shown])?
            }
            // What was widened from bf16 is a value of bf16.
            Op::Cast(_) if self.old[node.operands[0]].ty.dtype == DType::BF16 => {
                self.rebuild.place(node.operands[0])
            }
            // What was widened from i8 has no more digits than bf16, and is read as it is kept.
            Op::Cast(_) if self.old[node.operands[0]].ty.dtype == DType::I8 => {
                let kept = self.rebuild.place(node.operands[0]);
                self.rebuild.builder(value).op(Cast { dtype: DType::BF16 }, &[kept])?
            }
            _ => {
                let wide = self.rebuild.place(value);
                self.rebuild.builder(value).op(Cast { dtype: DType::BF16 }, &[wide])?
            }
        };
        self.narrow.insert(value, narrow);
        Ok(narrow)
    }
}

/// What becomes of a value, through elementwise ops and views, up to the next product or reduction. All false: only
/// products read it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Readers {
    /// Elementwise ops.
    elementwise: bool,
    /// Reductions to a maximum or minimum: of scores.
    extreme: bool,
    /// Other reductions.
    summed: bool,
    /// Ops that lay it out anew.
    moved: bool,
    /// It becomes an output or a state.
    delivered: bool,
    /// Backward needs it, or what is computed from it.
    kept: bool,
}

impl Readers {
    /// The readers of each value. What is added to the rows of an embedding either is like an output, or a sum of what lies in memory anyway.
    fn of(graph: &Graph, scatters_read_memory: bool) -> Vec<Readers> {
        let forward = forward_set::forward(graph);
        let mut readers = vec![Readers::default(); graph.len()];
        graph.outputs().iter().for_each(|output| readers[output.value.index()].delivered = true);
        for id in graph.ids().rev() {
            let node = &graph[id];
            let own = readers[id.index()];
            let seen = match node.op.entry() {
                KernelEntry::Scalar => Readers { elementwise: true, ..own },
                KernelEntry::View => own,
                KernelEntry::Movement => Readers { moved: true, ..own },
                KernelEntry::Reduction => match &node.op {
                    Op::Reduce(reduce) if matches!(reduce.op, ReduceOp::Max | ReduceOp::Min) => {
                        Readers { extreme: true, ..Readers::default() }
                    }
                    _ => Readers { summed: true, ..Readers::default() },
                },
                KernelEntry::Scatter if scatters_read_memory => {
                    Readers { summed: true, ..Readers::default() }
                }
                KernelEntry::Scatter | KernelEntry::Loop | KernelEntry::Collective => {
                    Readers { delivered: true, ..Readers::default() }
                }
                KernelEntry::Contraction | KernelEntry::Generated | KernelEntry::Input => Readers::default(),
            };
            for operand in &node.operands {
                let crosses = forward[operand.index()] && !forward[id.index()];
                let kept = Readers { kept: seen != Readers::default(), ..Readers::default() };
                readers[operand.index()].join(if crosses { kept } else { seen });
            }
        }
        readers
    }

    fn join(&mut self, other: Readers) {
        self.elementwise |= other.elementwise;
        self.extreme |= other.extreme;
        self.summed |= other.summed;
        self.moved |= other.moved;
        self.delivered |= other.delivered;
        self.kept |= other.kept;
    }

    /// The type of a product's result. Sums over the rows of a batch of products are attention's: such products
    /// belong into one kernel with the sums, where nothing is gained by rounding between the two.
    fn result_type(&self, batched: bool) -> DType {
        let in_memory = self.kept || self.summed || self.moved;
        if self.delivered || self.extreme || batched && self.summed || self.elementwise && !in_memory {
            DType::F32
        } else {
            DType::BF16
        }
    }
}
