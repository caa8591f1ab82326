//! The interface through which an op's stanza enters a kernel.

use super::{Bound, Index, InstrKind, Scalar};
use crate::{DType, Reduce, TensorType};

/// Why an op could not enter a kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refusal {
    /// The domain's axis must be split so that its inner part has this extent; then try again.
    Split {
        /// Which axis.
        axis: usize,
        /// The inner extent; divides the axis' extent.
        inner: usize,
    },
    /// The kernel cannot express it; the reason is shown by `explain`.
    Because(&'static str),
}

/// The scalar of an op at a point, or why there is none.
pub type Entered = Result<Scalar, Refusal>;

/// A kernel under construction, seen from one node. Ops say what they compute at coordinates `at` of their result;
/// the writer decides whether an operand is computed in the kernel or loaded.
pub trait KernelWriter {
    /// The number of axes of the domain.
    fn rank(&self) -> usize;
    /// The type of an operand of the current node.
    fn operand_type(&self, slot: usize) -> TensorType;
    /// The type of the current node.
    fn result_type(&self) -> TensorType;
    /// The value of an operand at the given coordinates.
    fn operand(&mut self, slot: usize, at: Vec<Index>) -> Entered;
    /// As `operand`, where the coordinates may lie outside: the bounds guard every load; the result is arbitrary
    /// where they do not hold.
    fn guarded(&mut self, slot: usize, at: Vec<Index>, bounds: &[Bound]) -> Entered;
    /// Appends an instruction.
    fn push(&mut self, kind: InstrKind, dtype: DType) -> Scalar;
    /// Quotient and remainder of a coordinate; may ask for a split of the domain.
    fn divide(&self, at: &Index, by: usize) -> Result<(Index, Index), Refusal>;
    /// The current node, a reduction, at the coordinates of its result.
    fn reduce(&mut self, reduce: &Reduce, at: &[Index]) -> Entered;
    /// The current node, a contraction, at the coordinates of its result.
    fn product(&mut self, at: &[Index]) -> Entered;
}

/// Coordinates `at` in a tensor of shape `of`, as coordinates in the same elements under shape `to`. Works block by
/// block: the shortest runs of axes on both sides that hold equally many elements.
pub fn reshaped(
    w: &dyn KernelWriter,
    at: &[Index],
    of: &[usize],
    to: &[usize],
) -> std::result::Result<Vec<Index>, Refusal> {
    if of.iter().product::<usize>() != to.iter().product::<usize>() {
        return Err(Refusal::Because("tensors of different sizes"));
    }
    let zero = || Index::constant(w.rank(), 0);
    // Without elements there are no blocks to pair, and no point at which a coordinate matters.
    if to.contains(&0) {
        return Ok(vec![zero(); to.len()]);
    }
    let mut result = Vec::with_capacity(to.len());
    let (mut i, mut j) = (0, 0);
    while i < of.len() || j < to.len() {
        let (first_i, first_j) = (i, j);
        let (mut left, mut right) = (1, 1);
        loop {
            if left == right && (i > first_i || j > first_j) {
                break;
            }
            if left <= right && i < of.len() {
                left *= of[i];
                i += 1;
            } else if j < to.len() {
                right *= to[j];
                j += 1;
            } else {
                left *= of[i];
                i += 1;
            }
        }
        let mut rest = Index::linear(w.rank(), &at[first_i..i], &of[first_i..i]);
        let mut block = Vec::new();
        for (place, &extent) in to[first_j..j].iter().enumerate().rev() {
            // What is left needs no division, and may lie beyond the extent, where bounds leave it out.
            let outermost = to[first_j..first_j + place].iter().all(|&outer| outer == 1);
            if extent == 1 {
                block.push(zero());
            } else if outermost {
                block.push(std::mem::replace(&mut rest, zero()));
            } else {
                let (quotient, remainder) = w.divide(&rest, extent)?;
                block.push(remainder);
                rest = quotient;
            }
        }
        result.extend(block.into_iter().rev());
    }
    Ok(result)
}
