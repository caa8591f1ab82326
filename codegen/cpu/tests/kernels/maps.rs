//! Maps: every scalar instruction on vectors, tails and uniform operands.

use crate::support::{Bench, FLOATS, Program, Random, at};
use kernfusion_cpu::Options;
use kernfusion_cpu::isa::{Bf16Unit, Isa};
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

/// An elementary function in a loop over whole vectors, and by a tile primitive, which is called where the loop cannot be one: `f64` is stored, too.
#[test]
fn loops_and_primitives_give_the_same_bits() {
    for op in [Unary::Exp, Unary::Log, Unary::Tanh, Unary::Erf] {
        let run = |is_loop: bool, isa: Isa| {
            let mut bench = Bench::default();
            let ty = TensorType::new(DType::F32, [5 * N]);
            // Subnormal numbers; results of `exp` that are zero, subnormal and infinite.
            let scale = |at: usize| [1.0, 1e-3, 60.0, 1e-38, 1e-42][at % 5];
            let mut random = Random(11);
            let values: Vec<_> = (0..5 * N).map(|at| (random.unit() * 4.0 - 2.0) * scale(at)).collect();
            let x = bench.input("x", Tensor::from_f64(&ty, &values));
            let y = bench.output("y", DType::F32, &[5, N]);
            let mut program = Program::default();
            let value = program.load(x, DType::F32, at(&[N as i64, 1]));
            let value = program.push(InstrKind::Unary(op, value), DType::F32);
            program.store(value, y, at(&[N as i64, 1]));
            if !is_loop {
                let double = bench.output("double", DType::F64, &[5, N]);
                let value = program.push(InstrKind::Cast(value), DType::F64);
                program.store(value, double, at(&[N as i64, 1]));
            }
            bench.kernel(Form::Map, Domain::flat([5, N]), program.region, program.stores);
            bench.run(&Options { threads: 1, isa: Some(isa), ..Options::default() })["y"].bytes().to_vec()
        };
        for isa in Isa::available() {
            assert_eq!(run(true, isa), run(false, isa), "{op:?} on {isa}");
        }
    }
}

/// Forty values that are needed from the beginning to the end, and six scalars of a row: more than there are registers, on any processor.
#[test]
fn more_values_than_registers() {
    const VALUES: usize = 40;
    for n in [7, N] {
        let (mut bench, mut random) = (Bench::default(), Random(8));
        let ty = TensorType::new(DType::F32, [5, n + VALUES]);
        let x = bench.input("x", random.tensor(&ty, -1.0, 1.0));
        let scalars = bench.input("s", random.tensor(&TensorType::new(DType::F32, [5, 6]), -1.0, 1.0));
        let y = bench.output("y", DType::F32, &[5, n]);
        let mut program = Program::default();
        let row = at(&[(n + VALUES) as i64, 1]);
        let values: Vec<_> =
            (0..VALUES).map(|at| program.load(x, DType::F32, row.clone().shifted(at as i64))).collect();
        let scales: Vec<_> =
            (0..6).map(|number| program.load(scalars, DType::F32, at(&[6, 0]).shifted(number))).collect();
        let mut sum = values[0];
        // Each value is added by its number, and again in the opposite order.
        for (number, &value) in values.iter().chain(values.iter().rev()).enumerate() {
            let scaled =
                program.push(InstrKind::Binary(Binary::Mul, sum, scales[number % scales.len()]), DType::F32);
            sum = program.push(InstrKind::Binary(Binary::Add, scaled, value), DType::F32);
        }
        program.store(sum, y, at(&[n as i64, 1]));
        bench.kernel(Form::Map, Domain::flat([5, n]), program.region, program.stores);
        bench.check(1e-6);
    }
}

/// All numbers of bf16, and numbers between each and the next (ties and their neighbours), as they are stored and as they are computed with.
#[test]
fn numbers_are_rounded_to_the_nearest_of_bf16() {
    const BETWEEN: [u32; 6] = [0, 1, 0x7fff, 0x8000, 0x8001, 0xffff];
    let all =
        (0..=u32::from(u16::MAX)).flat_map(|upper| BETWEEN.map(|lower| f32::from_bits(upper << 16 | lower)));
    let numbers: Vec<f32> = all.collect();
    let bytes: Vec<u8> = numbers.iter().flat_map(|x| x.to_le_bytes()).collect();
    let ty = |dtype| TensorType::new(dtype, [numbers.len()]);
    let mut bench = Bench::default();
    let x = bench.input("x", Tensor::from_bytes(&ty(DType::F32), &bytes).expect("as many bytes"));
    let mut program = Program::default();
    let number = program.load(x, DType::F32, at(&[1]));
    let rounded = program.push(InstrKind::Cast(number), DType::BF16);
    let wide = program.push(InstrKind::Cast(rounded), DType::F32);
    let (stored, computed) = (
        bench.output("stored", DType::BF16, &[numbers.len()]),
        bench.output("computed", DType::F32, &[numbers.len()]),
    );
    program.store(rounded, stored, at(&[1]));
    program.store(wide, computed, at(&[1]));
    bench.kernel(Form::Map, Domain::flat([numbers.len()]), program.region, program.stores);
    for isa in Isa::available() {
        let results = bench.run(&Options { threads: 1, isa: Some(isa), ..Options::default() });
        let stored = results["stored"]
            .bytes()
            .chunks_exact(2)
            .map(|half| u32::from(u16::from_le_bytes([half[0], half[1]])));
        let computed = results["computed"]
            .bytes()
            .chunks_exact(4)
            .map(|word| u32::from_le_bytes(word.try_into().unwrap()));
        let has_instruction =
            matches!(isa, Isa::Avx512 { bf16: Bf16Unit::Pairs | Bf16Unit::Tiles | Bf16Unit::EmulatedTiles });
        for ((number, half), word) in numbers.iter().zip(stored).zip(computed) {
            assert_eq!(half << 16, word, "{number:e} on {isa}");
            if number.is_nan() {
                assert!(f32::from_bits(word).is_nan(), "NaN on {isa}");
                continue;
            }
            // For the instruction, subnormal numbers are zeros.
            let is_zero = has_instruction && number.is_subnormal();
            let near = half::bf16::from_f32(if is_zero { 0.0f32.copysign(*number) } else { *number });
            assert_eq!(half, u32::from(near.to_bits()), "{number:e} on {isa}");
        }
    }
}
