//! Whole models, and the shapes they are known by.

mod gpt;
mod mlp;
mod presets;

pub use gpt::{FeedForwardKind, Gpt, GptConfig, LatentShape, Positions};
pub use mlp::Mlp;
pub use presets::{Preset, preset, presets};

use crate::{Error, Result};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// A shape with the fields of a JSON object put in.
///
/// # Errors
/// If it is no JSON object, or a field is unknown or of another type.
fn merged<C: Serialize + DeserializeOwned>(shape: &C, json: &str) -> Result<C> {
    let invalid = |error: serde_json::Error| Error::Configuration(error.to_string());
    let fields: serde_json::Map<String, serde_json::Value> = serde_json::from_str(json).map_err(invalid)?;
    let mut merged = serde_json::to_value(shape).expect("a configuration is plain data");
    for (name, value) in fields {
        merged[name] = value;
    }
    serde_json::from_value(merged).map_err(invalid)
}
