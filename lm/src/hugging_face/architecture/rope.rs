//! How `config.json` describes rotary positions: one object in newer files, two fields in older ones.

use crate::hugging_face::fields::Fields;
use kernfusion::nn::{Pairing, Rope, RopeScaling};
use serde::Deserialize;
use serde_json::{Value, json};

/// How positions rotate; `type` is what older files say in place of `rope_type`.
#[derive(Default, Deserialize)]
pub(super) struct RopeParameters {
    rope_theta: Option<f64>,
    #[serde(alias = "type")]
    rope_type: Option<String>,
    partial_rotary_factor: Option<f64>,
    factor: Option<f64>,
    low_freq_factor: Option<f64>,
    high_freq_factor: Option<f64>,
    original_max_position_embeddings: Option<usize>,
}

impl RopeParameters {
    fn scaling(&self) -> Result<Option<RopeScaling>, String> {
        let kind = self.rope_type.as_deref().unwrap_or("default");
        let without = |name: &str| format!("rope_type {kind} without a {name} cannot be computed");
        let needed = |name: &str, value: Option<f64>| value.ok_or_else(|| without(name));
        let factor = || needed("factor", self.factor);
        match kind {
            "default" => Ok(None),
            "linear" => Ok(Some(RopeScaling::Linear { factor: factor()? })),
            "llama3" => Ok(Some(RopeScaling::Llama3 {
                factor: factor()?,
                low: needed("low_freq_factor", self.low_freq_factor)?,
                high: needed("high_freq_factor", self.high_freq_factor)?,
                context: self
                    .original_max_position_embeddings
                    .ok_or_else(|| without("original_max_position_embeddings"))?,
            })),
            _ => Err(format!("rope_type {kind} is not known, only default, linear and llama3 are")),
        }
    }
}

/// The parameters of rotary positions, as they are written.
pub(super) fn parameters(rope: &Rope) -> Value {
    let base = rope.base;
    match rope.scaling {
        None => json!({"rope_type": "default", "rope_theta": base}),
        Some(RopeScaling::Linear { factor }) => {
            json!({"rope_type": "linear", "rope_theta": base, "factor": factor})
        }
        Some(RopeScaling::Llama3 { factor, low, high, context }) => json!({
            "rope_type": "llama3",
            "rope_theta": base,
            "factor": factor,
            "low_freq_factor": low,
            "high_freq_factor": high,
            "original_max_position_embeddings": context,
        }),
    }
}

impl RopeParameters {
    /// The rotation, of this base unless the parameters say another one.
    pub(super) fn rope(&self, base: f64) -> Result<Rope, String> {
        if let Some(factor) = self.partial_rotary_factor.filter(|factor| *factor != 1.0) {
            return Err(format!(
                "partial_rotary_factor is {factor}, but only whole heads can be rotated here"
            ));
        }
        let base = self.rope_theta.unwrap_or(base);
        Ok(Rope { base, pairing: Pairing::Halves, scaling: self.scaling()? })
    }
}

/// The rotation of all blocks; `otherwise` is the base where none is given.
pub(super) fn read(fields: &mut Fields, otherwise: f64) -> Result<Rope, String> {
    let (parameters, scaling) = (fields.option("rope_parameters")?, fields.option("rope_scaling")?);
    let base: Option<f64> = fields.option("rope_theta")?;
    fields.demand("partial_rotary_factor", 1.0)?;
    let given: Option<RopeParameters> = if parameters.is_some() { parameters } else { scaling };
    given.unwrap_or_default().rope(base.unwrap_or(otherwise))
}
