//! Whole models, and the shapes they are known by.

mod gpt;
mod presets;

pub use gpt::{Gpt, GptConfig};
pub use presets::{Preset, preset, presets};
