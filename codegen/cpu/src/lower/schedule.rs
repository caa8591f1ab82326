//! Cuts a region into stages: what is one loop over the row, what is a call of a tile primitive, and which values
//! wait in scratch rows in between.
//!
//! A value *varies* if it depends on a column axis; all others are computed once a row. Varying values are either
//! *lanes*, computed in a loop, or *calls*, which a primitive computes for the whole row at once (`exp`, random
//! bits). A reduction over columns is a call, too, with a scalar result:
//! of a row, or of the running results that a loop keeps of a long one. Stage `s` runs its calls and scalars in the
//! region's order, then one loop.
//!
//! ```text
//! softmax     stage 0                          stage 1
//! calls       %1 = max of x, where it lies     %3 = exp of row 0, in place
//!                                              %4 = sum of row 0
//! loop        %2 = x − %1, into row 0          store row 0 / %4
//! ```

use super::row::{Row, Write, WriteMode};
use super::wide::{self, Vectors, WideLoop};
use kernfusion_ir::kernel::{InstrKind, Scalar};
use kernfusion_ir::{Binary, DType, Unary};
use std::collections::{BTreeMap, BTreeSet};

/// Values that cost at most this many instructions are computed again in a later loop rather than kept.
const CHEAP: usize = 4;

/// Bytes of scratch rows from which on loops keep running results of what is reduced instead: half of L1.
const LONG_ROWS: usize = 16 << 10;

/// Where and when each value of a row is computed.
#[derive(Debug, Default)]
pub(super) struct RowSchedule {
    /// Whether anything needs the value.
    pub(super) live: Vec<bool>,
    /// The stage from whose loop (a call: from whose calls) on the value exists.
    pub(super) ready: Vec<usize>,
    /// The scratch row that holds the value, if one does.
    pub(super) row: Vec<Option<usize>>,
    /// What each stage's loop does.
    pub(super) loops: Vec<Loop>,
    /// The number of scratch rows.
    pub(super) rows: usize,
    /// The reductions of which loops keep [running results](Loop::running), numbered.
    pub(super) running: BTreeMap<Scalar, usize>,
    /// Each stage's loop over whole vectors, where it can be made so.
    pub(super) wide: Vec<Option<WideLoop>>,
    /// Whether loops compute elementary functions themselves.
    inlines: bool,
}

/// The loop of one stage.
#[derive(Debug, Default)]
pub(super) struct Loop {
    /// Varying values that the loop computes.
    pub(super) computes: BTreeSet<Scalar>,
    /// Varying values that it reads from scratch rows.
    pub(super) reads: BTreeSet<Scalar>,
    /// Values that it writes to scratch rows; one that does not vary fills its row.
    pub(super) spills: BTreeSet<Scalar>,
    /// Reductions of which it keeps running results, in lanes that a primitive reduces in the end. Scratch rows of what they reduce would
    /// not stay in L1.
    pub(super) running: BTreeSet<Scalar>,
    /// Which of the row's writes it does.
    pub(super) writes: Vec<usize>,
}

impl RowSchedule {
    /// Whether a primitive computes this instruction where it varies.
    pub(super) fn is_call(&self, kind: &InstrKind) -> bool {
        is_call(kind) && !(self.inlines && is_elementary(kind))
    }

    /// Records each stage's loop over whole vectors; tells whether all of them can be made so.
    fn widen(&mut self, row: &Row, vectors: Vectors) -> bool {
        let record = |steps: &Loop| {
            let everywhere = wide::record(row, steps, false, vectors)?;
            let inside = wide::record(row, steps, true, vectors).filter(|inside| *inside != everywhere);
            Some(WideLoop { everywhere, inside })
        };
        self.wide = self.loops.iter().map(record).collect();
        self.is_wide()
    }

    /// Whether all loops are over whole vectors.
    pub(super) fn is_wide(&self) -> bool {
        self.loops.iter().zip(&self.wide).all(|(steps, wide)| steps.is_empty() || wide.is_some())
    }

    /// Whether a loop knows which point is which, so that a run is not cut into pieces.
    pub(super) fn knows_points(&self) -> bool {
        self.wide.iter().flatten().any(WideLoop::knows_points)
    }

    /// What each stage calls, and what its loop reads, computes, keeps and writes, in lines.
    pub(super) fn text(&self, row: &Row) -> String {
        let mut lines = vec![];
        let instr = |value: Scalar| {
            let kind = &row.region.instr(value).kind;
            let operands = kind.operands().into_iter().map(|operand| format!(" %{}", operand.0));
            format!("%{} = {}{}", value.0, kind.name(), operands.collect::<String>())
        };
        let scratch = |value: &Scalar| match self.row[value.0 as usize] {
            Some(row) => format!("row {row}"),
            None => "no row".into(),
        };
        let values = || (0..row.region.instrs.len()).map(|at| Scalar(at as u32));
        for (stage, (steps, wide)) in self.loops.iter().zip(&self.wide).enumerate() {
            lines.push(format!("stage {stage}"));
            let called = values().filter(|value| {
                let (at, kind) = (value.0 as usize, &row.region.instr(*value).kind);
                let calls = matches!(kind, InstrKind::Reduce(..)) || row.varies(*value) && self.is_call(kind);
                self.live[at] && self.ready[at] == stage && calls
            });
            lines.extend(called.map(|value| format!("  call {}", instr(value))));
            if steps.is_empty() {
                continue;
            }
            let kind = match wide {
                Some(wide) => {
                    let over_runs = if row.runs_within { " over runs" } else { "" };
                    format!(" of {}{over_runs}", wide.vectors().name())
                }
                None => String::new(),
            };
            lines.push(format!("  loop{kind}"));
            lines.extend(steps.reads.iter().map(|value| format!("    %{} = {}", value.0, scratch(value))));
            lines.extend(steps.computes.iter().map(|value| format!("    {}", instr(*value))));
            lines.extend(steps.spills.iter().map(|value| format!("    {} = %{}", scratch(value), value.0)));
            lines.extend(steps.running.iter().map(|value| format!("    running {}", instr(*value))));
            lines.extend(steps.writes.iter().map(|&at| {
                let write = &row.writes[at];
                let verb = match write.mode {
                    WriteMode::Set => "store".into(),
                    WriteMode::Add => "add".into(),
                    WriteMode::Accumulate(op) => format!("accumulate {}", op.name()),
                };
                format!("    {verb} %{}", write.value.0)
            }));
        }
        lines.into_iter().map(|line| line + "\n").collect()
    }

    /// The stage in which a write is done.
    pub(super) fn write_stage(&self, write: &Write) -> usize {
        write.operands().map(|value| self.ready[value.0 as usize]).max().unwrap_or(0)
    }
}

impl Loop {
    /// Whether there is nothing to do.
    pub(super) fn is_empty(&self) -> bool {
        self.spills.is_empty() && self.running.is_empty() && self.writes.is_empty()
    }
}

/// Whether a primitive computes this instruction.
pub(super) fn is_call(kind: &InstrKind) -> bool {
    match kind {
        InstrKind::Unary(op, _) => match op {
            Unary::Exp | Unary::Log | Unary::Tanh | Unary::Sigmoid | Unary::Erf | Unary::Sin | Unary::Cos => {
                true
            }
            Unary::Neg
            | Unary::Abs
            | Unary::Sign
            | Unary::Floor
            | Unary::Round
            | Unary::Sqrt
            | Unary::Not => false,
        },
        InstrKind::Binary(op, ..) => *op == Binary::Pow,
        InstrKind::Random { .. } => true,
        InstrKind::Constant(_)
        | InstrKind::Coordinate(_)
        | InstrKind::Load { .. }
        | InstrKind::Producer(_)
        | InstrKind::Compare(..)
        | InstrKind::Select(..)
        | InstrKind::Cast(_)
        | InstrKind::InRange(_)
        | InstrKind::Reduce(..) => false,
    }
}

/// Whether this is an elementary function that a loop over whole vectors can compute itself.
fn is_elementary(kind: &InstrKind) -> bool {
    matches!(kind, InstrKind::Unary(Unary::Exp | Unary::Log | Unary::Tanh | Unary::Sigmoid | Unary::Erf, _))
}

/// The schedule of a row program, with loops over whole vectors if there are `vectors` to make them for. Memory that
/// a write may change is read again in a later stage only if all writes come later still.
pub(super) fn schedule(row: &Row, vectors: Option<Vectors>) -> RowSchedule {
    if let Some(vectors) = vectors {
        let mut inlined = scheduled(row, true);
        if inlined.widen(row, vectors) {
            return inlined;
        }
    }
    let mut plan = scheduled(row, false);
    match vectors {
        Some(vectors) => {
            plan.widen(row, vectors);
        }
        None => plan.wide.resize_with(plan.loops.len(), || None),
    }
    plan
}

/// Loops of whole vectors compute elementary functions themselves, and keep running results.
fn scheduled(row: &Row, is_wide: bool) -> RowSchedule {
    let plan = |trusts_memory: bool| {
        let schedule = RowSchedule { inlines: is_wide, ..RowSchedule::default() };
        let mut planner = Planner { row, trusts_memory, schedule };
        planner.mark_live();
        planner.assign_stages();
        if is_wide {
            planner.choose_running();
        }
        planner.fill_loops();
        planner.assign_rows();
        planner
    };
    let hopeful = plan(true);
    if hopeful.reads_before_writes() { hopeful.schedule } else { plan(false).schedule }
}

struct Planner<'r> {
    row: &'r Row,
    /// Whether what has been read once can be read again.
    trusts_memory: bool,
    schedule: RowSchedule,
}

impl Planner<'_> {
    fn kind(&self, value: Scalar) -> &InstrKind {
        &self.row.region.instr(value).kind
    }

    fn values(&self) -> impl Iterator<Item = Scalar> + use<> {
        (0..self.row.region.instrs.len() as u32).map(Scalar)
    }

    fn varies(&self, value: Scalar) -> bool {
        self.row.varies(value)
    }

    fn ready(&self, value: Scalar) -> usize {
        self.schedule.ready[value.0 as usize]
    }

    fn is_lanes(&self, value: Scalar) -> bool {
        self.varies(value) && !self.schedule.is_call(self.kind(value))
    }

    /// Finds out which values anything needs.
    fn mark_live(&mut self) {
        let region = &self.row.region;
        let needed = region.needed(self.row.writes.iter().flat_map(Write::operands), |_| false);
        let values = (0..region.instrs.len()).map(|at| Scalar(at as u32));
        self.schedule.live = values.map(|value| needed.contains(&value)).collect();
    }

    /// The operands whose whole rows a call reads.
    fn row_operands(&self, value: Scalar) -> Vec<Scalar> {
        match self.kind(value) {
            InstrKind::Reduce(_, _, x) => vec![*x],
            InstrKind::Unary(_, x) if self.calls(value) => vec![*x],
            InstrKind::Binary(_, x, y) if self.calls(value) => vec![*x, *y],
            InstrKind::Random { element, .. } if self.calls(value) => {
                let terms = element.indirect.iter().map(|term| term.value);
                terms.filter(|&value| self.varies(value)).collect()
            }
            _ => vec![],
        }
    }

    fn calls(&self, value: Scalar) -> bool {
        self.varies(value) && self.schedule.is_call(self.kind(value))
    }

    /// Whether a call can read the operand where it lies in memory.
    fn in_memory(&self, value: Scalar) -> bool {
        self.varies(value) && self.may_read_again(value) && self.row.lies_in_memory(value)
    }

    fn may_read_again(&self, value: Scalar) -> bool {
        self.trusts_memory || !self.row.is_clobbered(value)
    }

    /// Whether no write comes in an earlier stage than a read of memory that it may change.
    fn reads_before_writes(&self) -> bool {
        let writes = self.row.writes.iter().map(|write| self.schedule.write_stage(write));
        let Some(first) = writes.min() else { return true };
        let clobbered = |&&value: &&Scalar| self.row.is_clobbered(value);
        let loops = self.schedule.loops.iter().skip(first + 1);
        let in_loops = loops.flat_map(|a_loop| &a_loop.computes).filter(clobbered).count();
        let late =
            self.values().filter(|&value| self.schedule.live[value.0 as usize] && self.ready(value) > first);
        let in_calls = late.flat_map(|value| self.row_operands(value)).filter(|value| clobbered(&value));
        in_loops == 0 && in_calls.count() == 0
    }

    fn assign_stages(&mut self) {
        for value in self.values() {
            let rows = self.row_operands(value);
            let stage = |operand: Scalar| {
                let stage = self.ready(operand);
                let waits = rows.contains(&operand) && !self.calls(operand) && !self.in_memory(operand);
                stage + usize::from(waits)
            };
            let ready = self.kind(value).operands().into_iter().map(stage).max();
            self.schedule.ready.push(ready.unwrap_or(0));
        }
        let live = self.values().filter(|value| self.schedule.live[value.0 as usize]);
        let last = live.map(|value| self.ready(value)).max().unwrap_or(0);
        self.schedule.loops.resize_with(last + 1, Loop::default);
    }

    /// Reductions of what loops compute are done there if scratch rows of it would be long.
    fn choose_running(&mut self) {
        let is_running = |value: &Scalar| match self.kind(*value) {
            InstrKind::Reduce(_, _, x) => {
                let is_word =
                    !matches!(self.row.region.instr(*x).dtype, DType::F64 | DType::I8 | DType::Bool);
                self.schedule.live[value.0 as usize] && self.is_lanes(*x) && !self.in_memory(*x) && is_word
            }
            _ => false,
        };
        let mut all: Vec<Scalar> = self.values().filter(is_running).collect();
        // Those of a loop lie side by side.
        all.sort_by_key(|&value| self.ready(value));
        let points: usize = self.row.axes[self.row.columns()].iter().product();
        if all.len() * points * 4 > LONG_ROWS {
            self.schedule.running = all.into_iter().zip(0..).collect();
        }
    }

    /// The operands whose whole rows a reduction or a call reads, and not a loop for it.
    fn awaited_operands(&self, value: Scalar) -> Vec<Scalar> {
        if self.schedule.running.contains_key(&value) { vec![] } else { self.row_operands(value) }
    }

    /// From the last stage to the first, since a later loop may ask an earlier one to keep a value.
    fn fill_loops(&mut self) {
        let live: Vec<_> = self.values().filter(|value| self.schedule.live[value.0 as usize]).collect();
        for operand in live.into_iter().flat_map(|value| self.awaited_operands(value)).collect::<Vec<_>>() {
            if !self.calls(operand) && !self.in_memory(operand) {
                self.spill(operand);
            }
        }
        for value in self.schedule.running.keys().copied().collect::<Vec<_>>() {
            let stage = self.row_operands(value).into_iter().map(|operand| self.ready(operand)).max();
            self.schedule.loops[stage.expect("a reduction has an operand")].running.insert(value);
        }
        for stage in (0..self.schedule.loops.len()).rev() {
            let here =
                |write: &Write| self.row.is_in_loop(write) && self.schedule.write_stage(write) == stage;
            let writes = self.row.writes.iter().enumerate().filter(|(_, write)| here(write));
            let writes: Vec<_> = writes.map(|(at, _)| at).collect();
            let roots = writes.iter().flat_map(|&at| self.row.writes[at].operands());
            let steps = &self.schedule.loops[stage];
            let reduced = steps.running.iter().flat_map(|&value| self.row_operands(value));
            let roots: Vec<_> = roots.chain(steps.spills.iter().copied()).chain(reduced).collect();
            self.schedule.loops[stage].writes = writes;
            roots.into_iter().for_each(|root| self.need(root, stage));
        }
    }

    fn spill(&mut self, value: Scalar) {
        let stage = self.ready(value);
        self.schedule.loops[stage].spills.insert(value);
    }

    /// Makes the loop of `stage` compute or read a value.
    fn need(&mut self, value: Scalar, stage: usize) {
        let known = &self.schedule.loops[stage];
        if !self.varies(value) || known.computes.contains(&value) || known.reads.contains(&value) {
            return;
        }
        let ready = self.ready(value);
        let spilled = self.schedule.loops[ready].spills.contains(&value);
        let again = self.left(value, if spilled { 1 } else { CHEAP }).is_some();
        if self.is_lanes(value) && (ready == stage || again) {
            self.schedule.loops[stage].computes.insert(value);
            for operand in self.row.operands(value) {
                self.need(operand, stage);
            }
            return;
        }
        if self.is_lanes(value) {
            self.spill(value);
        }
        self.schedule.loops[stage].reads.insert(value);
    }

    /// What computing the value again leaves of a budget of instructions, if it is possible within that. An operand with several readers counts
    /// for each of them, which doubles with each link of a chain of `x · x`: so counting ends with the budget.
    fn left(&self, value: Scalar, budget: usize) -> Option<usize> {
        if !self.varies(value) {
            return Some(budget);
        }
        let own = match self.kind(value) {
            InstrKind::Load { .. } if !self.may_read_again(value) => return None,
            InstrKind::Load { .. } => return budget.checked_sub(self.row.load_cost(value)?),
            InstrKind::Coordinate(_) => 1,
            InstrKind::InRange(bounds) => bounds.len(),
            InstrKind::Unary(Unary::Sqrt, _) | InstrKind::Binary(Binary::Div, ..) => return None,
            kind if is_call(kind) => return None,
            InstrKind::Producer(_) => 1,
            _ => match self.row.region.instr(value).dtype {
                DType::BF16 | DType::F16 => 8,
                _ => 1,
            },
        };
        let operands = self.kind(value).operands();
        operands.into_iter().try_fold(budget.checked_sub(own)?, |left, operand| self.left(operand, left))
    }

    /// Gives scratch rows to spilled values and to calls; rows are used again once nothing reads them any more.
    fn assign_rows(&mut self) {
        let count = self.row.region.instrs.len();
        // A clock: each stage has a tick for the call of every instruction, then one for its loop.
        let loop_at = |stage: usize| stage * (count + 1) + count;
        let call_at = |stage: usize, value: Scalar| stage * (count + 1) + value.0 as usize;
        let mut spans: Vec<Option<(usize, usize)>> = vec![None; count];
        let live = |value: &Scalar| self.schedule.live[value.0 as usize];
        for value in self.values().filter(live).filter(|&value| self.calls(value)) {
            let at = call_at(self.ready(value), value);
            spans[value.0 as usize] = Some((at, at));
        }
        for (stage, a_loop) in self.schedule.loops.iter().enumerate() {
            for value in &a_loop.spills {
                spans[value.0 as usize] = Some((loop_at(stage), loop_at(stage)));
            }
        }
        let mut used = |value: Scalar, at: usize| {
            if let Some((_, end)) = &mut spans[value.0 as usize] {
                *end = at.max(*end);
            }
        };
        for (stage, a_loop) in self.schedule.loops.iter().enumerate() {
            a_loop.reads.iter().for_each(|&value| used(value, loop_at(stage)));
        }
        for value in self.values().filter(live) {
            let at = call_at(self.ready(value), value);
            self.awaited_operands(value).into_iter().for_each(|operand| used(operand, at));
        }
        self.schedule.row = vec![None; count];
        let mut order: Vec<_> = self.values().filter(|value| spans[value.0 as usize].is_some()).collect();
        order.sort_by_key(|value| spans[value.0 as usize]);
        let mut ends: Vec<usize> = vec![];
        for value in order {
            let (start, end) = spans[value.0 as usize].expect("filtered above");
            // An elementwise primitive may work in place; a loop may not, since its rows are used in turns.
            let in_place = matches!(self.kind(value), InstrKind::Unary(..)) && self.calls(value);
            let free = ends.iter().position(|&last| last < start || in_place && last == start);
            let row = free.unwrap_or_else(|| {
                ends.push(0);
                ends.len() - 1
            });
            ends[row] = end;
            self.schedule.row[value.0 as usize] = Some(row);
        }
        self.schedule.rows = ends.len();
    }
}

impl Write {
    /// The values that a write needs: what it stores, and the terms of its index.
    pub(super) fn operands(&self) -> impl Iterator<Item = Scalar> {
        std::iter::once(self.value).chain(self.index.indirect.iter().map(|term| term.value))
    }
}

#[cfg(test)]
mod tests {
    use super::super::row::{Target, WriteMode};
    use super::*;
    use kernfusion_ir::ReduceOp;
    use kernfusion_ir::kernel::{BufferId, Direction, Index, Region};

    /// The example at the head of this file; in place the reads are over before the write.
    #[test]
    fn softmax_has_three_stages_and_one_row() {
        let index = Index { strides: vec![64, 1], ..Index::default() };
        let mut region = Region::default();
        let load = InstrKind::Load { buffer: BufferId(0), index: index.clone(), guard: vec![] };
        let x = region.push(load, DType::F32);
        let max = region.push(InstrKind::Reduce(ReduceOp::Max, Direction::Columns, x), DType::F32);
        let d = region.push(InstrKind::Binary(Binary::Sub, x, max), DType::F32);
        let e = region.push(InstrKind::Unary(Unary::Exp, d), DType::F32);
        let sum = region.push(InstrKind::Reduce(ReduceOp::Sum, Direction::Columns, e), DType::F32);
        let y = region.push(InstrKind::Binary(Binary::Div, e, sum), DType::F32);
        let write =
            Write { value: y, target: Target::Slot(0), dtype: DType::F32, index, mode: WriteMode::Set };
        for clobbered in [false, true] {
            let row = Row::new(region.clone(), vec![write.clone()], vec![9, 64], 1, vec![clobbered]);
            let plan = schedule(&row, None);
            assert_eq!(plan.ready, [0, 0, 0, 1, 1, 1]);
            assert_eq!(plan.rows, 1, "exp works in place");
            assert_eq!(plan.loops[0].spills, BTreeSet::from([d]));
            assert_eq!(plan.loops[1].reads, BTreeSet::from([e]));
            assert_eq!(plan.loops[1].writes, [0]);
        }
    }
}
