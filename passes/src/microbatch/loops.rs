//! How the batch passes through a loop.
//!
//! The batch is an axis of what iterations are given and of what they carry, never the axis along which the loop runs. So each
//! microbatch runs all iterations, of a narrower body. Whether a carried value has the batch is found from what an iteration makes of it:
//!
//! ```text
//! hₜ, dbₜ = body(hₜ₋₁, xₜ, w)      x: sliced  →  hₜ: sliced  →  hₜ₋₁: sliced      w: whole      dbₜ = Σ over the batch: partial
//! ```

use super::MicrobatchError;
use super::batch_dependence::{BatchDependence, Classes};
use super::body::{Form, narrowed_body};
use kernfusion_ir::Scan;

/// What the batch has to do with the values of a loop.
pub(super) struct Loop<'a> {
    scan: &'a Scan,
    /// Of the body's inputs, which are the loop's operands in order.
    inputs: Vec<BatchDependence>,
    classes: Classes,
}

impl<'a> Loop<'a> {
    /// From what the batch has to do with the loop's operands.
    ///
    /// # Errors
    /// Why the loop cannot be divided.
    pub(super) fn new(
        scan: &'a Scan,
        operands: &[BatchDependence],
        microbatches: usize,
    ) -> Result<Self, &'static str> {
        let body = scan.body.graph();
        let mut inputs = vec![];
        for (at, &dependence) in operands.iter().enumerate() {
            inputs.push(match dependence {
                BatchDependence::Sliced(0) if is_given_in_turn(scan, at) => {
                    return Err("it runs along the batch");
                }
                BatchDependence::Sliced(axis) if is_given_in_turn(scan, at) => {
                    BatchDependence::Sliced(axis - 1)
                }
                BatchDependence::Sliced(_) | BatchDependence::Whole => dependence,
                BatchDependence::Partial(_) | BatchDependence::Complete => {
                    return Err("a microbatch needs a sum over the whole batch");
                }
            });
        }
        // Each round finds one more carried value that has the batch, so this ends.
        loop {
            let given = body.inputs().map(|(id, ..)| id).zip(inputs.iter().copied()).collect();
            let classes = Classes::of_body(body, &given, microbatches)?;
            let next = |at: usize| classes.get(body.outputs()[at].value);
            let Some(at) = (0..scan.carried).find(|&at| next(at) != inputs[at]) else {
                let needs_sum = |at: usize| next(at) == BatchDependence::Complete;
                return match (0..body.outputs().len()).any(needs_sum) {
                    true => Err("an iteration needs a sum over the whole batch"),
                    false => Ok(Loop { scan, inputs, classes }),
                };
            };
            match (inputs[at], next(at)) {
                (BatchDependence::Whole, BatchDependence::Sliced(axis)) => {
                    inputs[at] = BatchDependence::Sliced(axis);
                }
                _ => return Err("an iteration needs a sum over the whole batch, or turns it around"),
            }
        }
    }

    /// What the batch has to do with the loop's result.
    pub(super) fn result(&self) -> Result<BatchDependence, &'static str> {
        let is_carried = self.scan.result < self.scan.carried;
        match self.classes.get(self.scan.body.graph().outputs()[self.scan.result].value) {
            BatchDependence::Sliced(axis) if is_carried => Ok(BatchDependence::Sliced(axis)),
            BatchDependence::Sliced(axis) => Ok(BatchDependence::Sliced(axis + 1)),
            BatchDependence::Whole => Err("it has a result that has nothing to do with the batch"),
            partial => Ok(partial),
        }
    }

    /// The forms in which a microbatch takes the loop's operands.
    pub(super) fn forms(&self) -> Vec<Form> {
        let form = |(at, input): (usize, &BatchDependence)| match input {
            BatchDependence::Sliced(axis) if is_given_in_turn(self.scan, at) => Form::Slice(axis + 1),
            BatchDependence::Sliced(axis) => Form::Slice(*axis),
            _ => Form::Whole,
        };
        self.inputs.iter().enumerate().map(form).collect()
    }

    /// The loop of a microbatch. Its body takes the number of the microbatch as one more constant, if that counts.
    ///
    /// # Errors
    /// If a node breaks a type rule.
    pub(super) fn narrowed(&self, microbatches: usize) -> Result<Scan, MicrobatchError> {
        let body = narrowed_body(self.scan.body.graph(), &self.classes, microbatches)?;
        Ok(Scan { body: body.into(), ..self.scan.clone() })
    }
}

/// Whether each iteration is given a slice of this operand.
fn is_given_in_turn(scan: &Scan, operand: usize) -> bool {
    (scan.carried..scan.carried + scan.sliced).contains(&operand)
}
