//! A function that was compiled ahead of time: tensors for tensors.

use crate::artefact::{Artefact, Function, TensorDescription, Work};
use crate::error::ModelError;
use crate::launch::Pointers;
use crate::loaded::{Loaded, describe};
use crate::memory::Allocation;
use crate::memory::BumpAllocator;
use std::path::Path;

/// A function of tensors with its parameters. Values of states that it updates stay with it.
pub struct TensorFunction {
    loaded: Loaded,
    function: Function,
    pointers: Pointers,
    /// What it is given; kernels may write there.
    inputs: Vec<Allocation>,
}

impl TensorFunction {
    /// A function of an object file with the parameters in this file, on `threads` threads; 0: one for each core. Results do not
    /// depend on the number of threads.
    ///
    /// # Errors
    /// The processor is not the one that it was compiled for, the file is not there or has not the function's parameters, or memory
    /// is short.
    pub fn open(artefact: &Artefact, weights: &Path, threads: usize) -> Result<TensorFunction, ModelError> {
        let (code, work) = describe(artefact)?;
        let Work::Function(function) = work else {
            return Err(ModelError::Artefact("it reads a text, and gives no tensors for tensors".into()));
        };
        let mut loaded = Loaded::open(artefact, code, function.plan.arena_bytes, weights, threads)?;
        let mut allocator = BumpAllocator::default();
        let inputs = function.inputs.iter().map(|input| allocator.take(input.bytes));
        let inputs = inputs.collect::<Result<Vec<_>, _>>()?;
        let places: Vec<_> = inputs.iter().map(Allocation::as_ptr).collect();
        let pointers = loaded.prepare(&function.plan, &places)?;
        Ok(TensorFunction { loaded, function, pointers, inputs })
    }

    /// What it is given, in this order.
    pub fn inputs(&self) -> impl ExactSizeIterator<Item = &TensorDescription> {
        self.function.inputs.iter()
    }

    /// What it gives, in this order.
    pub fn outputs(&self) -> impl ExactSizeIterator<Item = &TensorDescription> {
        self.function.outputs.iter().map(|(output, _)| output)
    }

    /// Computes the outputs for these inputs, the elements of each row-major and little-endian; [`bytes_of`] takes them from a slice.
    ///
    /// # Errors
    /// There are not as many tensors, one has another size, or memory is short.
    pub fn call(&mut self, inputs: &[&[u8]], outputs: &mut [&mut [u8]]) -> Result<(), ModelError> {
        let sizes = |found: Vec<usize>, expected: Vec<&TensorDescription>, what| fit(&found, &expected, what);
        sizes(inputs.iter().map(|bytes| bytes.len()).collect(), self.inputs().collect(), "input")?;
        sizes(outputs.iter().map(|bytes| bytes.len()).collect(), self.outputs().collect(), "output")?;
        for (input, memory) in inputs.iter().zip(&self.inputs) {
            // SAFETY: both have the tensor's bytes.
            unsafe { memory.as_ptr().copy_from_nonoverlapping(input.as_ptr(), input.len()) };
        }
        let plan = &self.function.plan;
        self.loaded.run(plan, &self.pointers)?;
        for (output, (_, buffer)) in outputs.iter_mut().zip(&self.function.outputs) {
            // SAFETY: the buffer has the tensor's bytes, and no kernel runs.
            unsafe { output.as_mut_ptr().copy_from_nonoverlapping(self.pointers.get(*buffer), output.len()) };
        }
        self.loaded.update(plan, &self.pointers);
        Ok(())
    }
}

impl std::fmt::Debug for TensorFunction {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TensorFunction").field("name", &self.loaded.name()).finish_non_exhaustive()
    }
}

fn fit(found: &[usize], expected: &[&TensorDescription], what: &str) -> Result<(), ModelError> {
    if found.len() != expected.len() {
        return Err(ModelError::Request(format!(
            "there are {} {what}s, not {}",
            expected.len(),
            found.len()
        )));
    }
    match found.iter().zip(expected).find(|(found, expected)| **found != expected.bytes) {
        None => Ok(()),
        Some((found, TensorDescription { name, dtype, shape, bytes })) => {
            let reason =
                format!("{what} \"{name}\" is {dtype}{shape:?} of {bytes} bytes, and {found} are given");
            Err(ModelError::Request(reason))
        }
    }
}

/// Numbers whose every bit pattern is one.
///
/// # Safety
/// The type has no padding, and every bit pattern is a value.
pub unsafe trait Number: Copy {}

macro_rules! numbers {
    ($($number:ty)*) => { $(
        // SAFETY: a number of the machine.
        unsafe impl Number for $number {}
    )* };
}

numbers!(i8 u8 i16 u16 i32 u32 f32 f64);

/// The bytes of a tensor's elements. Elements of 16-bit floats are their bits, truth values are 0 or 1.
pub fn bytes_of<N: Number>(elements: &[N]) -> &[u8] {
    // SAFETY: there is no padding.
    unsafe { std::slice::from_raw_parts(elements.as_ptr().cast(), size_of_val(elements)) }
}

/// The bytes of a tensor's elements, to be written.
pub fn bytes_of_mut<N: Number>(elements: &mut [N]) -> &mut [u8] {
    // SAFETY: there is no padding, and every bit pattern is a value.
    unsafe { std::slice::from_raw_parts_mut(elements.as_mut_ptr().cast(), size_of_val(elements)) }
}
