//! States of which each of several ranks keeps a part.

use super::Communicator;
use crate::error::Result;
use kernfusion_codegen::{CodegenError, States};
use kernfusion_ir::Tensor;
use kernfusion_ir::kernel::{ProgramPlan, Shard};
use std::collections::BTreeMap;
use std::sync::Arc;

/// The states of a program of which each rank keeps a part; none without [`Target::shard_optimizer`](super::Target::shard_optimizer).
#[derive(Debug, Clone, Default)]
pub struct Shards {
    states: BTreeMap<String, Shard>,
    communicator: Option<Arc<dyn Communicator>>,
}

impl Shards {
    pub(super) fn new(program: &ProgramPlan, communicator: Option<&Arc<dyn Communicator>>) -> Self {
        let shards = program.microbatches.iter().flat_map(|microbatches| &microbatches.shards);
        let states = shards.map(|shard| (shard.state.clone(), shard.clone())).collect();
        Shards { states, communicator: communicator.cloned() }
    }

    /// Whether the state of this name is one of them.
    pub fn has(&self, name: &str) -> bool {
        self.states.contains_key(name)
    }

    /// What this rank keeps of the whole value of a state: its part, or all of it where no rank has a part.
    ///
    /// # Errors
    /// The state is of another type.
    pub fn part(&self, name: &str, whole: &Tensor) -> Result<Tensor> {
        let Some(shard) = self.states.get(name) else { return Ok(whole.clone()) };
        let Some(elements) = whole.as_f32().filter(|_| whole.ty() == shard.whole) else {
            let (name, expected) = (name.into(), shard.whole.clone());
            return Err(CodegenError::Value { name, expected, found: whole.ty() }.into());
        };
        let rank = self.communicator.as_ref().map_or(0, |communicator| communicator.rank());
        let mut part = elements[shard.elements(rank)].to_vec();
        part.resize(shard.part.elements(), 0.0);
        Ok(Tensor::new(shard.part.shape.clone(), part))
    }

    /// The whole value of a state; `None` if there is no such state. All ranks have to ask for it together.
    ///
    /// # Errors
    /// A rank has ended, or what connects them fails.
    pub fn whole(&self, name: &str, states: &States) -> Result<Option<Tensor>> {
        let Some(own) = states.get(name) else { return Ok(None) };
        let (Some(shard), Some(communicator)) = (self.states.get(name), &self.communicator) else {
            return Ok(Some(own));
        };
        let part = own.bytes();
        let mut all = vec![0; part.len() * communicator.ranks()];
        all[part.len() * communicator.rank()..][..part.len()].copy_from_slice(part);
        communicator.gather(&mut all, part.len()).map_err(CodegenError::from)?;
        all.truncate(shard.whole.bytes());
        Ok(Tensor::from_bytes(&shard.whole, &all))
    }
}
