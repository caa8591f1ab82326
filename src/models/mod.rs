//! Whole models, and the shapes they are known by.

mod bert;
mod config;
mod encoder_decoder;
mod gpt;
mod mlp;
mod presets;
mod recurrent;
mod samples;

pub use bert::{Bert, BertConfig, MaskedHead};
pub use config::ModelConfig;
pub use encoder_decoder::{EncoderDecoder, EncoderDecoderConfig};
pub use gpt::{
    Chunk, Experts, FeedForwardKind, GlobalBlocks, Gpt, GptConfig, LatentShape, Positions, Scales,
};
pub use mlp::Mlp;
pub use presets::{Preset, preset, presets};
pub use recurrent::{RecurrentLm, RecurrentLmConfig};
pub use samples::{samples, wide_samples};

use crate::trace::Tensor;
use crate::{Error, Result};
use kernfusion_ir::DType;
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

/// The largest vocabulary, context or window: a number above was mistyped, and products of extents would overflow.
const MOST_TOKENS: usize = 1 << 24;

/// The largest extent of a layer.
const WIDEST: usize = 1 << 22;

/// Graphs grow with the number of layers.
const MOST_LAYERS: usize = 1 << 12;

/// Refuses the first extent that is zero, or above the limit behind it. Within the limits, the parameters of any model are fewer than
/// 2⁶³.
fn check_extents(extents: &[(&str, usize, usize)]) -> Result<()> {
    let refuse = |reason: String| Err(Error::Configuration(reason));
    match extents.iter().find(|(_, extent, limit)| !(1..=*limit).contains(extent)) {
        Some((name, 0, _)) => refuse(format!("{name} is 0, but must be at least 1")),
        Some((name, extent, limit)) => {
            refuse(format!("{name} {extent} is above the largest possible, {limit}"))
        }
        None => Ok(()),
    }
}

/// Heads share the width evenly, unless they have one of their own.
fn check_heads(width: usize, heads: usize, head_width: Option<usize>) -> Result<()> {
    match head_width {
        Some(width) => check_extents(&[
            ("head_width", width, WIDEST),
            ("head_width of all heads", heads.saturating_mul(width), WIDEST),
        ]),
        None if !width.is_multiple_of(heads) => {
            Err(Error::Configuration(format!("width {width} is not a multiple of heads {heads}")))
        }
        _ => Ok(()),
    }
}

fn check_dropout(dropout: f64) -> Result<()> {
    match (0.0..1.0).contains(&dropout) {
        true => Ok(()),
        false => {
            Err(Error::Configuration(format!("dropout {dropout} is not in the range from 0 to below 1")))
        }
    }
}

/// Records a mistake unless these are tokens `i32[batch, length]` with a length of at most `context`.
#[track_caller]
fn expect_tokens(model: &'static str, tokens: &Tensor, context: usize) {
    tokens.expect(model, |ty| match ty.shape[..] {
        _ if ty.dtype != DType::I32 => Some("tokens are i32".into()),
        [_, length] if length <= context => None,
        [_, length] => Some(format!("{length} positions exceed the context of {context}")),
        _ => Some("tokens have the shape [batch, length]".into()),
    });
}
