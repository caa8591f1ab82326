//! `Target::check_finite` names the operation and the line that made the first number that is not finite.

use kernfusion::compile::{Maker, Mode, NonFinite, Target};
use kernfusion::prelude::*;

/// A training step of one layer in a module.
fn step(layer: impl Fn(&Tensor) -> Tensor) -> TrainStep {
    let trace = Trace::training();
    let x = trace.input("x", [4, 3], DType::F32);
    let w = trace.parameter("w", [3], Init::Zeros);
    let scope = trace.scope("blocks.3");
    let y = layer(&(&x + &w));
    drop(scope);
    TrainStep::new(&y.mean_all(), &Optimizer::adamw(1e-3), None).unwrap()
}

/// Runs it once on these numbers with the check, in a mode.
fn run(step: &TrainStep, x: [f32; 12], mode: Mode) -> Result<(), Box<NonFinite>> {
    let states = step.program.initial_states(1).unwrap();
    let target = Target::cpu().threads(1).mode(mode).check_finite(true);
    let mut compiled = step.program.compile(&states, &target).unwrap();
    let x = HostTensor::new([4, 3], x.to_vec());
    let scalars = step.scalars(0, 1e-3, 1);
    let scalars = scalars.iter().map(|(name, value)| (*name, value));
    let inputs: Vec<_> = [("x", &x)].into_iter().chain(scalars).collect();
    match compiled.run(&inputs) {
        Ok(_) => Ok(()),
        Err(Error::NonFinite(found)) => Err(found),
        Err(other) => panic!("{other}"),
    }
}

fn numbers(first: f32) -> [f32; 12] {
    let mut numbers = [0.5; 12];
    numbers[0] = first;
    numbers
}

#[test]
fn an_overflow_is_named_with_its_line_and_module() {
    let step = step(|h| h.exp());
    let expected = line!() - 1;
    for mode in [Mode::Compiled, Mode::Eager] {
        assert_eq!(run(&step, numbers(3.0), mode), Ok(()));
        let found = run(&step, numbers(100.0), mode).unwrap_err();
        assert_eq!((found.result.as_str(), found.has), ("loss", "an infinity"));
        let text = found.to_string();
        let Maker::Operation { op, made, in_backward, largest, origin, .. } = found.maker else {
            panic!("{text}")
        };
        assert_eq!((op, made, in_backward, largest), ("exp", "an infinity", false, 100.0));
        let location = origin.location.as_ref().unwrap();
        assert!(location.file.ends_with("tests/finite.rs") && location.line == expected, "{text}");
        assert_eq!(&*origin.scope, "blocks.3");
        assert!(
            text.starts_with("loss has an infinity: exp made an infinity of finite numbers up to 1.000e2"),
            "{text}"
        );
        assert!(
            text.contains(&format!("tests/finite.rs:{expected}:")) && text.contains("in blocks.3"),
            "{text}"
        );
    }
}

/// The loss is finite, its gradient is not: √x has none at 0.
#[test]
fn an_infinity_in_backward_is_named() {
    let step = step(|h| h.sqrt());
    let expected = line!() - 1;
    let found = run(&step, numbers(0.0), Mode::Compiled).unwrap_err();
    assert_ne!(found.result, "loss");
    let text = found.to_string();
    let Maker::Operation { in_backward, origin, .. } = innermost(found.maker) else { panic!("{text}") };
    assert!(in_backward, "{text}");
    assert_eq!(origin.location.as_ref().map(|location| location.line), Some(expected), "{text}");
}

/// The first infinity, if a NaN was made of one.
fn innermost(maker: Maker) -> Maker {
    match maker {
        Maker::Operation { infinity: Some(infinity), .. } => innermost(*infinity),
        other => other,
    }
}

/// A mask of −∞ is no mistake, and NaNs of a row that is masked altogether name both.
#[test]
fn masks_are_no_mistake_but_a_row_without_any_column_is() {
    let softmax = |limit: f64| step(move |h| h.lt(limit).select(h, f64::NEG_INFINITY).softmax(-1));
    assert_eq!(run(&softmax(2.0), numbers(3.0), Mode::Compiled), Ok(()));
    let found = run(&softmax(0.1), numbers(3.0), Mode::Compiled).unwrap_err();
    let text = found.to_string();
    assert_eq!(found.has, "NaN");
    assert!(
        matches!(&found.maker, Maker::Operation { op: "sub", made: "NaN", infinity: Some(_), .. }),
        "{text}"
    );
}

#[test]
fn what_was_not_finite_before_is_said_so() {
    let step = step(|h| h.tanh());
    let found = run(&step, numbers(f32::NAN), Mode::Compiled).unwrap_err();
    assert_eq!(found.maker, Maker::Input { name: "x".into(), has: "NaN" });
    assert_eq!(found.to_string(), "loss has NaN: input \"x\" has a NaN");
}
