//! Rows in which random bits are drawn: their teams of threads are larger than those of other rows. Rows that shared memory keeps.

use crate::judge::{Case, check};
use crate::products::case;
use crate::support::{Bench, Program, Random, at};
use kernfusion_cuda::{Options, Renderer};
use kernfusion_ir::kernel::{Direction, Domain, Form, InstrKind};
use kernfusion_ir::{Binary, Compare, DType, ReduceOp, Tensor, TensorType};

/// `y[r, c] = d[r, c] − Σ_c d[r, c]`, where about half of `d` is `x` and the rest 0, and `Σ_r d[r, c]` if so wanted. Without drawing, `d` is `x`.
fn dropped([rows, columns]: [usize; 2], draws: bool, across: bool) -> Case {
    let (mut bench, mut random) = (Bench::default(), Random(5));
    let ty = TensorType::new(DType::F32, [rows, columns]);
    let x = bench.input("x", random.tensor(&ty, -1.0, 1.0));
    let of_point = at(&[columns as i64, 1]);
    let mut program = Program::default();
    let mut value = program.load(x, DType::F32, of_point.clone());
    if draws {
        let [seed, step] = [("seed", 7.0), ("step", 3.0)].map(|(name, number)| {
            let scalar = Tensor::from_f64(&TensorType::new(DType::U32, []), &[number]);
            program.load(bench.input(name, scalar), DType::U32, at(&[0, 0]))
        });
        let bits = InstrKind::Random { seed, step, node: 9, element: of_point.clone() };
        let bits = program.push(bits, DType::U32);
        let half = program.constant(f64::from(1u32 << 31), DType::U32);
        let is_kept = program.push(InstrKind::Compare(Compare::Lt, bits, half), DType::Bool);
        let zero = program.constant(0.0, DType::F32);
        value = program.push(InstrKind::Select(is_kept, value, zero), DType::F32);
    }
    let reduce = |direction| InstrKind::Reduce(ReduceOp::Sum, direction, value);
    let sum = program.push(reduce(Direction::Columns), DType::F32);
    let rest = program.push(InstrKind::Binary(Binary::Sub, value, sum), DType::F32);
    program.store(rest, bench.output("y", DType::F32, &[rows, columns]), of_point);
    if across {
        let sum = program.push(reduce(Direction::Rows), DType::F32);
        program.store(sum, bench.output("sum", DType::F32, &[columns]), at(&[0, 1]));
    }
    let domain = Domain { axes: vec![rows, columns], outer: 0, rows: 1 };
    bench.kernel(Form::Reduce, domain, program.region, program.stores);
    case(format!("{rows}x{columns}, draws {draws}, across {across}"), bench, 1e-5)
}

#[test]
fn rows_that_draw_bits_have_larger_teams() {
    let team = |columns, draws| {
        let mut renderer = Renderer::new(Options::default());
        renderer.program(&dropped([20, columns], draws, false).plan).expect("renders");
        let text = renderer.functions()[0].text.clone();
        let teams = ["reduce_warp<Sum>", "reduce_block<Sum, 256>", "reduce_block<Sum, 1024>"];
        teams.into_iter().find(|team| text.contains(team)).expect("a team")
    };
    let [warp, block, largest] = [512, 513, 4097].map(|columns| team(columns, true));
    assert_eq!(
        [warp, block, largest],
        ["reduce_warp<Sum>", "reduce_block<Sum, 256>", "reduce_block<Sum, 1024>"]
    );
    assert_eq!([team(1024, false), team(8192, false)], [warp, block]);
}

#[test]
fn rows_that_draw_bits() {
    let columns = [40, 600, 5000];
    let cases = columns.map(|columns| [false, true].map(|across| dropped([20, columns], true, across)));
    check(&cases.into_iter().flatten().collect::<Vec<_>>(), &Options::default());
}

/// How far the numbers of a row are from their mean: two sweeps over rows that are `stride` numbers apart, and have `columns` of them.
fn spread(dtype: DType, columns: usize, stride: usize) -> Case {
    let rows = 3;
    let (mut bench, mut random) = (Bench::default(), Random(8));
    let x = bench.input("x", random.tensor(&TensorType::new(dtype, [rows, stride]), -1.0, 1.0));
    let y = bench.output("y", DType::F32, &[rows]);
    let mut program = Program::default();
    let mut value = program.load(x, dtype, at(&[stride as i64, 1]));
    if dtype != DType::F32 {
        value = program.push(InstrKind::Cast(value), DType::F32);
    }
    let sum = |value| InstrKind::Reduce(ReduceOp::Sum, Direction::Columns, value);
    let all = program.push(sum(value), DType::F32);
    let share = program.constant(1.0 / columns as f64, DType::F32);
    let mean = program.push(InstrKind::Binary(Binary::Mul, all, share), DType::F32);
    let rest = program.push(InstrKind::Binary(Binary::Sub, value, mean), DType::F32);
    let square = program.push(InstrKind::Binary(Binary::Mul, rest, rest), DType::F32);
    let squares = program.push(sum(square), DType::F32);
    program.store(squares, y, at(&[1, 0]));
    let domain = Domain { axes: vec![rows, columns], outer: 0, rows: 1 };
    bench.kernel(Form::Reduce, domain, program.region, program.stores);
    case(format!("{columns} of {stride} numbers in {dtype}"), bench, 1e-5)
}

/// Rows that no thread's registers hold are copied once, the last piece of which may not be whole; not where pieces of 16 bytes do not begin at
/// rows, or there is no room.
#[test]
fn long_rows_are_kept_in_shared_memory() {
    let options = Options::of("sm_90a");
    let is_kept = |case: &Case| {
        let mut renderer = Renderer::new(options.clone());
        renderer.program(&case.plan).expect("renders");
        renderer.functions()[0].text.contains("copy_row<")
    };
    let kept = [(DType::F32, 40_000, 40_000), (DType::F32, 40_001, 40_004), (DType::BF16, 40_003, 40_008)];
    let others = [(DType::F32, 20_000, 20_000), (DType::F32, 40_001, 40_001), (DType::F32, 60_000, 60_000)];
    let cases =
        [kept, others].map(|cases| cases.map(|(dtype, columns, stride)| spread(dtype, columns, stride)));
    assert_eq!(cases.each_ref().map(|cases| cases.each_ref().map(is_kept)), [[true; 3], [false; 3]]);
    check(cases.as_flattened(), &options);
}
