//! Training steps whose batch is computed in microbatches, compiled, against the same steps on the whole batch.

use crate::steps::{Ran, Steps, recurrent, small, with_experts};
use kernfusion::HostTensor;
use kernfusion::compile::{MemoryStrategy, Mode, Target, compile};
use kernfusion::models::{GptConfig, ModelConfig, RecurrentLmConfig};
use kernfusion::nn::Cell;
use kernfusion_codegen::States;
use kernfusion_ir::DType;
use kernfusion_ir::evaluate::{Precision, evaluate};
use kernfusion_ir::samples::difference;
use std::collections::BTreeMap;

const BATCH: usize = 8;

fn steps(config: impl Into<ModelConfig>) -> Steps {
    Steps::new(config, BATCH)
}

fn run(config: &GptConfig, target: &Target) -> Ran {
    steps(config.clone()).run(target)
}

fn assert_close(name: &str, expected: &[f32], found: &[f32], tolerance: f64) {
    let wide = |values: &[f32]| values.iter().map(|&x| f64::from(x)).collect::<Vec<_>>();
    if let Some(found) = difference(&wide(expected), &wide(found), tolerance) {
        panic!("{name}: {found}");
    }
}

#[test]
fn microbatches_change_a_step_by_rounding_only() {
    for tied in [false, true] {
        let config = GptConfig { tied, ..small() };
        let whole = run(&config, &Target::cpu().threads(2));
        for microbatches in [2, 4, 8] {
            let tiled = run(&config, &Target::cpu().threads(2).microbatches(microbatches));
            assert_close("losses and norms", &whole.numbers, &tiled.numbers, 1e-5);
            assert_eq!(whole.states.keys().collect::<Vec<_>>(), tiled.states.keys().collect::<Vec<_>>());
            for (name, expected) in &whole.states {
                // Adam divides by the root of a small second moment, so rounding of gradients near zero shows.
                assert_close(name, expected, &tiled.states[name], 2e-4);
            }
            let (whole, tiled) = (whole.program.report(), tiled.program.report());
            assert_eq!((whole.memory.microbatches, tiled.memory.microbatches), (1, microbatches));
            assert!(tiled.arena_bytes < whole.arena_bytes, "{} {}", tiled.arena_bytes, whole.arena_bytes);
        }
    }
}

/// The batch is an axis of what loops are given and carry, and of states that go from step to step.
#[test]
fn recurrent_layers_are_computed_in_microbatches() {
    let config = recurrent();
    for cell in [Cell::Rnn, Cell::Lstm, Cell::Gru] {
        let steps = steps(RecurrentLmConfig { cell, ..config.clone() });
        let whole = steps.run(&Target::cpu());
        assert!(whole.states.keys().any(|name| name.starts_with("carried.")));
        for microbatches in [2, 8] {
            let divided = steps.run(&Target::cpu().microbatches(microbatches));
            assert_eq!(divided.program.report().memory.microbatches, microbatches);
            assert_close("losses and norms", &whole.numbers, &divided.numbers, 1e-5);
            assert_eq!(whole.states.keys().collect::<Vec<_>>(), divided.states.keys().collect::<Vec<_>>());
            for (name, expected) in &whole.states {
                assert_close(name, expected, &divided.states[name], 2e-4);
            }
        }
    }
}

/// Tokens are sorted by expert within groups, of which each microbatch has some.
#[test]
fn experts_are_computed_in_microbatches() {
    let steps = Steps { groups: 4, ..steps(with_experts()) };
    let whole = steps.run(&Target::cpu());
    for microbatches in [2, 4] {
        let divided = steps.run(&Target::cpu().microbatches(microbatches));
        assert_close("losses and norms", &whole.numbers, &divided.numbers, 1e-5);
        for (name, expected) in &whole.states {
            assert_close(name, expected, &divided.states[name], 2e-4);
        }
    }
    // Groups change what is balanced, not which experts work.
    let unbalanced = |groups: usize| {
        let mut config = with_experts();
        config.experts.as_mut().unwrap().balance = 0.0;
        Steps { groups, ..self::steps(config) }.run(&Target::cpu())
    };
    assert_close("losses and norms", &unbalanced(1).numbers, &unbalanced(4).numbers, 1e-5);
    let error = self::steps(with_experts())
        .step()
        .program
        .compile(&Default::default(), &Target::cpu().microbatches(2));
    assert!(error.is_err());
}

/// Dropout included: the masks are computed again, too.
#[test]
fn products_computed_again_change_nothing() {
    let config = GptConfig { context: 32, width: 192, layers: 3, ..small() };
    for microbatches in [1, 2] {
        let target = Target::cpu().threads(2).microbatches(microbatches);
        let kept = run(&config, &target);
        let again = run(&config, &target.recompute(true));
        assert_eq!(kept.numbers, again.numbers);
        assert_eq!(kept.states, again.states);
        let [kept, again] = [kept, again].map(|run| run.program.report().clone());
        assert!(again.memory.recompute && !kept.memory.recompute);
        assert!(again.arena_bytes * 5 < kept.arena_bytes * 4, "{} {}", again.arena_bytes, kept.arena_bytes);
        assert!(again.kernels > kept.kernels);
    }
}

#[test]
fn threads_change_no_bit_of_a_step_in_microbatches() {
    let config = small();
    let one = run(&config, &Target::cpu().threads(1).microbatches(4));
    let three = run(&config, &Target::cpu().threads(3).microbatches(4));
    assert_eq!(one.numbers, three.numbers);
    assert_eq!(one.states, three.states);
}

/// The same masks: with this many dropped elements, other masks would give another loss.
#[test]
fn a_step_in_slices_is_the_reference_evaluation_of_the_whole() {
    let config = GptConfig { dropout: 0.5, ..small() };
    let steps = steps(config.clone());
    let step = steps.step();
    let states = step.program.initial_states(3).unwrap();
    let mut given: BTreeMap<String, HostTensor> =
        steps.inputs(&step, 0).into_iter().map(|(name, tensor)| (name.to_string(), tensor)).collect();
    for (id, name, role) in step.program.graph.inputs() {
        if role == kernfusion_ir::InputRole::State {
            let ty = &step.program.graph[id].ty;
            assert_eq!(ty.dtype, DType::F32);
            let zeros = || HostTensor::new(ty.shape.clone(), vec![0.0f32; ty.elements()]);
            given.insert(name.into(), states.get(name).unwrap_or_else(zeros));
        }
    }
    let expected = evaluate(&step.program.graph, &given, Precision::Double).unwrap();
    for microbatches in [2, 4] {
        let states = step.program.initial_states(3).unwrap();
        let mut program = step.program.compile(&states, &Target::cpu().microbatches(microbatches)).unwrap();
        let given = steps.inputs(&step, 0);
        let outputs = program.run(&given.iter().map(|(name, t)| (*name, t)).collect::<Vec<_>>()).unwrap();
        for (name, expected) in &expected {
            let found = outputs.get(name).ok().cloned().or_else(|| states.get(name)).unwrap().to_f64();
            if let Some(found) = difference(&expected.values, &found, 2e-4) {
                panic!("{name} in {microbatches} microbatches: {found}");
            }
        }
    }
}

#[test]
fn a_limit_takes_the_fewest_slices_that_fit() {
    let config = GptConfig { context: 64, width: 64, layers: 2, ..small() };
    let steps = steps(config.clone());
    let step = steps.step();
    let report = |target: &Target| {
        let states = step.program.initial_states(3).unwrap();
        compile(&step.program.graph, &states, target).map(|program| program.report().clone())
    };
    let needed: Vec<_> =
        [1, 2, 4, 8].map(|n| report(&Target::cpu().microbatches(n)).unwrap()).into_iter().collect();
    assert!(needed.windows(2).all(|pair| pair[1].arena_bytes < pair[0].arena_bytes));
    // Other tests change what the process holds, so the limit is far from either side.
    let generous = report(&Target::cpu().memory_limit(8 << 30)).unwrap();
    assert_eq!(generous.memory, MemoryStrategy { microbatches: 1, recompute: false });
    let message = report(&Target::cpu().memory_limit(1 << 20)).unwrap_err().to_string();
    assert!(message.starts_with("the memory limit of 1.0 MiB is "), "{message}");
    assert!(
        message.contains(" are needed at least (")
            && message.contains(" are in use already")
            && message.contains("microbatches"),
        "{message}"
    );
    let eager = Target::cpu().mode(Mode::Eager).memory_limit(8 << 30);
    let message = report(&eager).unwrap_err().to_string();
    assert!(message.contains("need mode compiled"), "{message}");
    let message = report(&Target::cpu().microbatches(3)).unwrap_err().to_string();
    assert_eq!(
        message,
        "cannot compute in 3 microbatches: the batch of 8 is not divisible by that: the nearest that divide it are 2 and 4"
    );
}

#[test]
fn results_with_the_batch_are_joined() {
    let config = GptConfig { dropout: 0.0, ..small() };
    let program = config.forward(BATCH, config.context).unwrap();
    let x = steps(config.clone()).tokens(0, 1);
    let logits = |microbatches| {
        let states = program.initial_states(3).unwrap();
        let mut program = program.compile(&states, &Target::cpu().microbatches(microbatches)).unwrap();
        let missing = program.run(&[]).unwrap_err().to_string();
        assert!(missing.contains("input \"x\": is missing; it is i32[8,6]"), "{missing}");
        let (outputs, times) = program.run_timed(&[("x", &x)]).unwrap();
        let kernels: usize = program.plans().iter().map(|plan| plan.graph.kernels.len()).sum();
        assert_eq!(times.len(), kernels);
        outputs.get("logits").unwrap().clone()
    };
    let whole = logits(1);
    assert_eq!(whole.shape(), [BATCH, config.context, config.vocabulary]);
    for microbatches in [2, 8] {
        assert_eq!(logits(microbatches).shape(), whole.shape());
        assert_close("logits", whole.as_f32().unwrap(), logits(microbatches).as_f32().unwrap(), 1e-6);
    }
}

#[test]
fn programs_that_share_an_arena_run_in_the_slices_that_fit() {
    let config = GptConfig { vocabulary: 200, context: 32, layers: 1, ..small() };
    let steps = steps(config.clone());
    let step = steps.step();
    let states = step.program.initial_states(3).unwrap();
    let target = Target::cpu().microbatches(8);
    let mut training = compile(&step.program.graph, &states, &target).unwrap();
    let evaluation = config.evaluation(BATCH).unwrap();
    let loss = |states: &States, target: &Target| {
        let mut program = compile(&evaluation.graph, states, target).unwrap();
        let (x, y) = (steps.tokens(9, 1), steps.tokens(9, 2));
        (program.run(&[("x", &x), ("y", &y)]).unwrap().scalar("loss").unwrap(), program.report().clone())
    };
    let given = steps.inputs(&step, 0);
    training.run(&given.iter().map(|(name, t)| (*name, t)).collect::<Vec<_>>()).unwrap();
    let (whole, own) = loss(&states, &Target::cpu());
    let (shared, report) = loss(&states, &target.clone().share_arena(&training));
    assert!(
        own.arena_bytes > training.report().arena_bytes && report.memory.microbatches > 1,
        "{}",
        report.memory.microbatches
    );
    assert!(report.arena_bytes <= training.report().arena_bytes);
    assert!((whole - shared).abs() < 1e-5, "{whole} {shared}");
}
