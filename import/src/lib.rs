//! Models from elsewhere: archives that `torch.export.save` writes (`.pt2`) and ONNX files, as functions over traced tensors.
//!
//! ```no_run
//! use kernfusion::prelude::*;
//! use kernfusion_import::Imported;
//!
//! let gpt2 = Imported::open("gpt2.pt2")?;
//! let trace = Trace::training();
//! let (x, y) = (trace.input("x", [8, 64], DType::I32), trace.input("y", [8, 64], DType::I32));
//! let logits = gpt2.call(&trace, &[&x])?.remove(0);
//! let step = TrainStep::new(&cross_entropy(&logits, &y), &Optimizer::adamw(3e-4), None)?;
//! let mut session = step.session(&Target::cpu(), 1)?;
//! gpt2.set(session.states())?;
//! # Ok::<(), kernfusion_import::ImportError>(())
//! ```
//!
//! * A file is read at run time. Its parameters and buffers are states under their own names, tied ones one state; nothing is folded into
//!   the program, so that gradients, optimizers, simplification, fusion and memory limits apply as to a model that is written in Rust.
//! * Values of states stay in the file until they are asked for ([`Imported::set`], [`State::read`]), one at a time: a model may be larger than
//!   memory. Whatever else is wrong with a file is found when it is opened.
//! * Nodes carry the module and the line of Python that the file records, and so do mistakes.
//! * Whatever is wrong with a file is an error; unknown operators are listed all at once.
//!
//! * [`OnnxFile`] writes the forward pass of a program as ONNX.
//!
//! What is known: [`operators`].

mod archive;
mod call;
mod constants;
mod error;
mod imported;
mod in_place;
mod inline;
mod memory;
mod model;
mod onnx;
mod open;
mod operators;
mod origin;
mod pickle;
mod schema;
mod sizes;
mod state;
mod storage;
mod view;
mod weights;

pub use error::{ImportError, Place, UnknownOperator};
pub use imported::Imported;
pub use model::Model;
pub use onnx::{LARGE, OnnxFile};
pub use operators::{Operator, operators};
pub use state::State;

/// A result of this crate.
pub type Result<T> = std::result::Result<T, ImportError>;
