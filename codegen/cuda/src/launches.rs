//! What rendering makes of a plan: functions of CUDA C++, and the launches that a run consists of.

use super::matrices::{Algorithm, MatrixProduct};
use kernfusion_ir::DType;
use kernfusion_ir::kernel::{BufferId, BufferOffset, Transfer};
use std::collections::BTreeSet;

/// A kernel function. Its arguments are pointers; everything else about it is constant.
#[derive(Debug, Clone, PartialEq)]
pub struct Function {
    /// Unique among the functions of a [`Renderer`](super::Renderer).
    pub name: String,
    /// The source, from the first comment to the last brace; it includes the seam's headers by name.
    pub text: String,
    /// What each argument points to.
    pub parameters: Vec<Parameter>,
    /// Threads of a block.
    pub threads: usize,
    /// Bytes of shared memory that a launch asks for, for each block, beside that of the function's arrays.
    pub shared_bytes: usize,
    /// Blocks that should share a multiprocessor, if they leave enough registers.
    pub blocks: usize,
    /// Whether it takes all of its pointers as one structure, by value.
    pub is_packed: bool,
}

/// An argument of a function.
#[derive(Debug, Clone, PartialEq)]
pub struct Parameter {
    /// The name in the source.
    pub name: String,
    /// The type of the elements that it points to.
    pub dtype: DType,
    /// Whether the function writes them.
    pub is_written: bool,
}

/// A plan as a list of launches.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Launches {
    /// In order.
    pub steps: Vec<StreamOp>,
    /// Bytes of memory that steps of one kernel hand to each other; every kernel may use all of it.
    pub scratch_bytes: usize,
}

impl Launches {
    /// The functions that it launches, of those of the renderer; others are only there to be parts of these.
    pub fn functions(&self) -> BTreeSet<usize> {
        let launches = self.steps.iter().filter_map(|step| match step {
            StreamOp::Launch(launch) => Some(launch.function),
            StreamOp::Clear { .. }
            | StreamOp::Copy { .. }
            | StreamOp::Product(_)
            | StreamOp::Exchange { .. }
            | StreamOp::Gather { .. }
            | StreamOp::Sum { .. } => None,
        });
        launches.collect()
    }

    /// For each kernel of a plan that has this many, after how many steps its results are there. One without steps ends with the one before it.
    #[cfg(feature = "driver")]
    pub(super) fn ends(&self, kernels: usize) -> Vec<usize> {
        let mut ends = vec![0; kernels];
        for (at, step) in self.steps.iter().enumerate() {
            step.kernels().iter().for_each(|&kernel| ends[kernel] = at + 1);
        }
        (1..kernels).for_each(|kernel| ends[kernel] = ends[kernel].max(ends[kernel - 1]));
        ends
    }

    /// Whether ranks exchange something in a run.
    pub fn exchanges(&self) -> bool {
        let exchanges = |step: &StreamOp| {
            matches!(step, StreamOp::Exchange { .. } | StreamOp::Gather { .. } | StreamOp::Sum { .. })
        };
        self.steps.iter().any(exchanges)
    }

    /// How many products of a run a library does.
    pub fn library_products(&self) -> usize {
        self.steps.iter().filter(|step| matches!(step, StreamOp::Product(_))).count()
    }
}

/// One piece of work for the device.
#[derive(Debug, Clone, PartialEq)]
pub enum StreamOp {
    /// Sets a buffer to zeros.
    Clear {
        /// The kernel of the plan that it belongs to.
        kernel: usize,
        /// Where it begins.
        at: BufferOffset,
        /// All of its bytes.
        bytes: usize,
    },
    /// Copies from one buffer to another.
    Copy {
        /// The kernel of the plan that it belongs to.
        kernel: usize,
        /// What goes where.
        transfer: Transfer,
    },
    /// Runs a function.
    Launch(Launch),
    /// Lets a library multiply matrices.
    Product(Box<LibraryProduct>),
    /// Sends to every rank its part of a buffer, and receives this rank's part of what each of them has.
    Exchange {
        /// The kernel of the plan that it belongs to.
        kernel: usize,
        /// What this rank has.
        from: BufferOffset,
        /// Bytes of it.
        bytes: usize,
        /// Bytes of each rank's part; the last ones may have fewer, or none.
        part: usize,
        /// Where the part that rank 0 sends goes.
        to: BufferOffset,
        /// Bytes from the part of one rank to that of the next.
        stride: usize,
    },
    /// Completes a buffer of which each rank has its part in its place.
    Gather {
        /// The kernel of the plan that it belongs to.
        kernel: usize,
        /// The buffer.
        at: BufferOffset,
        /// All of its bytes.
        bytes: usize,
        /// Bytes of each rank's part; the last ones may have fewer, or none.
        part: usize,
    },
    /// Lets the communicator sum what all ranks have.
    Sum {
        /// The kernel of the plan that it belongs to.
        kernel: usize,
        /// What this rank has.
        from: BufferOffset,
        /// The sum, or this rank's part of it.
        to: BufferOffset,
        /// How many elements of the sum this rank gets.
        count: usize,
        /// Their type.
        dtype: DType,
        /// Whether every rank gets all of them.
        is_whole: bool,
    },
}

impl StreamOp {
    /// The kernels of the plan that it does work of.
    pub fn kernels(&self) -> &[usize] {
        match self {
            StreamOp::Launch(launch) => &launch.kernels,
            StreamOp::Product(product) => std::slice::from_ref(&product.kernel),
            StreamOp::Clear { kernel, .. }
            | StreamOp::Copy { kernel, .. }
            | StreamOp::Exchange { kernel, .. }
            | StreamOp::Gather { kernel, .. }
            | StreamOp::Sum { kernel, .. } => std::slice::from_ref(kernel),
        }
    }

    /// The buffers that it touches.
    pub fn buffers(&self) -> Vec<BufferId> {
        let of = |argument: &Argument| match argument {
            Argument::Buffer(spot) => Some(spot.buffer),
            Argument::Scratch { .. } => None,
        };
        match self {
            StreamOp::Clear { at, .. } => vec![at.buffer],
            StreamOp::Copy { transfer: Transfer { from, to, .. }, .. }
            | StreamOp::Exchange { from, to, .. }
            | StreamOp::Sum { from, to, .. } => {
                vec![from.buffer, to.buffer]
            }
            StreamOp::Gather { at, .. } => vec![at.buffer],
            StreamOp::Launch(launch) => launch.arguments.iter().filter_map(of).collect(),
            StreamOp::Product(product) => product.arguments.iter().filter_map(of).collect(),
        }
    }
}

/// A run of a function.
#[derive(Debug, Clone, PartialEq)]
pub struct Launch {
    /// The kernels of the plan that it does work of.
    pub kernels: Vec<usize>,
    /// Which function, of those of the renderer.
    pub function: usize,
    /// Blocks along x, y and z.
    pub grid: [u32; 3],
    /// One for each parameter.
    pub arguments: Vec<Argument>,
    /// Bytes that it has to read, and those that it writes, if each is moved once.
    pub bytes: [usize; 2],
}

/// A product that a library does.
#[derive(Debug, Clone, PartialEq)]
pub struct LibraryProduct {
    /// The kernel of the plan that it is.
    pub kernel: usize,
    /// What is multiplied.
    pub product: MatrixProduct,
    /// How the library does it.
    pub algorithm: Algorithm,
    /// A, B, D.
    pub arguments: [Argument; 3],
    /// Memory of the algorithm's.
    pub workspace: Argument,
}

/// Where an argument points.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Argument {
    /// Into a buffer of the plan.
    Buffer(BufferOffset),
    /// Into the scratch.
    Scratch {
        /// Bytes from its start.
        offset: usize,
    },
}
