//! The choice of the next token from a row of logits.
//!
//! Temperature, then top-k, then top-p, then one draw. The draw is a pure function of (seed, position), so the
//! same model, prompt and seed give the same text, however often and in whatever order tokens are picked.

use std::cmp::Ordering;

use kernfusion_ir::random::philox4x32;

/// Keeps the numbers drawn here apart from all others that are drawn with the same seed: it is the last word of
/// the Philox counter, which is 0 inside programs and 1 for training windows.
const STREAM: u32 = 2;

/// Settings that make no sense, or logits that no token can be picked from.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum SampleError {
    /// The temperature is negative, infinite or NaN.
    #[error(
        "temperature {0} is not possible: it must be a finite number, 0 (always the likeliest token) or above"
    )]
    Temperature(f64),
    /// Top-k of zero tokens.
    #[error("top-k 0 leaves no token to pick: it must be at least 1")]
    TopK,
    /// The share of top-p is outside (0, 1].
    #[error("top-p {0} is not possible: it must be above 0 and at most 1")]
    TopP(f64),
    /// There are no logits.
    #[error("there are no logits to pick a token from")]
    NoLogits,
    /// A logit is NaN or plus infinity.
    #[error("the logit of token {token} is {value}: the model's numbers have overflowed")]
    NotFinite {
        /// The first such token.
        token: usize,
        /// Its logit.
        value: f32,
    },
    /// All logits are minus infinity.
    #[error("all {0} logits are minus infinity: no token is possible")]
    AllImpossible(usize),
}

/// How a token is picked; see [`Sampler::pick`].
#[derive(Debug, Clone, PartialEq)]
pub struct Sampler {
    temperature: f64,
    top_k: Option<usize>,
    top_p: Option<f64>,
    seed: u64,
}

/// A token that is still in the choice, and its logit.
type Candidate = (i32, f64);

impl Sampler {
    /// A sampler. `temperature` divides the logits, 0 takes the likeliest token; `top_k` keeps that many of the
    /// likeliest; `top_p` keeps the fewest of the likeliest whose probabilities reach that sum (Holtzman et al.,
    /// "The curious case of neural text degeneration", 2020).
    ///
    /// # Errors
    /// [`SampleError::Temperature`], [`SampleError::TopK`] or [`SampleError::TopP`] for a value out of range.
    pub fn new(
        temperature: f64,
        top_k: Option<usize>,
        top_p: Option<f64>,
        seed: u64,
    ) -> Result<Self, SampleError> {
        if !(temperature.is_finite() && temperature >= 0.0) {
            return Err(SampleError::Temperature(temperature));
        }
        if top_k == Some(0) {
            return Err(SampleError::TopK);
        }
        if let Some(share) = top_p
            && !(share > 0.0 && share <= 1.0)
        {
            return Err(SampleError::TopP(share));
        }
        Ok(Self { temperature, top_k, top_p, seed })
    }

    /// The token at `position` of the text, given its `logits`, one per token of the vocabulary. A logit of minus
    /// infinity excludes its token. Among equal logits the lowest token comes first.
    ///
    /// # Errors
    /// [`SampleError::NoLogits`], [`SampleError::NotFinite`] or [`SampleError::AllImpossible`].
    pub fn pick(&self, logits: &[f32], position: u64) -> Result<i32, SampleError> {
        let candidates = possible(logits)?;
        if self.temperature == 0.0 || self.top_k == Some(1) {
            let likeliest = candidates.into_iter().min_by(likelier_first);
            return Ok(likeliest.expect("there is a possible token").0);
        }
        let candidates = self.keep_top_k(candidates);
        let mut weights = self.weights(&candidates);
        if let Some(share) = self.top_p {
            weights.truncate(nucleus(&weights, share));
        }
        Ok(candidates[draw(&weights, uniform(self.seed, position))].0)
    }

    /// The `top_k` likeliest candidates. They come sorted when a later cut needs it: selecting first is linear in
    /// the vocabulary, and then only k are sorted.
    fn keep_top_k(&self, mut candidates: Vec<Candidate>) -> Vec<Candidate> {
        if let Some(count) = self.top_k
            && count < candidates.len()
        {
            candidates.select_nth_unstable_by(count - 1, likelier_first);
            candidates.truncate(count);
        }
        if self.top_k.is_some() || self.top_p.is_some() {
            candidates.sort_unstable_by(likelier_first);
        }
        candidates
    }

    /// The numerators of the softmax; the largest is 1, so nothing overflows.
    fn weights(&self, candidates: &[Candidate]) -> Vec<f64> {
        let largest = candidates.iter().map(|candidate| candidate.1).fold(f64::NEG_INFINITY, f64::max);
        candidates.iter().map(|candidate| ((candidate.1 - largest) / self.temperature).exp()).collect()
    }
}

/// The tokens that are not excluded, in the order of their ids.
fn possible(logits: &[f32]) -> Result<Vec<Candidate>, SampleError> {
    if logits.is_empty() {
        return Err(SampleError::NoLogits);
    }
    if let Some(token) = logits.iter().position(|logit| logit.is_nan() || *logit == f32::INFINITY) {
        return Err(SampleError::NotFinite { token, value: logits[token] });
    }
    let finite = logits.iter().enumerate().filter(|(_, logit)| logit.is_finite());
    let candidates: Vec<Candidate> = finite.map(|(token, &logit)| (token as i32, f64::from(logit))).collect();
    if candidates.is_empty() { Err(SampleError::AllImpossible(logits.len())) } else { Ok(candidates) }
}

/// Larger logits first, and among equal ones lower tokens.
fn likelier_first(left: &Candidate, right: &Candidate) -> Ordering {
    right.1.partial_cmp(&left.1).expect("NaN was refused").then(left.0.cmp(&right.0))
}

/// How many of the sorted weights it takes to reach `share` of their sum.
fn nucleus(weights: &[f64], share: f64) -> usize {
    let goal = share * weights.iter().sum::<f64>();
    let mut reached = 0.0;
    let short = weights.iter().take_while(|weight| {
        reached += **weight;
        reached < goal
    });
    (short.count() + 1).min(weights.len())
}

/// The index of the weight in which the point `uniform` (of the unit interval) of their sum lies.
fn draw(weights: &[f64], uniform: f64) -> usize {
    let point = uniform * weights.iter().sum::<f64>();
    let mut reached = 0.0;
    let index = weights.iter().position(|weight| {
        reached += weight;
        reached > point
    });
    // Should rounding leave the point at the very end, the last token that has any weight is the one.
    index.or_else(|| weights.iter().rposition(|weight| *weight > 0.0)).expect("the largest weight is 1")
}

/// A number in [0, 1) with 53 random bits, the same for the same seed and position.
fn uniform(seed: u64, position: u64) -> f64 {
    let counter = [position as u32, (position >> 32) as u32, 0, STREAM];
    let words = philox4x32(counter, [seed as u32, (seed >> 32) as u32]);
    let bits = u64::from(words[1]) << 32 | u64::from(words[0]);
    (bits >> 11) as f64 / (1_u64 << 53) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How often each token is picked in `draws` positions.
    fn counts(sampler: &Sampler, logits: &[f32], draws: u64) -> Vec<f64> {
        let mut counts = vec![0.0; logits.len()];
        (0..draws).for_each(|position| counts[sampler.pick(logits, position).unwrap() as usize] += 1.0);
        counts
    }

    /// Checks observed counts against probabilities: five standard deviations of a binomial are allowed.
    fn check(sampler: &Sampler, logits: &[f32], expected: &[f64]) {
        let draws = 20_000;
        for (token, (count, p)) in counts(sampler, logits, draws).iter().zip(expected).enumerate() {
            let deviation = (draws as f64 * p * (1.0 - p)).sqrt();
            let mean = draws as f64 * p;
            assert!((count - mean).abs() <= 5.0 * deviation, "token {token}: {count}, expected {mean}");
        }
    }

    /// The logits of the probabilities 0.1, 0.4, 0.3, 0.2, shifted.
    fn logits() -> Vec<f32> {
        [0.1_f32, 0.4, 0.3, 0.2].iter().map(|p| p.ln() + 3.0).collect()
    }

    #[test]
    fn temperature_zero_and_top_one_are_greedy_and_ties_go_to_the_lowest() {
        let greedy = Sampler::new(0.0, None, None, 1).unwrap();
        let top_one = Sampler::new(0.9, Some(1), Some(0.5), 1).unwrap();
        for position in 0..50 {
            for sampler in [&greedy, &top_one] {
                assert_eq!(sampler.pick(&[0.5, 2.0, -1.0, 2.0], position), Ok(1));
                assert_eq!(sampler.pick(&[-0.0, 0.0], position), Ok(0));
            }
        }
    }

    #[test]
    fn frequencies_are_those_of_the_softmax() {
        check(&Sampler::new(1.0, None, None, 3).unwrap(), &logits(), &[0.1, 0.4, 0.3, 0.2]);
        // Temperature 1/2 squares the probabilities: 1, 16, 9, 4 of 30.
        let squared = [1.0 / 30.0, 16.0 / 30.0, 9.0 / 30.0, 4.0 / 30.0];
        check(&Sampler::new(0.5, None, None, 4).unwrap(), &logits(), &squared);
    }

    #[test]
    fn top_k_and_top_p_keep_the_likeliest() {
        check(&Sampler::new(1.0, Some(2), None, 5).unwrap(), &logits(), &[0.0, 4.0 / 7.0, 3.0 / 7.0, 0.0]);
        // 0.4 + 0.3 falls short of 0.75, so the third joins.
        let expected = [0.0, 4.0 / 9.0, 3.0 / 9.0, 2.0 / 9.0];
        check(&Sampler::new(1.0, None, Some(0.75), 6).unwrap(), &logits(), &expected);
        // 0.4 + 0.3 reaches 0.69.
        let expected = [0.0, 4.0 / 7.0, 3.0 / 7.0, 0.0];
        check(&Sampler::new(1.0, None, Some(0.69), 6).unwrap(), &logits(), &expected);
        // After top-k the two have 4/7 and 3/7, so the first alone reaches one half.
        check(&Sampler::new(1.0, Some(2), Some(0.5), 7).unwrap(), &logits(), &[0.0, 1.0, 0.0, 0.0]);
        check(&Sampler::new(1.0, Some(99), Some(1.0), 8).unwrap(), &logits(), &[0.1, 0.4, 0.3, 0.2]);
        let tiny = Sampler::new(1.0, None, Some(1e-12), 9).unwrap();
        check(&tiny, &logits(), &[0.0, 1.0, 0.0, 0.0]);
    }

    #[test]
    fn among_equal_logits_top_k_keeps_the_lowest_tokens() {
        let sampler = Sampler::new(1.0, Some(2), None, 10).unwrap();
        check(&sampler, &[1.0, 1.0, 1.0, 1.0], &[0.5, 0.5, 0.0, 0.0]);
    }

    #[test]
    fn picks_are_reproducible_and_differ_by_seed() {
        let picks = |seed| {
            let sampler = Sampler::new(1.0, None, None, seed).unwrap();
            (0..64).map(|position| sampler.pick(&logits(), position).unwrap()).collect::<Vec<i32>>()
        };
        assert_eq!(picks(11), picks(11));
        assert_ne!(picks(11), picks(12));
        assert_ne!(picks(11), picks(11 + (1 << 32)));
    }

    #[test]
    fn extreme_numbers_do_no_harm() {
        let excluded = [f32::NEG_INFINITY, 1.0, f32::NEG_INFINITY, 1.0];
        check(&Sampler::new(1.0, None, None, 13).unwrap(), &excluded, &[0.0, 0.5, 0.0, 0.5]);
        check(&Sampler::new(1.0, Some(3), None, 14).unwrap(), &excluded, &[0.0, 0.5, 0.0, 0.5]);
        check(&Sampler::new(1.0, None, None, 15).unwrap(), &[f32::MAX, f32::MIN], &[1.0, 0.0]);
        check(&Sampler::new(1e-310, None, None, 16).unwrap(), &logits(), &[0.0, 1.0, 0.0, 0.0]);
        check(&Sampler::new(1e300, None, None, 17).unwrap(), &logits(), &[0.25; 4]);
    }

    #[test]
    fn settings_out_of_range_are_refused() {
        for temperature in [-0.5, f64::NAN, f64::INFINITY] {
            let error = Sampler::new(temperature, None, None, 0).unwrap_err().to_string();
            assert!(error.starts_with(&format!("temperature {temperature} is not possible")), "{error}");
        }
        assert_eq!(Sampler::new(1.0, Some(0), None, 0), Err(SampleError::TopK));
        for share in [0.0, 1.01, f64::NAN] {
            let error = Sampler::new(1.0, None, Some(share), 0).unwrap_err().to_string();
            assert!(error.starts_with(&format!("top-p {share} is not possible")), "{error}");
        }
    }

    #[test]
    fn unusable_logits_are_refused_also_by_the_greedy_sampler() {
        for temperature in [0.0, 1.0] {
            let sampler = Sampler::new(temperature, None, None, 0).unwrap();
            assert_eq!(sampler.pick(&[], 0), Err(SampleError::NoLogits));
            let error = sampler.pick(&[1.0, f32::NAN, 2.0], 0).unwrap_err().to_string();
            assert!(error.starts_with("the logit of token 1 is NaN"), "{error}");
            let error = sampler.pick(&[f32::INFINITY, 0.5], 0).unwrap_err().to_string();
            assert!(error.starts_with("the logit of token 0 is inf"), "{error}");
            assert_eq!(sampler.pick(&[f32::NEG_INFINITY; 3], 0), Err(SampleError::AllImpossible(3)));
        }
    }
}
