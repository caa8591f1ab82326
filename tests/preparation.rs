//! What a program computes of parameters alone is computed once, and again when they have changed.

use kernfusion::compile::{Mode, Precision};
use kernfusion::prelude::*;
use kernfusion_cpu::guard::{Side, guarded};

const ROWS: usize = 4;

/// x times the rows of `w`, each divided by its sum.
fn shares() -> Program {
    let trace = Trace::new();
    let x = trace.input("x", [3, ROWS], DType::F32);
    let w = trace.state("w", [ROWS, 5], DType::F32);
    let sums = w.sum(&[1]).reshape([ROWS, 1]);
    trace.finish(&[("y", &x.matmul(&(&w / &sums)))]).unwrap()
}

/// Adds x to `w`.
fn change() -> Program {
    let trace = Trace::new();
    let x = trace.input("x", [ROWS, 5], DType::F32);
    let w = trace.state("w", [ROWS, 5], DType::F32);
    trace.update(&w, &(&w + &x));
    trace.finish(&[("before", &w)]).unwrap()
}

fn w(first: f32) -> HostTensor {
    let numbers = (0..ROWS * 5).map(|i| first + ((i * 7) % 11) as f32 / 4.0);
    HostTensor::new([ROWS, 5], numbers.collect::<Vec<_>>())
}

fn x() -> HostTensor {
    HostTensor::new([3, ROWS], (0..3 * ROWS).map(|i| i as f32 - 5.5).collect::<Vec<_>>())
}

/// What an executable gives that has not run before.
fn fresh(w: &HostTensor) -> HostTensor {
    let states = States::new();
    states.set("w", w).unwrap();
    let mut compiled = shares().compile(&states, &Target::cpu()).unwrap();
    compiled.run(&[("x", &x())]).unwrap().get("y").unwrap().clone()
}

#[test]
fn results_are_of_the_parameters_as_they_are() {
    let states = States::new();
    states.set("w", &w(1.0)).unwrap();
    let mut compiled = shares().compile(&states, &Target::cpu().threads(2)).unwrap();
    let plan = compiled.plan();
    let (prepared, each_run) = (plan.preparation, plan.each_run().len());
    assert_eq!((prepared, each_run, compiled.report().kernels), (1, 1, 1), "{}", compiled.kernels());
    let mut y = || compiled.run(&[("x", &x())]).unwrap().get("y").unwrap().clone();
    assert_eq!([y(), y()], [fresh(&w(1.0)), fresh(&w(1.0))]);
    states.set("w", &w(2.0)).unwrap();
    assert_eq!([y(), y()], [fresh(&w(2.0)), fresh(&w(2.0))]);
    assert_ne!(fresh(&w(1.0)), fresh(&w(2.0)), "the parameters have an influence");
    // Another program writes them, and so does one over a fork.
    let change_by_one = |states: &States| {
        let mut compiled = change().compile(states, &Target::cpu()).unwrap();
        compiled.run(&[("x", &HostTensor::new([ROWS, 5], vec![1.0f32; ROWS * 5]))]).unwrap();
    };
    change_by_one(&states);
    assert_eq!([y(), y()], [fresh(&w(3.0)), fresh(&w(3.0))]);
    change_by_one(&states.fork());
    assert_eq!([y(), y()], [fresh(&w(4.0)), fresh(&w(4.0))]);
}

/// Rounding to bytes is done once for a matrix that is only read. Whole numbers up to 127 in each row and column are bytes as they are, so sums are exact.
#[test]
fn matrices_are_rounded_to_bytes_once() {
    let (terms, columns) = (40, 64);
    let trace = Trace::new();
    let x = trace.input("x", [ROWS, terms], DType::F32);
    let w = trace.state("w", [terms, columns], DType::F32);
    let program = trace.finish(&[("y", &x.matmul(&w))]).unwrap();
    let states = States::new();
    let target = Target::cpu().threads(2).precision(Precision::Int8);
    let mut compiled = program.compile(&states, &target).unwrap();
    assert!(compiled.plan().preparation > 0, "{}", compiled.kernels());
    // The first term has the largest number of each row and column.
    let whole = |seed: usize, i: usize| ((i * 37 + seed) % 199) as f32 - 99.0;
    let x: Vec<_> = (0..ROWS * terms).map(|i| if i % terms == 0 { 127.0 } else { whole(5, i) }).collect();
    for seed in [1, 2] {
        let w: Vec<_> =
            (0..terms * columns).map(|i| if i < columns { -127.0 } else { whole(seed, i) }).collect();
        states.set("w", &HostTensor::new([terms, columns], w.clone())).unwrap();
        let y = compiled.run(&[("x", &HostTensor::new([ROWS, terms], x.clone()))]).unwrap();
        let sum = |at: usize| {
            let (row, column) = (at / columns, at % columns);
            (0..terms).map(|k| x[row * terms + k] * w[k * columns + column]).sum::<f32>()
        };
        let expected: Vec<_> = (0..ROWS * columns).map(sum).collect();
        assert_eq!(y.get("y"), Ok(&HostTensor::new([ROWS, columns], expected)));
    }
    // Between two bytes there is nothing.
    let halves: Vec<_> = x.iter().map(|x| if *x == 127.0 { *x } else { x + 0.25 }).collect();
    let mut y =
        |x| compiled.run(&[("x", &HostTensor::new([ROWS, terms], x))]).unwrap().get("y").unwrap().clone();
    assert_eq!(y(halves), y(x));
}

#[test]
fn it_has_memory_of_its_own() {
    let states = States::new();
    states.set("w", &w(1.0)).unwrap();
    // Another program writes over all of the arena.
    let mut compiled = shares().compile(&states, &Target::cpu()).unwrap();
    let sharing = Target::cpu().share_arena(&compiled);
    let mut other = shares().compile(&states, &sharing).unwrap();
    let before = compiled.run(&[("x", &x())]).unwrap().get("y").unwrap().clone();
    other.run(&[("x", &HostTensor::new([3, ROWS], vec![0.0f32; 3 * ROWS]))]).unwrap();
    assert_eq!(compiled.run(&[("x", &x())]).unwrap().get("y"), Ok(&before));
    for side in [Side::Before, Side::Behind] {
        let again = guarded(side, || {
            let program = shares();
            let mut compiled = program.compile(&states, &Target::cpu()).unwrap();
            [(); 2].map(|()| compiled.run(&[("x", &x())]).unwrap().get("y").unwrap().clone())
        });
        assert_eq!(again, [before.clone(), before.clone()]);
    }
}

#[test]
fn programs_that_write_their_parameters_prepare_nothing() {
    let trace = Trace::new();
    let x = trace.input("x", [3, ROWS], DType::F32);
    let w = trace.state("w", [ROWS, 5], DType::F32);
    let y = x.matmul(&(&w / &w.sum(&[1]).reshape([ROWS, 1])));
    trace.update(&w, &(&w * 2.0));
    let program = trace.finish(&[("y", &y)]).unwrap();
    assert_eq!(program.compile(&States::new(), &Target::cpu()).unwrap().plan().preparation, 0);
    let eager = shares().compile(&States::new(), &Target::cpu().mode(Mode::Eager)).unwrap();
    assert_eq!(eager.plan().preparation, 0);
}
