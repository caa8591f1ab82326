//! Activations that forward keeps for backward are kept as `bf16`; runs after `mixed-precision`.
//!
//! ```text
//! %2 = sub %0, %1 : f32[64,8]                   %2 = sub %0, %1 : f32[64,8]
//! %3 = reduce sum %2          (forward)    →    %3 = reduce sum %2
//! %4 = mul %2, %3             (backward)        %4 = cast %2 : bf16[64,8]
//!                                               %5 = cast %4 : f32[64,8]
//!                                               %6 = mul %5, %3
//! ```
//!
//! Forward computes with the values as they are; backward reads them, rounded, wherever it needs one:
//! * of an operand of a product, its `bf16` form, which is in memory anyway;
//! * of what follows elementwise from such values, the same computation again;
//! * of anything else a `bf16` copy: also of what would take many operations, such as a convolution of each channel by itself, which is
//!   elementwise operations on windows of an image.
//!
//! Statistics (what follows from reductions alone) stay `f32`, but where they are compared with what is rounded: backward finds the
//! largest element of a row as the one that equals it. Within backward, sums (gradients of biases) read the `bf16` form of the operands
//! of products, too.
//!
//! Invariant: without rounding, the program computes what it did.

use crate::{Rebuild, forward_set};
use kernfusion_ir::{Cast, DType, Graph, KernelEntry, Op, ReduceOp, Result, ValueId};
use std::collections::{BTreeMap, BTreeSet};

/// A value that would have to be computed again from more tensors than this, or in more operations, is kept itself. A bias and an activation
/// function are ten operations at most.
const MOST_SOURCES: usize = 2;
const MOST_OPERATIONS: usize = 16;

pub(crate) fn narrow_kept_values(graph: &mut Graph) -> Result<()> {
    let forward = forward_set::forward(graph);
    let kept = Kept::choose(graph, &forward);
    let mut narrowing = Narrowing {
        old: graph,
        forward: &forward,
        kept: &kept,
        rebuild: Rebuild::new(graph),
        narrow: BTreeMap::new(),
        views: BTreeMap::new(),
        seen: BTreeMap::new(),
    };
    for id in graph.ids() {
        narrowing.node(id)?;
    }
    *graph = narrowing.rebuild.finish();
    Ok(())
}

/// How backward gets at forward's values.
struct Kept {
    /// Values whose `bf16` form is in memory: operands of products, and copies made for backward.
    narrow: Vec<bool>,
    /// Whether a value is more than a statistic, a parameter or a generated one.
    full: Vec<bool>,
    /// Whether a value follows elementwise from what is in memory.
    follows: Vec<bool>,
}

impl Kept {
    fn choose(graph: &Graph, forward: &[bool]) -> Kept {
        let mut narrow = vec![false; graph.len()];
        for id in graph.ids() {
            if let Some(wide) = narrowed(graph, id) {
                narrow[wide.index()] = true;
            }
        }
        let full = full(graph);
        let needed = needed(graph, forward);
        // How a value follows elementwise from tensors in memory, if it does.
        let mut derivations: Vec<Option<Derivation>> = Vec::with_capacity(graph.len());
        for id in graph.ids() {
            let node = &graph[id];
            let found = if !full[id.index()] {
                Some(Derivation::default())
            } else if narrow[id.index()] || node.ty.dtype == DType::BF16 {
                Some(Derivation::of(id))
            } else {
                match node.op.entry() {
                    KernelEntry::Scalar | KernelEntry::View => Derivation::of_node(graph, id, &derivations),
                    KernelEntry::Input
                    | KernelEntry::Generated
                    | KernelEntry::Movement
                    | KernelEntry::Reduction
                    | KernelEntry::Contraction
                    | KernelEntry::Scatter
                    | KernelEntry::Loop
                    | KernelEntry::Collective => None,
                }
            };
            let is_needed = forward[id.index()] && needed[id.index()];
            let copied = found.is_none() && is_needed && node.ty.dtype == DType::F32;
            narrow[id.index()] |= copied;
            derivations.push(if copied { Some(Derivation::of(id)) } else { found });
        }
        let follows = derivations.iter().map(Option::is_some).collect();
        Kept { narrow, full, follows }
    }
}

/// How a value follows from tensors in memory: which, and by what elementwise operations.
#[derive(Default)]
struct Derivation {
    sources: BTreeSet<ValueId>,
    operations: BTreeSet<ValueId>,
}

impl Derivation {
    /// Of what is in memory.
    fn of(source: ValueId) -> Self {
        Derivation { sources: BTreeSet::from([source]), operations: BTreeSet::new() }
    }

    /// Of a view or an elementwise operation, from those of its operands, if it is short.
    fn of_node(graph: &Graph, id: ValueId, known: &[Option<Derivation>]) -> Option<Self> {
        let node = &graph[id];
        let mut all = Derivation::default();
        for operand in &node.operands {
            let Derivation { sources, operations } = known[operand.index()].as_ref()?;
            all.sources.extend(sources);
            all.operations.extend(operations);
        }
        all.operations.extend((node.op.entry() == KernelEntry::Scalar).then_some(id));
        (all.sources.len() <= MOST_SOURCES && all.operations.len() <= MOST_OPERATIONS).then_some(all)
    }
}

/// The `f32` value of which a node is the `bf16` form.
fn narrowed(graph: &Graph, id: ValueId) -> Option<ValueId> {
    let node = &graph[id];
    let wide = *node.operands.first()?;
    (matches!(node.op, Op::Cast(_)) && node.ty.dtype == DType::BF16 && graph[wide].ty.dtype == DType::F32)
        .then_some(wide)
}

fn is_sum(op: &Op) -> bool {
    matches!(op, Op::Reduce(reduce) if reduce.op == ReduceOp::Sum)
}

/// Whether a value is a number that `bf16` has.
fn is_short(graph: &Graph, id: ValueId) -> bool {
    let node = &graph[id];
    match &node.op {
        Op::Constant(constant) => DType::BF16.round(constant.value.value()) == constant.value.value(),
        op => op.entry() == KernelEntry::View && is_short(graph, node.operands[0]),
    }
}

/// Whether each value depends on more than parameters and statistics.
fn full(graph: &Graph) -> Vec<bool> {
    let mut full: Vec<bool> = Vec::with_capacity(graph.len());
    for id in graph.ids() {
        let node = &graph[id];
        full.push(match node.op.entry() {
            KernelEntry::Input | KernelEntry::Generated | KernelEntry::Reduction => false,
            KernelEntry::Movement
            | KernelEntry::Contraction
            | KernelEntry::Scatter
            | KernelEntry::Loop
            | KernelEntry::Collective => true,
            KernelEntry::Scalar | KernelEntry::View => {
                node.operands.iter().any(|operand| full[operand.index()])
            }
        });
    }
    full
}

/// The forward values, behind views, that backward reads other than through products.
fn needed(graph: &Graph, forward: &[bool]) -> Vec<bool> {
    let mut needed = vec![false; graph.len()];
    for id in graph.ids().rev() {
        let reads = match graph[id].op.entry() {
            KernelEntry::View => needed[id.index()],
            KernelEntry::Contraction => false,
            KernelEntry::Scalar | KernelEntry::Movement | KernelEntry::Reduction | KernelEntry::Scatter => {
                !forward[id.index()] && narrowed(graph, id).is_none()
            }
            KernelEntry::Input | KernelEntry::Generated | KernelEntry::Loop | KernelEntry::Collective => {
                false
            }
        };
        let operands = graph[id].operands.iter().filter(|_| reads);
        operands.for_each(|operand| {
            let shown = graph[*operand].op.entry() == KernelEntry::View;
            needed[operand.index()] |= forward[operand.index()] || shown;
        });
    }
    needed
}

struct Narrowing<'a> {
    old: &'a Graph,
    forward: &'a [bool],
    kept: &'a Kept,
    rebuild: Rebuild<'a>,
    /// The `bf16` form of old values that have one by now.
    narrow: BTreeMap<ValueId, ValueId>,
    /// Views of `bf16` values that there are, by what they show.
    views: BTreeMap<ValueId, Vec<ValueId>>,
    /// Old values as backward sees them.
    seen: BTreeMap<ValueId, ValueId>,
}

impl Narrowing<'_> {
    fn node(&mut self, id: ValueId) -> Result<()> {
        let (graph, node) = (self.old, &self.old[id]);
        if let Some(wide) = narrowed(graph, id) {
            let narrow = self.narrow(wide)?;
            self.rebuild.replace(id, narrow);
            return Ok(());
        }
        let entry = node.op.entry();
        let is_view = entry == KernelEntry::View;
        if is_view && node.ty.dtype == DType::BF16 && node.operands.len() == 1 {
            let view = self.view(id, self.rebuild.place(node.operands[0]))?;
            self.rebuild.replace(id, view);
            return Ok(());
        }
        if self.forward[id.index()] || is_view || entry == KernelEntry::Contraction {
            self.rebuild.copy(id)?;
        } else {
            let operands = self.operands(id, is_sum(&node.op))?;
            let new = self.rebuild.new.add(node.op.clone(), &operands, node.origin.clone())?;
            self.rebuild.replace(id, new);
        }
        // At once, so that it is computed where the value is.
        if self.kept.narrow[id.index()] {
            self.narrow(id)?;
        }
        Ok(())
    }

    /// The `bf16` form of a value.
    fn narrow(&mut self, wide: ValueId) -> Result<ValueId> {
        if let Some(&narrow) = self.narrow.get(&wide) {
            return Ok(narrow);
        }
        let place = self.rebuild.place(wide);
        let narrow = self.rebuild.builder(wide).op(Cast { dtype: DType::BF16 }, &[place])?;
        self.narrow.insert(wide, narrow);
        Ok(narrow)
    }

    /// The `bf16` form of a view, as products read it, of what has one.
    fn narrow_view(&mut self, value: ValueId) -> Result<Option<ValueId>> {
        let node = &self.old[value];
        if self.kept.narrow[value.index()] {
            return self.narrow(value).map(Some);
        }
        if node.op.entry() != KernelEntry::View {
            return Ok(None);
        }
        let Some(shown) = self.narrow_view(node.operands[0])? else { return Ok(None) };
        self.view(value, shown).map(Some)
    }

    /// A view as another one is, of this `bf16` value: the same one for sums and for products.
    fn view(&mut self, like: ValueId, shown: ValueId) -> Result<ValueId> {
        let op = &self.old[like].op;
        let known = self.views.entry(shown).or_default();
        if let Some(&view) = known.iter().find(|view| self.rebuild.new[**view].op == *op) {
            return Ok(view);
        }
        let view = self.rebuild.builder(like).op(op.clone(), &[shown])?;
        self.views.entry(shown).or_default().push(view);
        Ok(view)
    }

    /// The operands of a node as backward sees them. Either all or none that are compared are rounded: the largest element of
    /// a rounded row is the rounded largest element, and no other number.
    fn operands(&mut self, id: ValueId, sums: bool) -> Result<Vec<ValueId>> {
        let node = &self.old[id];
        let operands =
            node.operands.iter().map(|&operand| self.seen(operand, sums)).collect::<Result<Vec<_>>>()?;
        let is_kept = |(old, new): &(&ValueId, &ValueId)| self.rebuild.place(**old) == **new;
        let kept = node.operands.iter().zip(&operands).filter(is_kept).count();
        if !matches!(node.op, Op::Compare(_)) || kept == 0 || kept == operands.len() {
            return Ok(operands);
        }
        let rounded = |(&old, &new): (&ValueId, &ValueId)| {
            if self.rebuild.place(old) != new
                || self.old[old].ty.dtype != DType::F32
                || is_short(self.old, old)
            {
                return Ok(new);
            }
            let narrow = self.narrow(old)?;
            self.rebuild.builder(old).cast(narrow, DType::F32)
        };
        node.operands.iter().zip(&operands).map(rounded).collect()
    }

    /// A value as a node of backward sees it; backward's own values change for sums only.
    fn seen(&mut self, value: ValueId, sums: bool) -> Result<ValueId> {
        let place = self.rebuild.place(value);
        let node = &self.old[value];
        let (entry, is_forward) = (node.op.entry(), self.forward[value.index()]);
        let is_view = entry == KernelEntry::View;
        let is_narrow = self.kept.narrow[value.index()];
        if !self.kept.full[value.index()] || !(is_forward || is_view || sums && is_narrow) {
            return Ok(place);
        }
        // What sums see of backward's own values is not what others see.
        let shared = is_forward.then_some(value);
        if let Some(&seen) = shared.and_then(|value| self.seen.get(&value)) {
            return Ok(seen);
        }
        let narrow = if is_narrow || sums { self.narrow_view(value)? } else { None };
        let seen = if let Some(narrow) = narrow {
            self.rebuild.builder(value).cast(narrow, DType::F32)?
        } else if is_view || self.kept.follows[value.index()] && node.ty.dtype != DType::BF16 {
            let operands = self.operands(value, sums)?;
            let unchanged =
                node.operands.iter().zip(&operands).all(|(&old, &new)| self.rebuild.place(old) == new);
            match unchanged && is_view {
                true => place,
                false => self.rebuild.new.add(node.op.clone(), &operands, node.origin.clone())?,
            }
        } else {
            place
        };
        shared.map(|value| self.seen.insert(value, seen));
        Ok(seen)
    }
}
