//! The choice is what it would be if every possibility were lowered.

use super::*;
use crate::models::{Chunk, presets, samples};
use crate::optim::{Optimizer, TrainStep};
use crate::trace::Trace;
use kernfusion_ir::samples::Draws;
use kernfusion_passes::WeightType;

/// Compares choices for budgets around what a step needs; how many programs were lowered for how many choices.
fn compare(name: &str, step: &TrainStep, budgets: usize) -> (usize, usize) {
    let (graph, target, states) = (&step.program.graph, Target::cpu(), States::new());
    let backend = target.backend();
    let mut exhaustive = Trials::exhaustive(graph, &target);
    let whole = exhaustive.lowered(MemoryStrategy::NONE).unwrap().program.clone();
    let (arena, needed) = (whole.arena_bytes(), backend.bytes_needed(&whole, &states).unwrap());
    let mut draws = Draws::new(arena as u64);
    let (mut lowered, mut choices) = (0, 0);
    for _ in 0..budgets {
        // From more than all of it to a hundredth, evenly by its logarithm.
        let budget = (arena as f64 * 1.1 * 0.01f64.powf(draws.below(1000) as f64 / 1000.0)) as usize;
        let mut trials = Trials::new(graph, &target);
        let chosen = unlimited(&mut trials, budget).unwrap();
        assert_eq!(chosen, unlimited(&mut exhaustive, budget).unwrap(), "{name}: an arena of {budget} bytes");
        (lowered, choices) = (lowered + trials.count(), choices + 1);

        let limit = needed - arena + budget;
        let mut trials = Trials::new(graph, &target);
        let chosen = |trials: &mut Trials<'_>| {
            within((limit, 0), trials, &states, &*backend).map_err(|error| error.to_string())
        };
        let (quick, judged) = (chosen(&mut trials), chosen(&mut exhaustive));
        assert_eq!(quick, judged, "{name}: a limit of {limit} bytes");
        if quick.is_ok() {
            (lowered, choices) = (lowered + trials.count(), choices + 1);
        }
    }
    (lowered, choices)
}

#[test]
fn estimates_choose_what_lowering_everything_chooses() {
    let every_other = |first: usize| {
        for (name, config) in samples().into_iter().skip(first).step_by(2) {
            let step = config.train_step(4, &Optimizer::adamw(1e-3), Some(1.0)).unwrap();
            compare(name, &step, 2);
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(|| every_other(1));
        every_other(0);
    });
}

#[test]
#[ignore = "takes minutes"]
fn estimates_choose_the_same_for_every_preset() {
    for preset in presets() {
        let batch = if preset.batch == 1 { 4 } else { preset.batch };
        for clip in [None, Some(1.0)] {
            let step = preset.config.train_step(batch, &Optimizer::adamw(1e-3), clip).unwrap();
            let (lowered, choices) = compare(preset.name, &step, 3);
            println!("{}: {lowered} programs lowered for {choices} choices", preset.name);
        }
    }
}

#[test]
fn caches_that_are_written_in_place_divide_no_batch() {
    let preset = presets().into_iter().find(|preset| preset.name == "gpt2-small").unwrap();
    let trace = Trace::new();
    trace.store_matrices(WeightType::Int8);
    let chunk = Chunk { length: 1, visible: 1024, capacity: 1024 };
    let program = preset.config.continuation(&trace, 12, chunk).unwrap().expect("a decoder");
    let target = Target::cpu();
    let chosen = unlimited(&mut Trials::new(&program.graph, &target), ROOMY).unwrap();
    assert_eq!(chosen, MemoryStrategy::NONE);
}
