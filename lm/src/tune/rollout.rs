//! From responses and rewards to what a policy learns from, on the host.
//!
//! All slices are of one row, and cover its tokens up to the last one of the response.

/// Generalised advantage estimation (Schulman et al., 2016, equation 16): δ_t = r_t + γ·V_{t+1} − V_t and
/// A_t = δ_t + γλ·A_{t+1}; behind the last token there is nothing. The returns, which values are to learn, are A_t + V_t.
pub fn advantages(rewards: &[f64], values: &[f64], discount: f64, lambda: f64) -> (Vec<f64>, Vec<f64>) {
    let mut advantages = vec![0.0; rewards.len()];
    let (mut next, mut value) = (0.0, 0.0);
    for t in (0..rewards.len()).rev() {
        next = rewards[t] + discount * value - values[t] + discount * lambda * next;
        (advantages[t], value) = (next, values[t]);
    }
    let returns = advantages.iter().zip(values).map(|(advantage, value)| advantage + value).collect();
    (advantages, returns)
}

/// An estimate of KL(π ‖ reference) in nats of tokens drawn from π: Σ ρ − 1 − ln ρ, with ρ = reference / π (Schulman,
/// "Approximating KL divergence", 2020, k₃). Its expectation is that of Σ −ln ρ, it is never negative, and varies less.
pub fn divergence(log_policy: &[f64], log_reference: &[f64]) -> f64 {
    let term = |(policy, reference): (&f64, &f64)| {
        let log_ratio = reference - policy;
        log_ratio.exp_m1() - log_ratio
    };
    log_policy.iter().zip(log_reference).map(term).sum()
}

/// Subtracts the mean and divides by the standard deviation.
pub(super) fn standardize(values: &mut [f64]) {
    let count = values.len() as f64;
    let mean = values.iter().sum::<f64>() / count;
    let variance = values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / count;
    // Equal values have no direction.
    let scale = 1.0 / (variance.sqrt() + 1e-8);
    values.iter_mut().for_each(|value| *value = (*value - mean) * scale);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::assert_close;

    #[test]
    fn advantages_are_sums_of_discounted_errors() {
        let (rewards, values) = ([0.5, -1.0, 2.0], [0.3, 0.7, -0.2]);
        let (discount, lambda) = (0.9, 0.8);
        let errors = [0.5 + 0.9 * 0.7 - 0.3, -1.0 + 0.9 * -0.2 - 0.7, 2.0 - -0.2];
        let expected =
            [errors[0] + 0.72 * errors[1] + 0.72 * 0.72 * errors[2], errors[1] + 0.72 * errors[2], errors[2]];
        let (found, returns) = advantages(&rewards, &values, discount, lambda);
        assert_close(&found, &expected, 1e-15);
        assert_close(&returns, &[expected[0] + 0.3, expected[1] + 0.7, expected[2] - 0.2], 1e-15);
        // Without discount and with λ = 1 a return is the sum of all rewards to come.
        assert_close(&advantages(&rewards, &values, 1.0, 1.0).1, &[1.5, 1.0, 2.0], 1e-15);
    }

    #[test]
    fn the_divergence_has_its_expectation_and_no_sign() {
        let (policy, reference): ([f64; 3], [f64; 3]) = ([0.5, 0.3, 0.2], [0.2, 0.3, 0.5]);
        let exact: f64 = policy.iter().zip(reference).map(|(p, q)| p * (p / q).ln()).sum();
        let terms = policy.iter().zip(reference).map(|(p, q)| divergence(&[p.ln()], &[q.ln()]));
        let terms: Vec<_> = terms.collect();
        assert!(terms.iter().all(|term| *term >= 0.0));
        let expected: f64 = terms.iter().zip(policy).map(|(term, p)| term * p).sum();
        assert_close(&[expected], &[exact], 1e-12);
    }

    #[test]
    fn standardized_values_have_mean_zero_and_variance_one() {
        let mut values = [1.0, 2.0, 6.0, -3.0];
        standardize(&mut values);
        assert_close(
            &[values.iter().sum::<f64>(), values.iter().map(|x| x * x).sum::<f64>()],
            &[0.0, 4.0],
            1e-7,
        );
        let mut equal = [2.0; 3];
        standardize(&mut equal);
        assert_eq!(equal, [0.0; 3]);
    }
}
