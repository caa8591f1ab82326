//! Sine and cosine of angles of any size.

use crate::judge::check;
use crate::products::case;
use crate::support::{Bench, Program, Random, at};
use kernfusion_cuda::Options;
use kernfusion_ir::kernel::{Domain, Form, InstrKind};
use kernfusion_ir::{DType, Tensor, TensorType, Unary};

#[test]
fn angles_of_any_size_are_exact() {
    let mut random = Random(11);
    // Of each exponent several, both signs; multiples of a quarter turn, and a float that is within 2·10⁻⁹ of one.
    let of_exponents = (-60..128).flat_map(|exponent| {
        let drawn = random.tensor(&TensorType::new(DType::F32, [8]), 1.0, 2.0).to_f64();
        drawn
            .into_iter()
            .enumerate()
            .map(move |(n, x)| x * 2f64.powi(exponent) * if n % 2 == 0 { 1.0 } else { -1.0 })
    });
    let quarters = (1..200).map(|n| f64::from(n) * std::f64::consts::FRAC_PI_2);
    let hard = [16_367_173.0 * 2f64.powi(72), 0.0, std::f64::consts::FRAC_PI_4];
    let angles: Vec<_> = of_exponents.collect::<Vec<_>>().into_iter().chain(quarters).chain(hard).collect();
    let ty = TensorType::new(DType::F32, [angles.len()]);
    let cases: Vec<_> = [Unary::Sin, Unary::Cos]
        .into_iter()
        .map(|op| {
            let mut bench = Bench::default();
            let x = bench.input("x", Tensor::from_f64(&ty, &angles));
            let mut program = Program::default();
            let value = program.load(x, DType::F32, at(&[1]));
            let value = program.push(InstrKind::Unary(op, value), DType::F32);
            program.store(value, bench.output("y", DType::F32, &[angles.len()]), at(&[1]));
            bench.kernel(Form::Map, Domain::flat([angles.len()]), program.region, program.stores);
            case(format!("{op:?}"), bench, 2e-7)
        })
        .collect();
    check(&cases, &Options::default());
}
