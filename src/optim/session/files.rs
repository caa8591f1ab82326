//! Sessions in files.

use super::Session;
use crate::state_file::{Differences, PLACE};
use crate::{Error, Result, tensor_file};
use kernfusion_ir::{DType, InputRole, Tensor, TensorType};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

impl Session {
    /// Writes parameters, the optimizer's states, other states of the step, the number of steps and the seed as a safetensors file, whole
    /// or not at all; folders that are missing are made. The schedule is not in the file, nor are states of programs that were
    /// [evaluated](Self::evaluate). [`Program::load_states`](crate::trace::Program::load_states) reads the parameters for a program that
    /// is not trained, [`load_parameters`](Self::load_parameters) for another training. Needs the feature `files`. Where [each rank keeps a part of
    /// a state](crate::compile::Target::shard_optimizer), all ranks have to save, each to a file of its own.
    ///
    /// # Errors
    /// It cannot be written; what was there before is then untouched.
    pub fn save(&self, path: impl AsRef<Path>) -> Result<()> {
        let path = path.as_ref();
        let halves = [self.done, self.seed].into_iter().flat_map(|x| [x as u32, (x >> 32) as u32]);
        let place = Tensor::new([4], halves);
        let states = self.state_types().into_keys().map(|name| Ok((name.clone(), self.get(&name)?)));
        let mut tensors = states.collect::<Result<BTreeMap<_, _>>>()?;
        tensors.insert(PLACE.into(), place);
        Ok(tensor_file::write(path, &tensors)?)
    }

    /// Goes on from a file that [`save`](Self::save) has written, or begins from one that has parameters alone. Needs the feature
    /// `files`.
    ///
    /// # Errors
    /// It cannot be read; it is of another model, which is to say that it lacks a parameter, or has a tensor that is no state of this
    /// model or is of another type; or it was trained with another optimizer, or with other parameters frozen. Nothing has changed
    /// then.
    pub fn load(&mut self, path: impl AsRef<Path>) -> Result<()> {
        let path = path.as_ref();
        let mut tensors = tensor_file::read(path)?;
        let place = tensors.remove(PLACE);
        let differences = self.differences(path, &tensors);
        differences.check_model()?;
        // Parameters alone are a beginning, and so are those of another program that has no place.
        if place.is_some() || differences.has_optimizer_states() {
            differences.check_optimizer()?;
        }
        let (done, seed) = match place {
            None => (0, self.seed),
            Some(place) if place.ty() == TensorType::new(DType::U32, [4]) => {
                let halves: Vec<_> = place.to_f64().into_iter().map(|half| half as u64).collect();
                (halves[0] | halves[1] << 32, halves[2] | halves[3] << 32)
            }
            Some(place) => {
                let reason = format!("{}: \"{PLACE}\" is {}, not u32[4]", path.display(), place.ty());
                return Err(Error::Mismatch(reason));
            }
        };
        self.begin(tensors, done, seed)
    }

    /// Begins from the parameters of another training: a file that [`save`](Self::save) has written, whatever the optimizer was, or one
    /// that has parameters alone. Step number, optimizer and the step's other states begin anew; buffers such as running statistics, which
    /// have first values as parameters have, are taken over, too. Needs the feature `files`.
    ///
    /// # Errors
    /// The file cannot be read, or is of another model; nothing has changed then.
    pub fn load_parameters(&mut self, path: impl AsRef<Path>) -> Result<()> {
        let path = path.as_ref();
        let mut tensors = tensor_file::read(path)?;
        tensors.remove(PLACE);
        self.differences(path, &tensors).check_model()?;
        let program = &self.step.program;
        let kept: BTreeSet<_> = program.initial_parameters(self.seed).map(|(name, _)| name).collect();
        tensors.retain(|name, _| kept.contains(name));
        self.begin(tensors, 0, self.seed)
    }

    /// All states of the step.
    fn state_types(&self) -> BTreeMap<String, TensorType> {
        let graph = &self.step.program.graph;
        let states = graph.inputs().filter(|(_, _, role)| *role == InputRole::State);
        states.map(|(id, name, _)| (name.to_string(), graph[id].ty.clone())).collect()
    }

    fn differences<'a>(&self, path: &'a Path, tensors: &BTreeMap<String, Tensor>) -> Differences<'a> {
        let parameters = self.step.program.parameters.iter().map(|it| it.name.clone()).collect();
        Differences::new(path, tensors, &self.state_types(), &parameters)
    }

    /// Takes these values; all other states begin as in a new session.
    fn begin(&mut self, mut tensors: BTreeMap<String, Tensor>, done: u64, seed: u64) -> Result<()> {
        let first: BTreeMap<_, _> = self.step.program.initial_parameters(seed).collect();
        for (name, ty) in self.state_types() {
            let zeros = || Tensor::from_f64(&ty, &vec![0.0; ty.elements()]);
            let value = tensors.remove(&name).or_else(|| first.get(&name).cloned()).unwrap_or_else(zeros);
            self.set(&name, &value)?;
        }
        (self.done, self.seed) = (done, seed);
        Ok(())
    }
}
