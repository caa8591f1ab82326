//! A program that runs slice by slice: a body once for each slice of its inputs, then a tail once.
//!
//! Body and tail work on the same states, through which sums come from one slice to the next and to the tail, and in one
//! arena. Nobody else touches the states between the first slice and the end.

use super::executable::{Executable, Memory, Options, Outputs, check_inputs};
use crate::CodegenError;
use crate::states::States;
use kernfusion_ir::kernel::{Buffer, Plan};
use kernfusion_ir::{Tensor, TensorType};
use kernfusion_runtime::memory::SharedArena;
use kernfusion_runtime::pool::Pool;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How the inputs of a program go to its body and tail.
#[derive(Debug, Clone, PartialEq)]
pub struct Slicing {
    /// How many times the body runs.
    pub slices: usize,
    /// The body's scalar input of `u32` that gets the number of the slice, from 0.
    pub part: String,
    /// The inputs of the program, with their types. Where the body declares one smaller, it gets a slice of it: as many of
    /// its elements, one slice after another.
    pub inputs: Vec<(String, TensorType)>,
    /// The results of the program in order: those of the body with the axis along which its slices are joined, those of the
    /// tail without.
    pub outputs: Vec<(String, Option<usize>)>,
}

/// A compiled body and tail with their memory.
#[derive(Debug)]
pub struct TiledExecutable {
    body: Executable,
    tail: Executable,
    slicing: Slicing,
}

impl TiledExecutable {
    /// Compiles both plans over `states`. Temporaries live in one arena.
    ///
    /// # Errors
    /// As [`Executable::compile`].
    ///
    /// # Panics
    /// If the body or the tail has an input that the program does not have, or that is no slice of it.
    pub fn compile(
        body: Plan,
        tail: Plan,
        slicing: Slicing,
        states: &States,
        options: &Options,
    ) -> Result<Self, CodegenError> {
        let bytes = body.arena_bytes.max(tail.arena_bytes);
        let arena = match options.arena.clone().filter(|arena| arena.len() >= bytes) {
            Some(arena) => arena,
            None => SharedArena::new(bytes)?,
        };
        let options = Options { memory: Memory::Arena, arena: Some(arena), ..options.clone() };
        let body = Executable::compile(body, states, &options)?;
        let options = Options { pool: Some(body.pool().clone()), ..options };
        let tail = Executable::compile(tail, states, &options)?;
        for (executable, slices) in [(&body, slicing.slices), (&tail, 1)] {
            let plan = executable.plan();
            let inputs =
                plan.graph.buffers.iter().filter(|b| b.role == kernfusion_ir::kernel::BufferRole::Input);
            for input in inputs.filter(|input| input.name != slicing.part) {
                let whole = slicing.inputs.iter().find(|(name, _)| *name == input.name);
                let fits = whole.is_some_and(|(_, whole)| {
                    *whole == input.ty
                        || whole.dtype == input.ty.dtype && whole.elements() == slices * input.ty.elements()
                });
                assert!(fits, "\"{}\" is an input of the program or a slice of one", input.name);
            }
        }
        Ok(TiledExecutable { body, tail, slicing })
    }

    /// As [`Executable::set_pool`].
    ///
    /// # Errors
    /// As there.
    pub fn set_pool(&mut self, pool: &Arc<Pool>) -> Result<(), CodegenError> {
        self.body.set_pool(pool.clone())?;
        self.tail.set_pool(pool.clone())
    }

    /// Runs all slices and the tail: outputs by name. States are updated.
    ///
    /// # Errors
    /// As [`Executable::run`].
    pub fn run(&mut self, inputs: &[(&str, &Tensor)]) -> Result<Outputs, CodegenError> {
        self.run_with(inputs, &mut |_, _| {})
    }

    /// As [`run`](Self::run), with the time of every kernel: of the body's, over all slices, then of the tail's.
    ///
    /// # Errors
    /// As [`Executable::run`].
    pub fn run_timed(
        &mut self,
        inputs: &[(&str, &Tensor)],
    ) -> Result<(Outputs, Vec<Duration>), CodegenError> {
        let body = self.body.plan().graph.kernels.len();
        let mut times = vec![Duration::ZERO; body + self.tail.plan().graph.kernels.len()];
        let mut last = Instant::now();
        let outputs = self.run_with(inputs, &mut |in_tail, at| {
            let now = Instant::now();
            if at > 0 {
                times[if in_tail { body } else { 0 } + at - 1] += now - last;
            }
            last = now;
        })?;
        Ok((outputs, times))
    }

    /// `tick` is called as that of an executable, with whether it is the tail's.
    fn run_with(
        &mut self,
        inputs: &[(&str, &Tensor)],
        tick: &mut dyn FnMut(bool, usize),
    ) -> Result<Outputs, CodegenError> {
        let Slicing { slices, part, inputs: declared, outputs } = &self.slicing;
        let declared: Vec<_> = declared.iter().map(|(name, ty)| (name.as_str(), ty)).collect();
        check_inputs(&declared, inputs)?;
        let (states, arena) = (self.body.states().clone(), self.body.arena().clone());
        let (_held, _turn) = (states.hold(), arena.turn());
        let locate = |buffer: &Buffer, number: &u32| -> *const u8 {
            if buffer.name == *part {
                return std::ptr::from_ref(number).cast();
            }
            let (_, given) = inputs.iter().find(|(name, _)| *name == buffer.name).expect("checked before");
            let bytes = buffer.ty.bytes();
            let start = if given.ty() == buffer.ty { 0 } else { *number as usize * bytes };
            assert!(start + bytes <= given.ty().bytes(), "slices lie in their input");
            given.data().as_ptr().wrapping_add(start)
        };
        let mut parts = vec![];
        for number in 0..*slices as u32 {
            parts.push(self.body.run_held(
                &|buffer| locate(buffer, &number),
                &mut |at| tick(false, at),
                &mut |_, _| {},
            )?);
        }
        let tail =
            self.tail.run_held(&|buffer| locate(buffer, &0), &mut |at| tick(true, at), &mut |_, _| {})?;
        let result = |(name, axis): &(String, Option<usize>)| {
            let found = "body and tail have all results";
            let value = match axis {
                None => tail.get(name).expect(found).clone(),
                Some(axis) => joined(parts.iter().map(|part| part.get(name).expect(found)).collect(), *axis),
            };
            (name.clone(), value)
        };
        Ok(Outputs::new(outputs.iter().map(result).collect()))
    }

    /// What runs for each slice.
    pub fn body(&self) -> &Executable {
        &self.body
    }

    /// What runs after the last slice.
    pub fn tail(&self) -> &Executable {
        &self.tail
    }

    /// How many slices there are.
    pub fn slices(&self) -> usize {
        self.slicing.slices
    }
}

/// Tensors of one type, one after another along an axis.
fn joined(parts: Vec<&Tensor>, axis: usize) -> Tensor {
    let part = parts[0].ty();
    let mut ty = part.clone();
    ty.shape[axis] *= parts.len();
    let rows: usize = part.shape[..axis].iter().product();
    let bytes: Vec<_> = parts.iter().map(|part| part.to_bytes()).collect();
    let row = part.bytes() / rows.max(1);
    let rows = (0..rows).flat_map(|at| bytes.iter().map(move |part| &part[at * row..(at + 1) * row]));
    Tensor::from_bytes(&ty, &rows.collect::<Vec<_>>().concat()).expect("the parts' bytes are the whole's")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_joined_along_their_axis() {
        let (a, b) = (
            Tensor::new([2, 1, 2], vec![1.5f32, 2.5, 3.5, 4.5]),
            Tensor::new([2, 1, 2], vec![5.0f32, 6.0, 7.0, 8.0]),
        );
        let inner = Tensor::new([2, 2, 2], vec![1.5f32, 2.5, 5.0, 6.0, 3.5, 4.5, 7.0, 8.0]);
        assert_eq!(joined(vec![&a, &b], 1), inner);
        let outer = Tensor::new([4, 1, 2], vec![1.5f32, 2.5, 3.5, 4.5, 5.0, 6.0, 7.0, 8.0]);
        assert_eq!(joined(vec![&a, &b], 0), outer);
    }
}
