//! Which states each rank keeps a part of, and in which form a tail's values are computed then.

use super::RESERVED;
use kernfusion_ir::kernel::Shard;
use kernfusion_ir::{DType, Graph, InputRole, Op, Output, ValueId};
use std::collections::{BTreeMap, BTreeSet};

/// How much of a value a rank computes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Form {
    /// All of it.
    Whole,
    /// This rank's part of its elements in row-major order, as [`Shard`] has it.
    Part,
}

/// How a form of a value is computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Recipe {
    /// As it is, from whole operands.
    Whole,
    /// By the same op from parts.
    Elementwise,
    /// It is the part of its operand.
    View,
    /// The part of one number everywhere.
    Filled,
    /// This rank's part of a state.
    State,
    /// The sum of all ranks' accumulators.
    AllReduce,
    /// The part of that.
    ReduceScatter,
    /// The part is cut from the whole value.
    Cut,
    /// The whole value from the parts of all ranks.
    AllGather,
}

/// What is computed in parts.
#[derive(Debug, Default)]
pub(super) struct Sharded {
    /// The states of which each rank keeps its part.
    pub(super) states: BTreeSet<ValueId>,
    /// They, and all that is computed from them.
    values: BTreeSet<ValueId>,
}

impl Sharded {
    /// The states that a tail alone reads, all of whose uses are elementwise and end in new values of states.
    pub(super) fn of(body: &Graph, tail: &Graph, ranks: usize) -> Self {
        let mut sharded = Sharded::default();
        for (id, name, role) in tail.inputs() {
            let is_tails = role == InputRole::State && is_updated(tail, name) && body.input(name).is_none();
            let ty = &tail[id].ty;
            if !is_tails || ty.dtype != DType::F32 || ty.elements() < ranks {
                continue;
            }
            if let Some(uses) = elementwise_uses(tail, id) {
                sharded.states.insert(id);
                sharded.values.extend(uses);
            }
        }
        sharded
    }

    /// The form in which an output is computed.
    pub(super) fn form(&self, tail: &Graph, output: &Output) -> Form {
        let is_part = output.updates_state
            && tail.input(&output.name).is_some_and(|state| self.states.contains(&state));
        if is_part { Form::Part } else { Form::Whole }
    }

    /// The forms in which each value is needed, in the order in which they are computed.
    pub(super) fn wanted(&self, tail: &Graph) -> BTreeMap<ValueId, Vec<Form>> {
        let mut wanted: BTreeMap<ValueId, BTreeSet<Form>> = BTreeMap::new();
        for output in tail.outputs() {
            let form = self.form(tail, output);
            wanted.entry(output.value).or_default().insert(form);
            // A state that is updated is an input, whether or not its old value counts.
            if let Some(state) = tail.input(&output.name).filter(|_| output.updates_state) {
                wanted.entry(state).or_default().insert(form);
            }
        }
        let mut ordered = BTreeMap::new();
        for id in tail.ids().rev() {
            let mut forms: Vec<_> = wanted.remove(&id).into_iter().flatten().collect();
            let mut at = 0;
            while let Some(&form) = forms.get(at) {
                match self.recipe(tail, id, form, &forms).source() {
                    Source::Own(other) if !forms.contains(&other) => forms.push(other),
                    Source::Own(_) | Source::Nothing => {}
                    Source::Operands(form) => {
                        for &operand in &tail[id].operands {
                            wanted.entry(operand).or_default().insert(form);
                        }
                    }
                }
                at += 1;
            }
            if !forms.is_empty() {
                forms.sort();
                if self.values.contains(&id) {
                    forms.reverse();
                }
                ordered.insert(id, forms);
            }
        }
        ordered
    }

    /// How a form of a value is computed, where these forms of it are needed.
    pub(super) fn recipe(&self, tail: &Graph, id: ValueId, form: Form, forms: &[Form]) -> Recipe {
        let node = &tail[id];
        let is_accumulator = matches!(&node.op, Op::Input(input) if input.role == InputRole::State && input.name.starts_with(RESERVED));
        match (form, &node.op) {
            (Form::Whole, _) if self.values.contains(&id) => Recipe::AllGather,
            (Form::Whole, _) if is_accumulator => Recipe::AllReduce,
            (Form::Whole, _) => Recipe::Whole,
            (Form::Part, _) if self.states.contains(&id) => Recipe::State,
            (Form::Part, _) if is_accumulator && !forms.contains(&Form::Whole) => Recipe::ReduceScatter,
            (Form::Part, Op::Reshape(_)) => Recipe::View,
            (Form::Part, Op::Broadcast(_)) if tail[node.operands[0]].ty.elements() == 1 => Recipe::Filled,
            (Form::Part, op) if is_elementwise(op) => Recipe::Elementwise,
            (Form::Part, _) => Recipe::Cut,
        }
    }

    /// The states and what they are whole.
    pub(super) fn shards(&self, tail: &Graph, ranks: usize) -> Vec<Shard> {
        let states = tail.inputs().filter(|(id, ..)| self.states.contains(id));
        let shard = |(id, name, _): (ValueId, &str, InputRole)| Shard::new(name, &tail[id].ty, ranks);
        states.map(shard).collect()
    }
}

/// What a form of a value is computed from.
enum Source {
    Nothing,
    /// All operands in this form.
    Operands(Form),
    /// The same value in the other form.
    Own(Form),
}

impl Recipe {
    fn source(self) -> Source {
        match self {
            Recipe::Whole | Recipe::Filled => Source::Operands(Form::Whole),
            Recipe::Elementwise | Recipe::View => Source::Operands(Form::Part),
            Recipe::State | Recipe::AllReduce | Recipe::ReduceScatter => Source::Nothing,
            Recipe::Cut => Source::Own(Form::Whole),
            Recipe::AllGather => Source::Own(Form::Part),
        }
    }
}

/// All that is computed from a state, itself included, if that is elementwise and ends in nothing but new values of states.
fn elementwise_uses(tail: &Graph, state: ValueId) -> Option<BTreeSet<ValueId>> {
    let (mut uses, mut open) = (BTreeSet::from([state]), vec![state]);
    while let Some(id) = open.pop() {
        // What is not a part of a state in the end is gathered, as numbers that ranks exchange.
        let ends = |output: &Output| output.updates_state && tail[id].ty.dtype == DType::F32;
        if !tail.outputs().iter().filter(|output| output.value == id).all(ends) {
            return None;
        }
        for (user, _) in tail.users(id) {
            let op = &tail[user].op;
            if !(is_elementwise(op) || matches!(op, Op::Reshape(_))) {
                return None;
            }
            if uses.insert(user) {
                open.push(user);
            }
        }
    }
    Some(uses)
}

fn is_elementwise(op: &Op) -> bool {
    matches!(op, Op::Unary(_) | Op::Binary(_) | Op::Compare(_) | Op::Select(_) | Op::Cast(_))
}

/// Whether a program updates the state of this name.
fn is_updated(graph: &Graph, name: &str) -> bool {
    graph.outputs().iter().any(|output| output.updates_state && output.name == name)
}
