//! How far two loss curves are apart.

use serde::Serialize;

/// The distances |a − b| of two curves, step by step, in nats per token.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Deviation {
    /// Of each step.
    pub distances: Vec<f64>,
    /// The largest one.
    pub max: f64,
    /// The step, counted from 1, where it is.
    pub step: usize,
    /// Their mean.
    pub mean: f64,
    /// What was asked for at most.
    pub bound: f64,
}

impl Deviation {
    /// Compares two curves of the same length, which is not 0.
    pub fn new(ours: &[f64], reference: &[f64], bound: f64) -> Self {
        let distances: Vec<f64> = ours.iter().zip(reference).map(|(a, b)| (a - b).abs()).collect();
        let (last, max) = distances.iter().enumerate().fold((0, 0.0), |largest, (step, &distance)| {
            // Written so that a NaN is the largest.
            if distance <= largest.1 { largest } else { (step, distance) }
        });
        let mean = distances.iter().sum::<f64>() / distances.len() as f64;
        Deviation { max, step: last + 1, mean, bound, distances }
    }

    /// Whether no step is farther apart than was asked for.
    pub fn is_within_bound(&self) -> bool {
        self.distances.iter().all(|&distance| distance <= self.bound)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_distance_and_its_step() {
        let deviation = Deviation::new(&[4.0, 3.0, 2.5], &[4.0, 3.5, 2.75], 0.5);
        assert_eq!((deviation.max, deviation.step, deviation.mean), (0.5, 2, 0.25));
        assert!(deviation.is_within_bound());
        assert!(!Deviation::new(&[1.0], &[1.5], 0.25).is_within_bound());
        assert!(!Deviation::new(&[1.0, f64::NAN], &[1.0, 1.0], 0.25).is_within_bound());
    }
}
