//! Microbatches: a program as a *body*, which runs on one microbatch after another, and a *tail*, which runs once.
//!
//! Inputs that carry the batch give it to whatever is computed from them, axis by axis (`axis_map`), until a reduction or a
//! product sums over it. Such a sum is *partial* in a microbatch; the body adds it to an accumulator, a state that the first
//! microbatch clears. What needs completed sums, and what has nothing to do with the batch, is the tail's: of a training step
//! the clipping, the update, the loss.
//!
//! ```text
//! x: f32[64, 9]                      body: x: f32[8, 9], microbatch.index: u32[]      tail:
//! s = reduce sum x [0]         →       s = reduce sum x [0]
//! output s, update w ← w − s           microbatch.sum.0 ← (part = 0 ? 0 : microbatch.sum.0) + s      w ← w − microbatch.sum.0
//! ```
//!
//! Several ranks do the same side by side ([`exchange`]): each runs the body for its microbatches, and the tail begins with the sums of
//! all ranks' accumulators. Nothing else changes, so what can be divided for memory can be divided among ranks.
//!
//! Invariants: body and tail together compute what the program does, up to the order of sums; random numbers and
//! coordinates of a microbatch are those of its elements in the whole; parts run in ascending order, and so does every sum. The
//! transformation is right whatever inputs are said to carry the batch: a choice that does not fit is refused, never
//! wrong.

mod axis_map;
mod batch_dependence;
mod body;
mod estimate;
mod lookup;
mod loops;
mod ranks;
mod shard;
mod tail;

pub use estimate::{BatchTypes, rough_bytes};
pub use ranks::exchange;

use batch_dependence::Classes;
use kernfusion_ir::{Graph, IrError, Op, Origin, ValueId};

/// How the names of all inputs and states that tiling adds begin; no program may use such names itself.
pub const RESERVED: &str = "microbatch.";

/// The body's scalar input of type `u32[]`: which microbatch is computed, from 0.
pub const INDEX: &str = "microbatch.index";

/// How a batch is divided: into parts of equal extent, those of the first rank first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Division {
    /// How many microbatches each rank computes, one after another.
    pub microbatches: usize,
    /// How many ranks compute side by side.
    pub ranks: usize,
}

impl Division {
    /// Into microbatches of one process.
    pub fn microbatches(microbatches: usize) -> Self {
        Division { microbatches, ranks: 1 }
    }

    /// How many parts there are in all.
    pub fn parts(self) -> usize {
        self.microbatches.saturating_mul(self.ranks)
    }
}

/// A program cut into microbatches.
#[derive(Debug, Clone)]
pub struct Divided {
    /// To be run for each part in ascending order. Takes the part's microbatch of each input in `batched`.
    pub body: Graph,
    /// To be run after the last part.
    pub tail: Graph,
    /// How the batch is divided.
    pub division: Division,
    /// The inputs that are given to the body in microbatches along their first axis.
    pub batched: Vec<String>,
    /// The body's results, each with the axis along which the microbatches' results make the whole. All others are the tail's.
    pub joined: Vec<(String, usize)>,
    /// The types of the body's values, to estimate what other numbers of microbatches take.
    pub types: BatchTypes,
}

/// Why a program cannot be cut.
#[derive(Debug, thiserror::Error)]
pub enum MicrobatchError {
    /// The batch does not pass through an op.
    #[error("cannot compute in microbatches: {op}: {reason}{origin}")]
    Refused {
        /// The op's name.
        op: &'static str,
        /// What stands in the way.
        reason: String,
        /// Where the user wrote it.
        origin: Origin,
    },
    /// No input has a first axis that can be divided into that many microbatches.
    #[error("cannot compute in {microbatches} microbatches: {reason}")]
    Batch {
        /// How many microbatches were asked for.
        microbatches: usize,
        /// Why that is not possible.
        reason: String,
    },
    /// A rewritten node breaks a type rule: a mistake of this pass.
    #[error(transparent)]
    Graph(#[from] IrError),
}

/// The extent of the batch: that of the first axis of the first data input that has axes.
pub fn batch_extent(graph: &Graph) -> Option<usize> {
    inputs_with_axes(graph).map(|id| graph[id].ty.shape[0]).next()
}

/// The numbers next to one that divide an extent.
fn nearest(extent: usize, number: usize) -> String {
    let divides = |other: &usize| extent.is_multiple_of(*other);
    let below = (1..number.min(extent.saturating_add(1))).rev().find(divides);
    let above = (number.saturating_add(1)..=extent).find(divides);
    match (below, above) {
        (Some(below), Some(above)) => format!(": the nearest that divide it are {below} and {above}"),
        (Some(nearest), None) | (None, Some(nearest)) => {
            format!(": the nearest that divides it is {nearest}")
        }
        (None, None) => String::new(),
    }
}

/// Cuts a program into microbatches, of one process or of several ranks. Every data input whose first axis has the extent of the batch
/// ([`batch_extent`]) is cut along that axis; all others are whole in every microbatch.
///
/// # Errors
/// If the batch cannot be divided so, or does not pass through an op; names the op and the user's line.
pub fn divide(graph: &Graph, division: Division) -> Result<Divided, MicrobatchError> {
    let microbatches = division.parts();
    let extent = batch_extent(graph);
    let reason = match extent {
        None => Some("no input has a batch axis".to_string()),
        Some(extent) if microbatches == 0 || extent == 0 || extent % microbatches != 0 => {
            Some(format!("the batch of {extent} is not divisible by that{}", nearest(extent, microbatches)))
        }
        Some(_) => None,
    };
    if let Some(reason) = reason {
        return Err(MicrobatchError::Batch { microbatches, reason });
    }
    if let Some((id, ..)) = graph.inputs().find(|(_, name, _)| name.starts_with(RESERVED)) {
        return Err(refused(graph, id, format!("names that begin with \"{RESERVED}\" are reserved")));
    }
    let batched = batched(graph);
    let dependences = Classes::of(graph, &batched, microbatches)?;
    if division.ranks > 1 {
        ranks::check(graph, &dependences)?;
    }
    let body = body::body(graph, &dependences, microbatches)?;
    let tail = tail::tail(graph, &dependences)?;
    let name = |id: &ValueId| match &graph[*id].op {
        Op::Input(input) => input.name.clone(),
        _ => unreachable!("only inputs are batched from the start"),
    };
    let batched = batched.iter().map(name).filter(|name| body.input(name).is_some()).collect();
    let joined = dependences.sliced_outputs(graph).into_iter();
    let joined = joined.filter(|(output, _)| !output.updates_state);
    let joined = joined.map(|(output, axis)| (output.name.clone(), axis));
    let types = BatchTypes::of(graph, &dependences, microbatches);
    Ok(Divided { joined: joined.collect(), body, tail, division, batched, types })
}

/// The inputs that carry the batch.
fn batched(graph: &Graph) -> Vec<ValueId> {
    let extent = batch_extent(graph);
    inputs_with_axes(graph).filter(|&id| Some(graph[id].ty.shape[0]) == extent).collect()
}

fn inputs_with_axes(graph: &Graph) -> impl Iterator<Item = ValueId> {
    let data = graph.inputs().filter(|(_, _, role)| *role == kernfusion_ir::InputRole::Data);
    data.map(|(id, ..)| id).filter(|&id| graph[id].ty.rank() > 0)
}

fn refused(graph: &Graph, id: ValueId, reason: impl Into<String>) -> MicrobatchError {
    let node = &graph[id];
    MicrobatchError::Refused { op: node.op.name(), reason: reason.into(), origin: node.origin.clone() }
}

/// The name of an accumulator. It says the type, so that programs over the same states share those that agree.
fn accumulator(number: usize, ty: &kernfusion_ir::TensorType) -> String {
    format!("{RESERVED}sum.{number}.{ty}")
}

/// The type in which sums of a value are accumulated: `f32` for half precision, whose sums would lose their digits.
fn accumulator_type(ty: &kernfusion_ir::TensorType) -> kernfusion_ir::TensorType {
    use kernfusion_ir::DType;
    match ty.dtype {
        DType::BF16 | DType::F16 => kernfusion_ir::TensorType::new(DType::F32, ty.shape.clone()),
        DType::F32 | DType::F64 | DType::I32 | DType::U32 | DType::I8 | DType::Bool => ty.clone(),
    }
}
