//! How a file of states differs from what a program has, in one message.

use crate::{Error, Result};
use kernfusion_codegen::listed;
use kernfusion_ir::{Tensor, TensorType};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// The tensor of a session's file that has the number of steps and the seed: of each both halves, the lower one first.
pub(crate) const PLACE: &str = "session.place";

/// How many names of each kind a message has.
const MOST: usize = 3;

/// What a file and a program have that the other one has not.
pub(crate) struct Differences<'a> {
    path: &'a Path,
    /// Of the file alone.
    pub(crate) extra: Vec<String>,
    /// Of the program alone, which it needs.
    pub(crate) missing: Vec<String>,
    /// The file's and the program's types, where they differ.
    pub(crate) types: Vec<(String, TensorType, TensorType)>,
    /// The optimizer's states of the file, and of the program.
    optimizer: [BTreeSet<String>; 2],
}

/// Whether a state is an optimizer's.
pub(crate) fn is_optimizers(name: &str) -> bool {
    name.starts_with("optimizer.")
}

impl<'a> Differences<'a> {
    /// None yet, of a program without an optimizer.
    pub(crate) fn none(path: &'a Path) -> Self {
        Differences { path, extra: vec![], missing: vec![], types: vec![], optimizer: Default::default() }
    }

    /// Those of a training step with these states, some of which must be in the file.
    pub(crate) fn new(
        path: &'a Path,
        tensors: &BTreeMap<String, Tensor>,
        states: &BTreeMap<String, TensorType>,
        needed: &BTreeSet<String>,
    ) -> Self {
        let (optimizer, model): (BTreeSet<_>, BTreeSet<_>) =
            tensors.keys().cloned().partition(|name| is_optimizers(name));
        let own = states.keys().filter(|name| is_optimizers(name)).cloned().collect();
        let types = tensors.iter().filter_map(|(name, tensor)| {
            let ty = states.get(name).filter(|ty| **ty != tensor.ty())?;
            Some((name.clone(), tensor.ty(), ty.clone()))
        });
        Differences {
            path,
            extra: model.into_iter().filter(|name| !states.contains_key(name)).collect(),
            missing: needed.iter().filter(|name| !tensors.contains_key(*name)).cloned().collect(),
            types: types.collect(),
            optimizer: [optimizer, own],
        }
    }

    /// Whether an optimizer has left states in the file.
    pub(crate) fn has_optimizer_states(&self) -> bool {
        !self.optimizer[0].is_empty()
    }

    /// How many of the optimizer's states the file alone has, and the program alone.
    fn optimizer_counts(&self) -> [usize; 2] {
        let [file, own] = &self.optimizer;
        [file.difference(own).count(), own.difference(file).count()]
    }

    /// # Errors
    /// The file is of another model: all differences that say so.
    pub(crate) fn check_model(&self) -> Result<()> {
        let Differences { path, extra, missing, types, .. } = self;
        let mut parts = vec![];
        if !extra.is_empty() {
            parts.push(format!("it has {}, which this model lacks", listed(extra, MOST)));
        }
        if !missing.is_empty() {
            parts.push(format!("it lacks {}", listed(missing, MOST)));
        }
        parts
            .extend(types.iter().take(MOST).map(|(name, file, own)| format!("{name} is {file}, here {own}")));
        if types.len() > MOST {
            parts.push(format!("{} more have other types", types.len() - MOST));
        }
        if parts.is_empty() {
            return Ok(());
        }
        parts.extend(match self.optimizer_counts() {
            [0, _] => None,
            [1, _] => Some("it has 1 state of an optimizer that is not this one's".to_string()),
            [count, _] => Some(format!("it has {count} states of an optimizer that are not this one's")),
        });
        Err(Error::Mismatch(format!("{} is of another model: {}", path.display(), parts.join("; "))))
    }

    /// # Errors
    /// The file's optimizer is another one, or has trained other parameters.
    pub(crate) fn check_optimizer(&self) -> Result<()> {
        let counts = self.optimizer_counts();
        if counts == [0, 0] {
            return Ok(());
        }
        // `m` of `optimizer.m.hidden.weight`
        let kinds = |names: &BTreeSet<String>| -> BTreeSet<String> {
            names.iter().filter_map(|name| Some(name.split('.').nth(1)?.to_string())).collect()
        };
        let how = match kinds(&self.optimizer[0]) == kinds(&self.optimizer[1]) {
            true => "with other parameters frozen",
            false => "with another optimizer",
        };
        let [extra, missing] = counts;
        Err(Error::Mismatch(format!(
            "{} was trained {how}: it has {extra} states that this one does not keep and lacks {missing} that it keeps; \
             `Session::load_parameters` takes its parameters alone",
            self.path.display()
        )))
    }
}
