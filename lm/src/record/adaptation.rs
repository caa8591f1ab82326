//! Training a part of a model: frozen layers, and adapters of low rank.

use super::Record;
use super::parameters::OPTIMIZER;
use crate::checkpoint::{Checkpoint, Tensor32};
use crate::{Error, Result};
use kernfusion::nn::{Lora, is_adapter};
use kernfusion::trace::Trace;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Which parameters are trained; as it is by default, all.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Adaptation {
    /// Module paths whose parameters stay as they are.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub frozen: Vec<String>,
    /// Adapters, which alone are trained.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lora: Option<Lora>,
}

impl Adaptation {
    /// A trace for a model in training mode.
    pub fn training(&self) -> Trace {
        self.on(Trace::training())
    }

    /// A trace for a model in evaluating mode.
    pub fn evaluating(&self) -> Trace {
        self.on(Trace::new())
    }

    /// Checks it against a trace of the model.
    ///
    /// # Errors
    /// If the adapters cannot be, no layer is a target, or a path has no parameter.
    pub fn check(&self, trace: &Trace) -> Result<()> {
        let refuse = |reason: String| Err(Error::Configuration(reason));
        let names: Vec<_> = trace.parameters().into_iter().map(|(parameter, _)| parameter.name).collect();
        let under = |path: &String, name: &String| {
            name.strip_prefix(path.as_str()).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
        };
        if let Some(path) = self.frozen.iter().find(|path| !names.iter().any(|name| under(path, name))) {
            return refuse(format!("the model has no parameter under \"{path}\", which was to be frozen"));
        }
        let Some(lora) = &self.lora else { return Ok(()) };
        lora.validate()?;
        match names.iter().any(|name| is_adapter(name)) {
            true => Ok(()),
            false => refuse(format!("the model has no linear layer under {}", lora.targets.join(", "))),
        }
    }

    fn on(&self, trace: Trace) -> Trace {
        trace.freeze(&self.frozen);
        if let Some(lora) = &self.lora {
            trace.adapt(lora);
        }
        trace
    }
}

/// Adds adapters to the weights that they belong to, W + (α/r)·B·A, and removes them: the model is then one without.
///
/// # Errors
/// If an adapter has no partner, or not the shape that fits its weight.
pub fn merge(tensors: &mut BTreeMap<String, Tensor32>, lora: &Lora) -> Result<()> {
    let names = tensors
        .keys()
        .filter(|name| is_adapter(name) && !name.starts_with(OPTIMIZER))
        .filter_map(|name| name.rsplit_once('.'));
    let mut paths: Vec<_> = names.map(|(path, _)| path.to_string()).collect();
    paths.dedup();
    for path in paths {
        let misfit = || Error::Configuration(format!("the adapter of {path} does not fit the model"));
        let [a, b] = ["lora_a", "lora_b"].map(|end| tensors.remove(&format!("{path}.{end}")));
        let (a, b) = (a.ok_or_else(misfit)?, b.ok_or_else(misfit)?);
        let weight = tensors.get_mut(&format!("{path}.weight")).ok_or_else(misfit)?;
        let fits =
            a.shape.len() == 2 && b.shape.len() == 2 && a.shape[0] == b.shape[1] && a.shape[0] == lora.rank;
        if !fits || weight.shape != [b.shape[0], a.shape[1]] {
            return Err(misfit());
        }
        lora.merge(&mut weight.data, &a.data, &b.data);
    }
    Ok(())
}

/// Puts the adapters of a run into a checkpoint of the model that it began from, and merges them.
///
/// # Errors
/// If the adapters' checkpoint has none, or they do not fit the model.
pub fn attach(model: &mut Checkpoint, adapters: Checkpoint) -> Result<()> {
    let lora = Record::read(&adapters.meta)?.settings.adaptation.lora;
    let lora = lora.ok_or_else(|| Error::Configuration("there are no adapters in this checkpoint".into()))?;
    model.tensors.extend(adapters.tensors);
    merge(&mut model.tensors, &lora)
}
