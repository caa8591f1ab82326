//! Kernels of more blocks than a card takes along y or z.

use crate::judge::{Case, failures, is_skipped, planned};
use kernfusion_cuda::emulator::{Emulator, ThreadSchedule};
use kernfusion_cuda::{Launches, MOST_BLOCKS, Options, Renderer, StreamOp};
use kernfusion_ir::Graph;
use kernfusion_ir::Tensor;
use kernfusion_ir::evaluate::{Precision, evaluate};
use kernfusion_passes::fuse::Fusion;
use std::collections::BTreeMap;

/// A sum over one axis.
fn sum(shape: &str, axis: usize, result: &str) -> Graph {
    let text = format!(
        "graph \"sum\" {{
  %x = input {{name = \"x\", dtype = f32, shape = [{shape}]}}
  %y = reduce %x {{op = sum, axes = [{axis}]}} : f32[{result}]
  output \"y\" = %y
}}"
    );
    Graph::parse(&text).expect(&text)
}

/// A stack of products, whose rows softmax follows or not, before another product or not.
fn products([stack, rows]: [usize; 2], is_attention: bool) -> Graph {
    let batch = "lhs_batch = [0], rhs_batch = [0], lhs_contract = [2]";
    let head = format!(
        "  %a = input {{name = \"a\", dtype = f32, shape = [{stack}, {rows}, 16]}}
  %b = input {{name = \"b\", dtype = f32, shape = [{stack}, 16, 16]}}
  %s = dot_general %a, %b {{{batch}, rhs_contract = [2], dtype = f32}}\n"
    );
    let chain = format!(
        "  %e = exp %s
  %y = dot_general %e, %b {{{batch}, rhs_contract = [1], dtype = f32}}
  output \"y\" = %y\n"
    );
    let rest = if is_attention { chain } else { "  output \"y\" = %s\n".into() };
    let text = format!("graph \"products\" {{\n{head}{rest}}}");
    Graph::parse(&text).expect(&text)
}

fn grids(graph: &Graph) -> Vec<[u32; 3]> {
    let program: Launches = Renderer::new(Options::default())
        .program(&planned(graph, Fusion::Full))
        .expect("every kernel has a grid");
    let launches = program.steps.iter().filter_map(|step| match step {
        StreamOp::Launch(launch) => Some(launch.grid),
        _ => None,
    });
    launches.collect()
}

#[test]
fn every_grid_is_one_that_a_card_takes() {
    // The first of each pair is the last that needs no other arrangement: a block is 256 runs of four columns, a unit, a tile's rows.
    let cases = [
        ("units", sum("65535, 9, 4", 1, "65535, 4"), sum("65536, 9, 4", 1, "65536, 4")),
        ("parts", sum("2, 67107840", 0, "67107840"), sum("2, 67107844", 0, "67107844")),
        ("stack", products([65_535, 16], false), products([65_536, 16], false)),
        ("chains", products([65_535, 16], true), products([65_536, 16], true)),
        ("rows", products([1, 8_388_480], false), products([1, 8_388_481], false)),
    ];
    let is_taken =
        |grid: &[u32; 3]| grid.iter().zip(MOST_BLOCKS).all(|(&blocks, most)| blocks as usize <= most);
    for (name, within, beyond) in cases {
        let (within, beyond) = (grids(&within), grids(&beyond));
        assert!(within.iter().chain(&beyond).all(is_taken), "{name}: {within:?} {beyond:?}");
        assert!(within.iter().any(|grid| grid[1..].contains(&65_535)), "{name}: {within:?}");
        assert!(beyond.iter().all(|grid| grid[1..] == [1, 1]), "{name}: {beyond:?}");
    }
}

#[test]
fn kernels_of_many_units_are_right() {
    if is_skipped() {
        return;
    }
    let graph = sum("65537, 2, 2", 1, "65537, 2");
    let x = Tensor::new([65_537, 2, 2], (0..4 * 65_537).map(|at| (at % 1_021) as f32).collect::<Vec<_>>());
    let inputs = BTreeMap::from([("x".to_string(), x)]);
    let case = Case {
        name: "units".into(),
        plan: planned(&graph, Fusion::Full),
        expected: evaluate(&graph, &inputs, Precision::Declared).expect("evaluates"),
        inputs,
        tolerance: 0.0,
    };
    assert!(grids(&graph).contains(&[65_537, 1, 1]), "{:?}", grids(&graph));
    // One schedule: there are millions of threads.
    let mut renderer = Renderer::new(Options::default());
    let programs = [renderer.program(&case.plan).expect("renders")];
    let emulator = Emulator::build(renderer.functions()).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(failures(&emulator, &[case], &programs, ThreadSchedule::ALL[1]), [""; 0]);
}
