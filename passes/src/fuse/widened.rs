//! States that are kept in fewer bits than they are read in.

use super::continued_state;
use kernfusion_ir::{Binary, Graph, InputRole, KernelEntry, Op, ValueId};

/// What a value is made of.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Made {
    /// Of constants and coordinates.
    Numbers,
    /// A state, after the update of a part or before, or a view of one.
    State,
    /// Of a state, which was widened.
    Widened,
    /// Anything else.
    Computed,
}

/// Which values are states that are kept in fewer bits than they are read in: widened, and perhaps unpacked from bytes and multiplied by
/// scales. To read them as they are kept takes less than to write them out.
pub(crate) fn widened_states(graph: &Graph) -> Vec<bool> {
    let mut made: Vec<Made> = Vec::with_capacity(graph.len());
    for id in graph.ids() {
        let of = |operand: &ValueId| made[operand.index()];
        made.push(made_of(graph, id, of));
    }
    made.into_iter().map(|made| made == Made::Widened).collect()
}

fn made_of(graph: &Graph, id: ValueId, of: impl Fn(&ValueId) -> Made) -> Made {
    let node = &graph[id];
    let is_cheap = match node.op {
        Op::Cast(_) => true,
        Op::Binary(op) => !matches!(op, Binary::Div | Binary::Pow),
        _ => false,
    };
    let mut operands = node.operands.iter().map(&of);
    match &node.op {
        Op::Input(input) if input.role == InputRole::State => Made::State,
        Op::Constant(_) | Op::Iota(_) => Made::Numbers,
        Op::DynamicUpdate(_) if continued_state(graph, id).is_some() => Made::State,
        Op::Cast(cast) if of(&node.operands[0]) == Made::State => {
            let is_wider = cast.dtype.size() > graph[node.operands[0]].ty.dtype.size();
            if is_wider { Made::Widened } else { Made::Computed }
        }
        op if op.entry() == KernelEntry::View => of(&node.operands[0]),
        _ if !is_cheap || operands.clone().any(|operand| operand == Made::Computed) => Made::Computed,
        _ if operands.clone().all(|operand| operand == Made::Numbers) => Made::Numbers,
        _ if operands.any(|operand| operand == Made::Widened) => Made::Widened,
        _ => Made::Computed,
    }
}
