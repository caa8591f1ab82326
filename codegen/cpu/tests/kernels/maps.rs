//! Maps: every scalar instruction on vectors, tails and uniform operands.

use crate::support::{Bench, FLOATS, Program, Random, at};
use kernfusion_ir::kernel::{Domain, Form, InstrKind};
use kernfusion_ir::{Binary, Compare, DType, Tensor, TensorType, Unary};

/// Four vectors of AVX-512 side by side, three vectors, then a tail.
const N: usize = 117;

/// Relative error of one rounding, with room for a primitive's.
fn tolerance(dtype: DType) -> f64 {
    match dtype {
        DType::BF16 => 1.0 / 128.0,
        DType::F16 => 1.0 / 1024.0,
        DType::F64 => 1e-14,
        _ => 1e-6,
    }
}

/// Numbers that show mistakes: zeros, infinities, ties, extremes, then random ones.
fn numbers(dtype: DType, count: usize, seed: u64) -> Tensor {
    let mut random = Random(seed);
    let special: &[f64] = match dtype {
        DType::F32 | DType::F64 | DType::BF16 | DType::F16 => {
            &[0.0, -0.0, 1.0, -1.0, 0.5, 2.5, -2.5, f64::INFINITY, f64::NEG_INFINITY, f64::NAN, 1e-7, 65504.0]
        }
        DType::I32 => &[0.0, 1.0, -1.0, 31.0, 32.0, 33.0, 2147483647.0, -2147483648.0, 7.0],
        DType::U32 => &[0.0, 1.0, 31.0, 32.0, 33.0, 4294967295.0, 2147483648.0, 7.0],
        DType::I8 => &[0.0, 1.0, -1.0, 127.0, -128.0, 31.0],
        DType::Bool => &[0.0, 1.0],
    };
    let draw = |i: usize| match special.get((i * 7 + seed as usize) % (3 * special.len())) {
        Some(value) => *value,
        None if dtype == DType::Bool => (random.next() & 1) as f64,
        None if !dtype.is_float() => (random.unit() * 50.0).round().abs(),
        None => random.unit() * 3.0,
    };
    Tensor::from_f64(&TensorType::new(dtype, [count]), &(0..count).map(draw).collect::<Vec<_>>())
}

/// One instruction on varying and uniform operands, stored for every point.
fn check_instr(
    operands: &[DType],
    result: DType,
    kind: impl Fn(&[kernfusion_ir::kernel::Scalar]) -> InstrKind,
) {
    for uniform in 0..1 << operands.len() {
        for seed in [3, 4] {
            let mut bench = Bench::default();
            let mut program = Program::default();
            let mut values = vec![];
            for (slot, &dtype) in operands.iter().enumerate() {
                let is_uniform = uniform & 1 << slot != 0;
                let rows = if is_uniform { 5 } else { 5 * N };
                let tensor = numbers(dtype, rows, seed + slot as u64 * 5);
                let buffer = bench.input(&format!("x{slot}"), tensor);
                let index = if is_uniform { at(&[1, 0]) } else { at(&[N as i64, 1]) };
                values.push(program.load(buffer, dtype, index));
            }
            let value = program.push(kind(&values), result);
            let y = bench.output("y", result, &[5, N]);
            program.store(value, y, at(&[N as i64, 1]));
            bench.kernel(Form::Map, Domain::flat([5, N]), program.region, program.stores);
            bench.check(tolerance(result));
        }
    }
}

#[test]
fn unary_instructions() {
    for op in Unary::ALL {
        let dtypes: &[DType] = match op {
            Unary::Not => &[DType::I32, DType::U32, DType::Bool],
            Unary::Neg | Unary::Abs | Unary::Sign => {
                &[DType::F32, DType::BF16, DType::F16, DType::F64, DType::I32]
            }
            _ => &FLOATS,
        };
        for &dtype in dtypes {
            check_instr(&[dtype], dtype, |x| InstrKind::Unary(op, x[0]));
        }
    }
}

#[test]
fn binary_instructions() {
    for op in Binary::ALL {
        let dtypes: &[DType] = match op {
            Binary::Div | Binary::Pow => &FLOATS,
            Binary::And | Binary::Or | Binary::Xor => &[DType::I32, DType::U32, DType::Bool],
            Binary::Shl | Binary::Shr => &[DType::I32, DType::U32],
            _ => &[DType::F32, DType::BF16, DType::F16, DType::F64, DType::I32, DType::U32],
        };
        for &dtype in dtypes {
            check_instr(&[dtype, dtype], dtype, |x| InstrKind::Binary(op, x[0], x[1]));
        }
    }
}

#[test]
fn comparisons() {
    for op in Compare::ALL {
        for dtype in DType::ALL {
            check_instr(&[dtype, dtype], DType::Bool, |x| InstrKind::Compare(op, x[0], x[1]));
        }
    }
}

#[test]
fn selections_and_casts() {
    for dtype in DType::ALL {
        check_instr(&[DType::Bool, dtype, dtype], dtype, |x| InstrKind::Select(x[0], x[1], x[2]));
        for to in DType::ALL {
            check_instr(&[dtype], to, |x| InstrKind::Cast(x[0]));
        }
    }
}
