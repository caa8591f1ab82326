//! Language models at work: what Kernfusion's models read, learn from and write.
//!
//! * [`text`], [`sample`]: from text to batches, from logits to text.
//! * [`train`], [`tune`]: runs on a text, and what comes after them: responses, preferences, rewards.
//! * [`generate`], [`chat`], [`score`], [`fill`], [`translate`]: what trained models of each kind do.
//! * [`checkpoint`], [`record`], [`hugging_face`], [`jsonl`]: what is kept on disk.
//! * [`ahead_of_time`]: models for programs without the compiler.
//!
//! [The guide](guide) shows how these are used.

pub mod ahead_of_time;
pub mod chat;
pub mod checkpoint;
mod error;
pub mod fill;
mod folder;
pub mod generate;
pub mod guide;
pub mod hugging_face;
pub mod jsonl;
pub mod record;
pub mod sample;
pub mod score;
#[cfg(test)]
mod testing;
pub mod text;
pub mod train;
pub mod translate;
pub mod tune;

pub use error::{Error, Result};
pub use folder::{FolderError, IsOurs, NewFolder};
