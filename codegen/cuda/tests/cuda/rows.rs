//! Rows in which random bits are drawn: their teams of threads are larger than those of other rows.

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
