//! Batches for language modelling: windows of a text, and the same windows one token later.
//!
//! Window with start `s`: `x = tokens[s .. s + context]`, `y = tokens[s + 1 .. s + context + 1]`. Which windows a
//! step takes is a pure function of (seed, step), so a resumed run continues exactly where it stopped.

use kernfusion_ir::random::philox4x32;

use super::TextError;

/// Keeps the numbers drawn here apart from all others that are drawn with the same seed: it is the last word of
/// the Philox counter, which is 0 inside programs.
const STREAM: u32 = 1;

/// How windows follow one another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// Every start is drawn anew, uniformly, with replacement.
    Random,
    /// From the start of the text on, each window beginning where the one before it ended; when no whole window is
    /// left, from the start again.
    Sequential,
    /// The text is cut into as many streams as a batch has rows; each row goes on where the one of the batch before ended. When
    /// a stream has no whole window left, all begin again.
    Streams,
}

/// Inputs and targets, both `[batch, context]`, row-major.
pub type Batch = (Vec<i32>, Vec<i32>);

/// The batches of a training run.
#[derive(Debug, Clone)]
pub struct Windows<'a> {
    tokens: &'a [i32],
    batch: usize,
    context: usize,
    order: Order,
    seed: u64,
}

impl<'a> Windows<'a> {
    /// Batches of `batch` windows of `context` tokens each.
    ///
    /// # Errors
    /// [`TextError::NoTokensAsked`] when `batch` or `context` is 0, [`TextError::TooShort`] when there are fewer
    /// than `context + 1` tokens.
    pub fn new(
        tokens: &'a [i32],
        batch: usize,
        context: usize,
        order: Order,
        seed: u64,
    ) -> Result<Self, TextError> {
        check(tokens, batch, context)?;
        Ok(Self { tokens, batch, context, order, seed })
    }

    /// The batch of one step.
    pub fn batch(&self, step: u64) -> Batch {
        gather(self.tokens, self.context, self.starts(step))
    }

    /// Where the windows of one step start.
    pub fn starts(&self, step: u64) -> impl Iterator<Item = usize> {
        let first = step.wrapping_mul(self.batch as u64);
        (0..self.batch as u64).map(move |row| self.start(first.wrapping_add(row)))
    }

    /// Where the run's window number `window` starts.
    fn start(&self, window: u64) -> usize {
        match self.order {
            Order::Random => uniform(self.seed, window, self.tokens.len() - self.context),
            Order::Sequential => {
                let windows_in_text = (self.tokens.len() - 1) / self.context;
                (window % windows_in_text as u64) as usize * self.context
            }
            Order::Streams => {
                let (step, row) = (window / self.batch as u64, window % self.batch as u64);
                let stream = (self.tokens.len() - 1) / self.batch;
                let last = self.tokens.len() - 1 - self.context;
                let steps = (stream / self.context).max(1) as u64;
                (row as usize * stream + (step % steps) as usize * self.context).min(last)
            }
        }
    }
}

/// `count` batches for evaluation, always the same: their windows are spread evenly over the
/// text, the first at its start and the last at its end. They overlap when the text is short.
///
/// # Errors
/// Those of [`Windows::new`].
pub fn validation_windows(
    tokens: &[i32],
    batch: usize,
    context: usize,
    count: usize,
) -> Result<Vec<Batch>, TextError> {
    check(tokens, batch, context)?;
    let last_start = tokens.len() - context - 1;
    let intervals = (batch * count).saturating_sub(1).max(1);
    let start = |window: usize| (window as u128 * last_start as u128 / intervals as u128) as usize;
    Ok((0..count)
        .map(|number| gather(tokens, context, (0..batch).map(|row| start(number * batch + row))))
        .collect())
}

fn check(tokens: &[i32], batch: usize, context: usize) -> Result<(), TextError> {
    if batch == 0 || context == 0 {
        return Err(TextError::NoTokensAsked { batch, context });
    }
    if tokens.len() <= context {
        return Err(TextError::TooShort { part: "the text".into(), has: tokens.len(), context });
    }
    Ok(())
}

fn gather(tokens: &[i32], context: usize, starts: impl Iterator<Item = usize>) -> Batch {
    let (mut x, mut y) = (Vec::new(), Vec::new());
    for start in starts {
        x.extend_from_slice(&tokens[start..start + context]);
        y.extend_from_slice(&tokens[start + 1..start + context + 1]);
    }
    (x, y)
}

/// A number in `0..choices`, the same for the same seed and window.
///
/// The high half of a 64-bit random word times `choices` (Lemire, "Fast random integer generation in an
/// interval", 2019) prefers no number by more than `choices / 2^64`.
fn uniform(seed: u64, window: u64, choices: usize) -> usize {
    let counter = [window as u32, (window >> 32) as u32, 0, STREAM];
    let words = philox4x32(counter, [seed as u32, (seed >> 32) as u32]);
    let bits = u64::from(words[1]) << 32 | u64::from(words[0]);
    ((u128::from(bits) * choices as u128) >> 64) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Tokens that are their own positions, so that a window shows where it starts.
    fn positions(length: i32) -> Vec<i32> {
        (0..length).collect()
    }

    fn starts(windows: &Windows, step: u64) -> Vec<i32> {
        windows.batch(step).0.chunks(windows.context).map(|row| row[0]).collect()
    }

    #[test]
    fn targets_are_the_inputs_one_token_later() {
        let tokens = positions(100);
        let windows = Windows::new(&tokens, 3, 7, Order::Random, 5).unwrap();
        for step in 0..50 {
            let (x, y) = windows.batch(step);
            assert_eq!((x.len(), y.len()), (21, 21));
            for row in x.chunks(7) {
                assert!(row.windows(2).all(|pair| pair[1] == pair[0] + 1), "{row:?}");
            }
            assert!(x.iter().zip(&y).all(|(x, y)| *y == x + 1));
        }
    }

    #[test]
    fn a_batch_depends_on_seed_and_step_and_on_nothing_else() {
        let tokens = positions(100_000);
        let windows = |seed| Windows::new(&tokens, 4, 16, Order::Random, seed).unwrap();
        let run: Vec<_> = (0..5).map(|step| starts(&windows(9), step)).collect();
        assert_eq!(starts(&windows(9), 3), run[3], "a run resumed at step 3 sees what it would have seen");
        assert_ne!(run[0], run[1]);
        assert_ne!(starts(&windows(10), 0), run[0]);
        assert_ne!(starts(&windows(9 + (1 << 32)), 0), run[0], "the upper half of the seed counts");
    }

    #[test]
    fn random_starts_are_uniform_and_reach_both_ends() {
        let tokens = positions(15);
        let windows = Windows::new(&tokens, 100, 4, Order::Random, 77).unwrap();
        let mut counts = [0_u32; 11];
        for step in 0..110 {
            starts(&windows, step).into_iter().for_each(|start| counts[start as usize] += 1);
        }
        // 11,000 draws over 11 starts: 1000 each, with a standard deviation of 30.
        assert!(counts.iter().all(|count| (850..1150).contains(count)), "{counts:?}");
    }

    #[test]
    fn a_text_of_exactly_one_window_has_one_start() {
        let tokens = positions(9);
        for order in [Order::Random, Order::Sequential] {
            let windows = Windows::new(&tokens, 3, 8, order, 1).unwrap();
            assert_eq!(starts(&windows, 4), [0, 0, 0]);
        }
    }

    #[test]
    fn sequential_windows_follow_one_another_and_wrap() {
        // Starts 0, 4, 8: a window at 12 would need the token at position 16.
        let tokens = positions(16);
        let windows = Windows::new(&tokens, 2, 4, Order::Sequential, 0).unwrap();
        let run: Vec<_> = (0..4).map(|step| starts(&windows, step)).collect();
        assert_eq!(run, [[0, 4], [8, 0], [4, 8], [0, 4]]);
        // One token more, and the window at 12 is whole.
        let tokens = positions(17);
        let windows = Windows::new(&tokens, 2, 4, Order::Sequential, 0).unwrap();
        assert_eq!(starts(&windows, 1), [8, 12]);
        assert_eq!(starts(&windows, 2), [0, 4]);
    }

    #[test]
    fn validation_windows_are_spread_from_end_to_end() {
        let tokens = positions(105);
        let batches = validation_windows(&tokens, 3, 4, 2).unwrap();
        let starts: Vec<i32> = batches.iter().flat_map(|(x, _)| x.chunks(4).map(|row| row[0])).collect();
        assert_eq!(starts, [0, 20, 40, 60, 80, 100]);
        assert_eq!(batches[1].1[8..], [101, 102, 103, 104]);
        assert_eq!(validation_windows(&tokens, 1, 4, 1).unwrap()[0].0, [0, 1, 2, 3]);
        assert!(validation_windows(&tokens, 3, 4, 0).unwrap().is_empty());
    }

    #[test]
    fn impossible_windows_are_refused() {
        let tokens = positions(8);
        let error = Windows::new(&tokens, 1, 8, Order::Random, 0).unwrap_err().to_string();
        assert!(error.starts_with("the text has 8 tokens, but one window of 8 needs 9"), "{error}");
        let error = Windows::new(&tokens, 0, 4, Order::Random, 0).unwrap_err().to_string();
        assert!(error.contains("batch of 0 windows of 4 tokens"), "{error}");
        assert!(matches!(
            Windows::new(&tokens, 1, 0, Order::Random, 0),
            Err(TextError::NoTokensAsked { .. })
        ));
        assert!(matches!(validation_windows(&tokens, 1, 9, 1), Err(TextError::TooShort { has: 8, .. })));
    }
}
