//! Traced updates against plain code, and the schedules.

use super::*;
use crate::init::Init;
use crate::testing::{assert_close, evaluate};
use crate::trace::Trace;
use std::collections::BTreeMap;

const TARGET: [f64; 3] = [0.5, -2.0, 3.0];

/// Runs steps on the loss Σ (p − target)²; `p` after each step.
fn run(optimizer: &Optimizer, clip: Option<f64>, rates: &[f64]) -> Vec<Vec<f64>> {
    states(optimizer, clip, rates).into_iter().map(|mut states| states.remove("p").expect("p")).collect()
}

/// As [`run`]; all states after each step.
fn states(optimizer: &Optimizer, clip: Option<f64>, rates: &[f64]) -> Vec<BTreeMap<String, Vec<f64>>> {
    let trace = Trace::training();
    let (p, target) = (trace.parameter("p", [3], Init::Ones), trace.input("target", [3], DType::F32));
    let loss = (&p - target).square().sum_all();
    let step = TrainStep::new(&loss, optimizer, clip).expect("correct");
    let mut states = BTreeMap::new();
    let mut history = vec![];
    for (i, &rate) in rates.iter().enumerate() {
        let mut inputs: Vec<(&str, Vec<f64>)> = vec![("target", TARGET.to_vec())];
        let scalars = step.scalars(i as u64, rate, 0);
        inputs.extend(scalars.iter().map(|(name, scalar)| (*name, scalar.to_f64())));
        inputs.extend(
            states.iter().map(|(name, values): (&String, &Vec<f64>)| (name.as_str(), values.clone())),
        );
        let mut results = evaluate(&step.program, &inputs);
        results.retain(|name, _| name != "loss" && name != "grad_norm");
        history.push(results.clone());
        states = results;
    }
    history
}

/// The same in plain code: `change(element, gradient, p, step)` is the new p.
fn plain(steps: usize, mut change: impl FnMut(usize, f64, f64, usize) -> f64) -> Vec<Vec<f64>> {
    let mut p = [1.0; 3];
    let step = |t| {
        for i in 0..3 {
            p[i] = change(i, 2.0 * (p[i] - TARGET[i]), p[i], t);
        }
        p.to_vec()
    };
    (0..steps).map(step).collect()
}

#[test]
fn adam_and_adamw_are_the_formulas_of_torch() {
    for decoupled in [false, true] {
        let moments = Moments { learning_rate: 0.1, betas: [0.8, 0.95], epsilon: 1e-3, weight_decay: 0.1 };
        let optimizer = if decoupled { Optimizer::AdamW(moments) } else { Optimizer::Adam(moments) };
        let (mut m, mut v) = ([0.0; 3], [0.0; 3]);
        let expected = plain(5, |i, gradient, p, t| {
            let rate = 0.1 / (t as f64 + 1.0);
            let gradient = if decoupled { gradient } else { gradient + 0.1 * p };
            m[i] = 0.8 * m[i] + 0.2 * gradient;
            v[i] = 0.95 * v[i] + 0.05 * gradient * gradient;
            let t = t as i32 + 1;
            let (m, v) = (m[i] / (1.0 - 0.8f64.powi(t)), v[i] / (1.0 - 0.95f64.powi(t)));
            let kept = if decoupled { 1.0 - rate * 0.1 } else { 1.0 };
            p * kept - rate * m / (v.sqrt() + 1e-3)
        });
        let rates: Vec<_> = (0..5).map(|t| 0.1 / (f64::from(t) + 1.0)).collect();
        // The scalars are rounded to f32.
        assert_close(&run(&optimizer, None, &rates).concat(), &expected.concat(), 1e-6);
    }
}

#[test]
fn sgd_with_and_without_momentum() {
    let mut b = [0.0; 3];
    let expected = plain(4, |i, gradient, p, _| {
        b[i] = 0.9 * b[i] + gradient + 0.01 * p;
        p - 0.25 * b[i]
    });
    let optimizer = Optimizer::Sgd { learning_rate: 0.25, momentum: 0.9, weight_decay: 0.01 };
    assert_close(&run(&optimizer, None, &[0.25; 4]).concat(), &expected.concat(), 1e-6);
    let expected = plain(4, |_, gradient, p, _| p - 0.25 * gradient);
    assert_close(&run(&Optimizer::sgd(0.25), None, &[0.25; 4]).concat(), &expected.concat(), 1e-12);
}

/// Parameters and averages of `torch.optim.ASGD` in PyTorch 2.13 in `f64`, on the same loss.
#[test]
fn asgd_is_that_of_torch() {
    let averaging = Averaging { learning_rate: 0.1, decay: 0.01, power: 0.75, start: 2, weight_decay: 0.1 };
    let optimizer = Optimizer::Asgd(averaging);
    let expected = [
        [0.889, 0.389, 1.389],
        [0.8014866268289162, -0.09271775682461487, 1.6956910104824472],
        [0.7324764379939879, -0.472584652123184, 1.9375375281111598],
        [0.6780463314488906, -0.7721954187813322, 2.128288081679113],
        [0.6351073082812495, -1.008553465226636, 2.278768081789135],
        [0.6012266394989911, -1.1950497591542026, 2.3975030381521845],
    ];
    let averages = [
        [0.6780463314488906, -0.7721954187813322, 2.128288081679113],
        [0.6565768198650701, -0.8903744420039841, 2.203528081734124],
        [0.6381267597430438, -0.991932881054057, 2.268186400540144],
    ];
    // The scalars are rounded to f32.
    assert_close(&run(&optimizer, None, &[0.1; 6]).concat(), &expected.concat(), 1e-6);
    let averaged = states(&optimizer, None, &[0.1; 6]);
    let averaged: Vec<_> = averaged[3..].iter().flat_map(|states| states["optimizer.a.p"].clone()).collect();
    assert_close(&averaged, &averages.concat(), 1e-6);
    assert_eq!(optimizer.learning_rate(), 0.1);
}

#[test]
fn clipping_scales_all_gradients_together() {
    // The first gradient is (1, 6, −4), of norm √53.
    let scale = 2.0 / (53f64.sqrt() + 1e-6);
    let expected = [1.0 - 0.5 * scale, 1.0 - 3.0 * scale, 1.0 + 2.0 * scale];
    assert_close(&run(&Optimizer::sgd(0.5), Some(2.0), &[0.5])[0], &expected, 1e-12);
    assert_close(&run(&Optimizer::sgd(0.5), Some(8.0), &[0.5])[0], &[0.5, -2.0, 3.0], 1e-12);
}

#[test]
fn bias_corrections_keep_their_digits() {
    let scalars = Optimizer::adamw(1e-3).scalars(0, 1e-3);
    assert_eq!(scalars[0], ("lr", 1e-3));
    assert!((scalars[1].1 - 0.1).abs() < 1e-8 && (scalars[2].1 - 0.001).abs() < 1e-10);
    let late = Optimizer::adamw(1e-3).scalars(1_000_000, 1e-3);
    assert_eq!((late[1].1, late[2].1), (1.0, 1.0));
    assert_eq!(Optimizer::sgd(0.1).scalars(3, 0.05), [("lr", 0.05)]);
}

#[test]
fn schedules() {
    assert_eq!(Schedule::Constant.rate(0.3, 1000), 0.3);
    let warm_up = Schedule::WarmUp { steps: 4 };
    assert_eq!([0, 1, 3, 4, 9].map(|step| warm_up.rate(8.0, step)), [2.0, 4.0, 8.0, 8.0, 8.0]);
    let cosine = Schedule::Cosine { warm_up: 2, steps: 12, floor: 0.1 };
    let rates = [0, 1, 2, 7, 12, 100].map(|step| cosine.rate(1.0, step));
    assert_close(&rates, &[0.5, 1.0, 1.0, 0.55, 0.1, 0.1], 1e-15);
    assert_eq!(Schedule::Cosine { warm_up: 0, steps: 0, floor: 0.0 }.rate(1.0, 0), 1.0);
    for possible in [Schedule::Constant, warm_up, cosine] {
        possible.validate().unwrap();
    }
    let refusal = |warm_up, steps, floor| {
        Schedule::Cosine { warm_up, steps, floor }.validate().unwrap_err().to_string()
    };
    for floor in [1.5, -0.1, f64::NAN] {
        let expected = format!("configuration: the floor {floor} of the schedule is not between 0 and 1");
        assert_eq!(refusal(2, 12, floor), expected);
    }
    let expected =
        "configuration: a warm-up of 20 steps is not shorter than the schedule, which has 12 with it";
    assert_eq!(refusal(20, 12, 0.1), expected);
}

#[test]
fn settings_out_of_range_are_refused() {
    let adamw = |change: fn(&mut Moments)| {
        let mut moments = Moments::new(1e-3, 0.01);
        change(&mut moments);
        Optimizer::AdamW(moments).validate().expect_err("out of range").to_string()
    };
    assert_eq!(adamw(|m| m.learning_rate = -1.0), "configuration: learning rate -1 is out of range");
    assert_eq!(adamw(|m| m.betas[1] = 1.0), "configuration: beta 1 is out of range");
    assert_eq!(adamw(|m| m.epsilon = f64::NAN), "configuration: epsilon NaN is out of range");
    assert_eq!(adamw(|m| m.weight_decay = f64::INFINITY), "configuration: weight decay inf is out of range");
    let trace = Trace::new();
    let loss = trace.zeros([]);
    let error = TrainStep::new(&loss, &Optimizer::sgd(1.0), Some(0.0)).expect_err("no such norm").to_string();
    assert_eq!(error, "configuration: the clipping norm 0 is not above 0");
    let error = TrainStep::new(&trace.parameter("w", [2], Init::Zeros), &Optimizer::sgd(1.0), None)
        .expect_err("no scalar")
        .to_string();
    let expected =
        "TrainStep::new(f32[2]): the loss must be a scalar of floats: `.mean_all()` and `.sum_all()`";
    assert!(error.starts_with(expected), "{error}");
    assert!(error.contains("optim/tests.rs:"), "{error}");
}

#[test]
fn optimizers_are_written_and_read_as_json() {
    for optimizer in [Optimizer::sgd(0.1), Optimizer::adam(1e-3), Optimizer::adamw(3e-4)] {
        let json = serde_json::to_string(&optimizer).expect("plain data");
        assert_eq!(serde_json::from_str::<Optimizer>(&json).expect("what was written"), optimizer);
    }
}
