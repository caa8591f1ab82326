//! Sums of products by letters: products of matrices, one operand after another.

use super::{Operator, one, row};
use crate::call::{Built, Call, Fault};
use kernfusion::trace::Tensor;

pub(super) const OPERATORS: &[Operator] = &[row(
    "aten.einsum.default",
    "Σ of products of tensors over the letters that the result of equation lacks",
    einsum,
)];

/// A tensor whose axes have letters.
struct Lettered {
    x: Tensor,
    letters: Vec<char>,
}

/// The letters of axes that stand for an ellipsis, from the last on.
const ELLIPSIS: [char; 8] = ['0', '1', '2', '3', '4', '5', '6', '7'];

fn einsum(call: &Call<'_>) -> Built {
    let equation: String = call.word_or("equation", "")?.chars().filter(|c| !c.is_whitespace()).collect();
    let tensors = call.tensors("tensors")?;
    let (inputs, output) = match equation.split_once("->") {
        Some((inputs, output)) => (inputs, Some(output)),
        None => (equation.as_str(), None),
    };
    let inputs: Vec<_> = inputs.split(',').collect();
    if inputs.len() != tensors.len() {
        return Err(format!("\"{equation}\" has not {} operands", tensors.len()));
    }
    let mut operands = vec![];
    for (letters, x) in inputs.into_iter().zip(tensors) {
        operands.push(Lettered { letters: lettered(letters, x.rank())?, x });
    }
    let result = match output {
        Some(letters) => lettered(letters, call.result()?.rank())?,
        None => implied(&operands),
    };
    operands.reverse();
    let mut product = operands.pop().ok_or("it has no operand")?;
    loop {
        let later = operands.iter().flat_map(|operand| &operand.letters);
        let wanted: Vec<char> = result.iter().chain(later).copied().collect();
        product = product.summed(|letter| wanted.contains(&letter));
        let Some(next) = operands.pop() else { break };
        let later = operands.iter().flat_map(|operand| &operand.letters);
        let wanted: Vec<char> = result.iter().chain(later).copied().collect();
        // What only one of both has and nothing later wants is summed before the product.
        product = product.summed(|letter| wanted.contains(&letter) || next.letters.contains(&letter));
        let next = next.summed(|letter| wanted.contains(&letter) || product.letters.contains(&letter));
        product = product.times(&next, &wanted)?;
    }
    let order: Option<Vec<_>> =
        result.iter().map(|letter| product.letters.iter().position(|own| own == letter)).collect();
    match order.filter(|order| order.len() == product.letters.len()) {
        Some(order) => one(product.x.permute(&order)),
        None => Err(format!("\"{equation}\" gives an axis that no operand has")),
    }
}

/// A letter for each of so many axes.
fn lettered(letters: &str, rank: usize) -> Result<Vec<char>, Fault> {
    let wrong = || format!("\"{letters}\" are no letters of {rank} axes, each another one");
    let (before, after) = letters.split_once("...").unwrap_or((letters, ""));
    let named = before.len() + after.len();
    let open =
        rank.checked_sub(named).filter(|&open| open == 0 || letters.contains("...")).ok_or_else(wrong)?;
    let ellipsis = ELLIPSIS.get(..open).ok_or_else(wrong)?.iter().rev().copied();
    let all: Vec<char> = before.chars().chain(ellipsis).chain(after.chars()).collect();
    let is_letter = |letter: &char| letter.is_ascii_alphabetic() || ELLIPSIS.contains(letter);
    let each = (0..all.len()).all(|at| is_letter(&all[at]) && !all[..at].contains(&all[at]));
    if each && all.len() == rank { Ok(all) } else { Err(wrong()) }
}

/// Letters of the result that is not said: those of an ellipsis, then those that occur once, in alphabetical order.
fn implied(operands: &[Lettered]) -> Vec<char> {
    let all: Vec<char> = operands.iter().flat_map(|operand| operand.letters.iter().copied()).collect();
    let is_once = |letter: char| all.iter().filter(|&&other| other == letter).count() == 1;
    let mut once: Vec<_> = all.iter().copied().filter(|&c| c.is_ascii_alphabetic() && is_once(c)).collect();
    once.sort_unstable();
    ELLIPSIS.into_iter().rev().filter(|letter| all.contains(letter)).chain(once).collect()
}

impl Lettered {
    fn extent(&self, letter: char) -> Option<usize> {
        let place = self.letters.iter().position(|&own| own == letter)?;
        Some(self.x.shape()[place])
    }

    /// The sum over axes whose letter is not kept.
    fn summed(&self, is_kept: impl Fn(char) -> bool) -> Lettered {
        let axes = (0..self.letters.len()).filter(|&at| !is_kept(self.letters[at]));
        let axes: Vec<_> = axes.map(|at| at as isize).collect();
        let letters = self.letters.iter().copied().filter(|&letter| is_kept(letter)).collect();
        Lettered { x: if axes.is_empty() { self.x.clone() } else { self.x.sum(&axes) }, letters }
    }

    /// The product, summed over letters that both have and nobody wants.
    fn times(&self, other: &Lettered, wanted: &[char]) -> Result<Lettered, Fault> {
        let (mut stack, mut contracted, mut own) = (vec![], vec![], vec![]);
        for &letter in &self.letters {
            match other.extent(letter) {
                None => own.push(letter),
                extent if extent != self.extent(letter) => {
                    return Err(format!("axes {letter} have several extents"));
                }
                _ if wanted.contains(&letter) => stack.push(letter),
                _ => contracted.push(letter),
            }
        }
        let others: Vec<_> =
            other.letters.iter().copied().filter(|letter| !self.letters.contains(letter)).collect();
        let left = self.as_stack([&stack, &own, &contracted]);
        let right = other.as_stack([&stack, &others, &contracted]);
        let letters = [stack, own, others].concat();
        let extent =
            |&letter: &char| self.extent(letter).or(other.extent(letter)).expect("a letter of either");
        let shape: Vec<_> = letters.iter().map(extent).collect();
        Ok(Lettered { x: left.matmul_transposed(&right).reshape(shape), letters })
    }

    /// Three groups of axes as one axis each.
    fn as_stack(&self, groups: [&[char]; 3]) -> Tensor {
        let place =
            |letter: &char| self.letters.iter().position(|own| own == letter).expect("its own letter");
        let order: Vec<_> = groups.iter().flat_map(|group| group.iter().map(place)).collect();
        let extent =
            |group: &[char]| group.iter().map(|letter| self.x.shape()[place(letter)]).product::<usize>();
        self.x.permute(&order).reshape(groups.map(extent))
    }
}
