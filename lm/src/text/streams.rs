//! Documents as streams, for models that carry a state from batch to batch.
//!
//! In each epoch the documents are shuffled whole and put one behind the other. The text is cut into as many streams as a
//! batch has rows; row i of the next batch begins where row i of this one ended:
//!
//! ```text
//! epoch 0:  documents 2 0 1 → abcdefghijklmnopq → streams  abcdefgh     batch 0  abc   batch 1  def
//!                                                          ijklmnop              ijk            lmn
//! ```
//!
//! Which tokens a step takes is a pure function of (seed, step).

use super::{Batch, TextError};
use kernfusion_ir::random::philox4x32;

/// Keeps these numbers apart from all others drawn with the same seed: the last word of the Philox counter, which is 0 inside
/// programs, 1 for windows, 2 for sampling, 3 for first values, 4 for hidden tokens and 5 for random letters.
const STREAM: u32 = 6;

/// The batches of a run over documents.
#[derive(Debug, Clone)]
pub struct Streams {
    documents: Vec<Vec<i32>>,
    batch: usize,
    context: usize,
    seed: u64,
    steps: u64,
    /// The last epoch that was asked for, and its text.
    epoch: Option<(u64, Vec<i32>)>,
}

impl Streams {
    /// Batches of `batch` streams, `context` tokens a step.
    ///
    /// # Errors
    /// [`TextError::NoTokensAsked`] when `batch` or `context` is 0, [`TextError::TooShort`] when the documents together are
    /// too short for one batch.
    pub fn new(documents: Vec<Vec<i32>>, batch: usize, context: usize, seed: u64) -> Result<Self, TextError> {
        if batch == 0 || context == 0 {
            return Err(TextError::NoTokensAsked { batch, context });
        }
        let length = documents.iter().map(Vec::len).sum::<usize>() / batch;
        if length <= context {
            let part = format!("each of the {batch} streams");
            return Err(TextError::TooShort { part, has: length, context });
        }
        // A stream's last token is only a target.
        let steps = ((length - 1) / context) as u64;
        Ok(Self { documents, batch, context, seed, steps, epoch: None })
    }

    /// Steps in an epoch.
    pub fn steps_per_epoch(&self) -> u64 {
        self.steps
    }

    /// Whether a step begins an epoch: then the text before it is another one, and a model's state starts anew.
    pub fn begins_epoch(&self, step: u64) -> bool {
        step.is_multiple_of(self.steps)
    }

    /// The batch of one step.
    pub fn batch(&mut self, step: u64) -> Batch {
        let (context, at) = (self.context, (step % self.steps) as usize * self.context);
        let rows = self.batch;
        let text = self.text(step / self.steps);
        let length = text.len() / rows;
        let row = |row: usize, shift: usize| {
            let start = row * length + at + shift;
            text[start..start + context].to_vec()
        };
        let take = |shift| (0..rows).flat_map(|number| row(number, shift)).collect();
        (take(0), take(1))
    }

    fn text(&mut self, epoch: u64) -> &[i32] {
        if self.epoch.as_ref().is_none_or(|(number, _)| *number != epoch) {
            let order = shuffled(self.documents.len(), self.seed, epoch);
            let text = order.into_iter().flat_map(|document| self.documents[document].iter().copied());
            self.epoch = Some((epoch, text.collect()));
        }
        &self.epoch.as_ref().expect("it was just made").1
    }
}

/// The numbers below `count` in an order that is a function of seed and epoch (Fisher and Yates, as Knuth's algorithm P).
pub fn shuffled(count: usize, seed: u64, epoch: u64) -> Vec<usize> {
    let mut order: Vec<usize> = (0..count).collect();
    for last in (1..count).rev() {
        let counter = [last as u32, epoch as u32, (epoch >> 32) as u32, STREAM];
        let words = philox4x32(counter, [seed as u32, (seed >> 32) as u32]);
        let bits = u64::from(words[1]) << 32 | u64::from(words[0]);
        order.swap(last, ((u128::from(bits) * (last as u128 + 1)) >> 64) as usize);
    }
    order
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    /// Documents of different lengths; every token is a number of its own.
    fn documents() -> Vec<Vec<i32>> {
        let mut next = 0..;
        (1..12).map(|length| next.by_ref().take(length).collect()).collect()
    }

    #[test]
    fn a_row_goes_on_in_the_next_batch() {
        let mut streams = Streams::new(documents(), 3, 4, 7).unwrap();
        // 66 tokens are 22 a stream, of which 21 are inputs: five steps of four.
        assert_eq!(streams.steps_per_epoch(), 5);
        for epoch in 0..3 {
            let mut targets: Option<Vec<i32>> = None;
            let mut seen = BTreeSet::new();
            for step in epoch * 5..epoch * 5 + 5 {
                assert_eq!(streams.begins_epoch(step), step == epoch * 5);
                let (x, y) = streams.batch(step);
                for row in 0..3 {
                    let [x, y] = [&x, &y].map(|tokens| &tokens[4 * row..4 * row + 4]);
                    assert_eq!(x[1..], y[..3]);
                    // The last target is the input that comes next.
                    assert!(targets.as_ref().is_none_or(|targets| targets[4 * row + 3] == x[0]));
                }
                targets = Some(y);
                seen.extend(x);
            }
            assert_eq!(seen.len(), 5 * 3 * 4, "no token is in two streams");
        }
    }

    #[test]
    fn documents_stay_whole_and_their_order_changes() {
        let mut streams = Streams::new(documents(), 1, 5, 3).unwrap();
        let steps = streams.steps_per_epoch();
        let epoch = |streams: &mut Streams, epoch: u64| -> Vec<i32> {
            (epoch * steps..(epoch + 1) * steps).flat_map(|step| streams.batch(step).0).collect()
        };
        let (first, second) = (epoch(&mut streams, 0), epoch(&mut streams, 1));
        assert_ne!(first, second);
        assert_eq!(epoch(&mut streams, 0), first, "a function of seed and step");
        let starts: BTreeSet<i32> = documents().iter().map(|document| document[0]).collect();
        for pair in first.windows(2) {
            assert!(pair[1] == pair[0] + 1 || starts.contains(&pair[1]), "{pair:?}");
        }
        let mut other = Streams::new(documents(), 1, 5, 4).unwrap();
        assert_ne!(epoch(&mut other, 0), first);
    }

    #[test]
    fn orders_are_permutations_and_uniform() {
        let mut counts = [[0_u32; 4]; 4];
        for epoch in 0..4000 {
            let order = shuffled(4, 9, epoch);
            assert_eq!(order.iter().collect::<BTreeSet<_>>().len(), 4);
            order.into_iter().enumerate().for_each(|(place, number)| counts[place][number] += 1);
        }
        // 1000 each, with a standard deviation of 27.
        assert!(counts.iter().flatten().all(|count| (880..1120).contains(count)), "{counts:?}");
    }

    #[test]
    fn too_few_tokens_are_refused() {
        let error = Streams::new(documents(), 11, 6, 0).unwrap_err().to_string();
        assert!(
            error.starts_with("each of the 11 streams has 6 tokens, but one window of 6 needs 7"),
            "{error}"
        );
        assert!(matches!(Streams::new(documents(), 0, 6, 0), Err(TextError::NoTokensAsked { .. })));
    }
}
