//! Whole models, and the shapes they are known by.

mod gpt;
mod mlp;
mod presets;

pub use gpt::{Gpt, GptConfig};
pub use mlp::Mlp;
pub use presets::{Preset, preset, presets};
