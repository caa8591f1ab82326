//! Programs that were wrong once: each file of `findings` is a `.kir` under a comment that says what was wrong, and everything that
//! must hold of any program holds of it.
//!
//! Inputs are drawn, but for those that a line `# input NAME = NUMBER` gives one number everywhere.

use kernfusion::HostTensor;
use kernfusion::compile::{Isa, MemoryStrategy, Mode, Stages, Target};
use kernfusion::fuzz::{Case, Check, checks_of, inputs, judge, program};
use kernfusion_ir::Graph;
use kernfusion_ir::kernel::{Form, Kernel};
use kernfusion_passes::simplify::{Pick, Rounding};
use std::path::Path;

/// Seeds of inputs.
const SEEDS: std::ops::Range<u64> = 1..4;

fn programs(text: &str) -> impl Iterator<Item = Case> {
    let graph = Graph::parse(text).expect("the file parses");
    let given = text.lines().filter_map(|line| line.strip_prefix("# input ")?.split_once(" = "));
    let given: Vec<_> =
        given.map(|(name, number)| (name.to_string(), number.parse::<f64>().expect("a number"))).collect();
    SEEDS.map(move |seed| {
        let mut inputs = inputs(&graph, seed);
        for (name, number) in &given {
            let ty = inputs[name].ty();
            inputs.insert(name.clone(), HostTensor::from_f64(&ty, &vec![*number; ty.elements()]));
        }
        Case { graph: graph.clone(), inputs }
    })
}

#[test]
fn what_was_wrong_once_is_right() {
    let mut checks = vec![
        Check::Text,
        Check::Eager,
        Check::Kernels,
        Check::Recompute,
        Check::Microbatches(2),
        Check::Microbatches(4),
        Check::Bf16(Mode::Eager),
        Check::Bf16(Mode::Compiled),
        Check::Passes(kernfusion_passes::PIPELINE.iter().map(|pass| pass.name).collect()),
    ];
    let random = (1..=8).map(Pick::Random);
    checks.extend([Pick::Dearest].into_iter().chain(random).map(|pick| Check::Forms(Rounding::Finite, pick)));
    checks.extend(Isa::available().into_iter().map(Check::Compiled));
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/findings");
    let mut files: Vec<_> =
        std::fs::read_dir(folder).expect("a folder").map(|it| it.expect("a file").path()).collect();
    files.sort();
    assert!(files.len() > 5);
    for file in files {
        let text = std::fs::read_to_string(&file).expect("readable");
        for program in programs(&text) {
            let violation = judge(&program, &checks);
            assert!(violation.is_none(), "{}: {violation:?}", file.display());
        }
    }
}

/// What only some programs come to.
#[test]
fn random_programs_have_bands() {
    let has_band = |seed: &u64| {
        let mut graph = program(*seed).graph;
        let stages = Stages::new(&Target::cpu(), MemoryStrategy::NONE);
        stages.simplify(&mut graph, None, &mut |_, _| {}).expect("passes run");
        let kernels = stages.fuse(&graph).expect("fusible");
        let band = |kernel: &Kernel| matches!(&kernel.form, Form::Contraction(it) if it.band.is_some());
        kernels.kernels.iter().any(band)
    };
    let found: Vec<_> = (1..=2500).filter(has_band).collect();
    assert!(found.len() > 1, "{found:?}");
}

/// Programs of other seeds are for `kernfusion selftest --programs`.
#[test]
fn random_programs_hold() {
    for seed in 1..=40 {
        let violation = judge(&program(seed), &checks_of(seed));
        assert!(violation.is_none(), "seed {seed}: {violation:?}");
    }
}
