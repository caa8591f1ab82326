//! Kernels that run as one launch: which do, and that they compute the same bits as alone.

use crate::judge::{Case, is_skipped};
use crate::products::case;
use crate::support::{Bench, Program, Random, at};
use kernfusion_cuda::emulator::{Emulator, Job, ThreadSchedule};
use kernfusion_cuda::{Launches, Options, Renderer, StreamOp};
use kernfusion_ir::kernel::{BufferId, Domain, Form, InstrKind};
use kernfusion_ir::{Binary, DType, TensorType, Unary};

fn random(bench: &mut Bench, name: &str, count: usize) -> BufferId {
    let seed = name.bytes().map(u64::from).sum();
    bench.input(name, Random(seed).tensor(&TensorType::new(DType::F32, [count]), -1.0, 1.0))
}

/// `p − rate·g`, or of its hyperbolic tangent.
fn update(bench: &mut Bench, count: usize, [p, g, rate]: [BufferId; 3], bends: bool) -> BufferId {
    let result = bench.output(&format!("new{}", bench.graph.kernels.len()), DType::F32, &[count]);
    let mut program = Program::default();
    let p = program.load(p, DType::F32, at(&[1]));
    let mut g = program.load(g, DType::F32, at(&[1]));
    if bends {
        g = program.push(InstrKind::Unary(Unary::Tanh, g), DType::F32);
    }
    let rate = program.load(rate, DType::F32, at(&[0]));
    let change = program.push(InstrKind::Binary(Binary::Mul, rate, g), DType::F32);
    let value = program.push(InstrKind::Binary(Binary::Sub, p, change), DType::F32);
    program.store(value, result, at(&[1]));
    bench.kernel(Form::Map, Domain::flat([count]), program.region, program.stores);
    result
}

/// Five updates of parameters of three sizes, and, if so wanted, a sixth that reads what the first has computed.
pub(crate) fn updates(depends: bool) -> Case {
    let mut bench = Bench::default();
    let rate = random(&mut bench, "rate", 1);
    let mut first = None;
    for (number, count) in [300, 7, 300, 513, 300].into_iter().enumerate() {
        let [p, g] = ["w", "d"].map(|name| random(&mut bench, &format!("{name}_{number}"), count));
        let new = update(&mut bench, count, [p, g, rate], number == 4);
        first.get_or_insert((p, new));
    }
    if let (true, Some((p, new))) = (depends, first) {
        update(&mut bench, 300, [p, new, rate], false);
    }
    case(format!("updates, depends {depends}"), bench, 1e-6)
}

fn rendered(cases: &[Case], groups: bool) -> (Renderer, Vec<Launches>) {
    let mut renderer = Renderer::new(Options { groups, ..Options::default() });
    let programs = cases.iter().map(|case| renderer.program(&case.plan).expect(&case.name)).collect();
    (renderer, programs)
}

fn kernels(program: &Launches) -> Vec<Vec<usize>> {
    let launches = program.steps.iter().filter_map(|step| match step {
        StreamOp::Launch(launch) => Some(launch.kernels.clone()),
        StreamOp::Clear { .. }
        | StreamOp::Copy { .. }
        | StreamOp::Product(_)
        | StreamOp::Exchange { .. }
        | StreamOp::Gather { .. }
        | StreamOp::Sum { .. } => None,
    });
    launches.collect()
}

#[test]
fn maps_that_do_not_need_each_other_are_one_launch() {
    let cases = [updates(false), updates(true)];
    let (renderer, programs) = rendered(&cases, true);
    assert_eq!(kernels(&programs[0]), [vec![0, 1, 2, 3, 4]]);
    assert_eq!(kernels(&programs[1]), [vec![0, 1, 2, 3, 4], vec![5]]);
    // Two plans with the same group share its function.
    let grouped = renderer.functions().iter().filter(|function| function.is_packed);
    assert_eq!(
        grouped.map(|function| function.name.as_str()).collect::<Vec<_>>(),
        ["kernel_kernel0_and_4_more"]
    );
    let (_, alone) = rendered(&cases, false);
    assert_eq!(kernels(&alone[0]).len(), 5);
}

#[test]
fn results_are_the_bits_of_single_launches() {
    if is_skipped() {
        return;
    }
    let cases = [updates(false), updates(true)];
    let mut all = [true, false].into_iter().flat_map(|groups| {
        let (renderer, programs) = rendered(&cases, groups);
        let emulator = Emulator::build(renderer.functions()).unwrap_or_else(|error| panic!("{error}"));
        let pairs = cases.iter().zip(&programs);
        let jobs: Vec<_> =
            pairs.map(|(case, program)| Job { plan: &case.plan, program, inputs: &case.inputs }).collect();
        let run = |schedule| emulator.run(&jobs, schedule).unwrap_or_else(|error| panic!("{error}"));
        ThreadSchedule::ALL.map(run)
    });
    let first = all.next().expect("there are schedules");
    assert!(all.all(|other| other == first), "launches of several kernels have other results");
}
