//! Every primitive, on every instruction set of the machine, against the standard library, `half` and f64.

use super::{Tiles, scalar};
use crate::isa::Isa;
use crate::testing::Random;
use half::{bf16, f16};

type Unary<T> = unsafe extern "C" fn(*mut T, *const T, usize);
type Binary<T> = unsafe extern "C" fn(*mut T, *const T, *const T, usize);
type Reduce<T> = unsafe extern "C" fn(*const T, usize) -> T;
type Load<T> = unsafe extern "C" fn(*mut T, *const u8, isize, usize);
type Store<T> = unsafe extern "C" fn(*mut u8, isize, *const T, usize);
type Gather<T> = unsafe extern "C" fn(*mut T, *const u8, isize, *const i32, isize, i64, usize);
type Philox = unsafe extern "C" fn(*mut u32, usize, u32, u32, u32, u64, u64);

/// Lengths with every kind of tail.
const LENGTHS: [usize; 13] = [0, 1, 2, 7, 8, 15, 16, 17, 31, 63, 64, 65, 1000];

/// The primitive `name` as a function of type F, which must be its type.
fn primitive<F: Copy>(isa: Isa, name: &str) -> F {
    let address = Tiles::of(isa).get(name).unwrap_or_else(|| panic!("no primitive {name}"));
    assert_eq!(size_of::<F>(), size_of_val(&address));
    // SAFETY: the address of a function of this type.
    unsafe { std::mem::transmute_copy(&address) }
}

/// Applies a unary primitive from unaligned memory to unaligned memory, and in place; both must agree.
fn unary<T: Copy + Default + PartialOrd + std::fmt::Debug>(isa: Isa, name: &str, x: &[T]) -> Vec<T> {
    let f: Unary<T> = primitive(isa, name);
    let mut y = vec![T::default(); x.len() + 1];
    let mut in_place = x.to_vec();
    // SAFETY: all buffers hold `x.len()` values.
    unsafe {
        f(y[1..].as_mut_ptr(), x.as_ptr(), x.len());
        f(in_place.as_mut_ptr(), in_place.as_ptr(), x.len());
    }
    for (a, b) in y[1..].iter().zip(&in_place) {
        let both_nan = a.partial_cmp(a).is_none() && b.partial_cmp(b).is_none();
        assert!(a == b || both_nan, "{isa} {name}: {a:?} and, in place, {b:?}");
    }
    y.remove(0);
    y
}

/// Checks f32 results against an f64 function, relative to the result.
fn check_unary(name: &str, x: &[f32], expected: fn(f64) -> f64, tolerance: f64) {
    for isa in Isa::available() {
        let mut worst = (0.0, 0.0);
        for (x, y) in x.iter().zip(unary(isa, name, x)) {
            let expected = expected(f64::from(*x));
            let error = (f64::from(y) - expected).abs() / expected.abs();
            if error > worst.0 {
                worst = (error, *x);
            }
        }
        assert!(worst.0 <= tolerance, "{isa} {name}({}) has relative error {:e}", worst.1, worst.0);
    }
}

fn special(name: &str, pairs: &[(f32, f32)]) {
    for isa in Isa::available() {
        // In the first lanes of a whole register, and in a tail.
        for n in [pairs.len() + 64, pairs.len()] {
            let mut x: Vec<f32> = pairs.iter().map(|pair| pair.0).collect();
            x.resize(n, 0.5);
            for (y, (x, expected)) in unary(isa, name, &x).iter().zip(pairs) {
                let same = y.to_bits() == expected.to_bits() || (y.is_nan() && expected.is_nan());
                assert!(same, "{isa} {name}({x}) = {y}, not {expected}");
            }
        }
    }
}

const INF: f32 = f32::INFINITY;
const NAN: f32 = f32::NAN;

#[test]
fn exp() {
    let mut random = Random(1);
    let mut x = random.floats(200_003, -87.3, 88.7);
    x.extend(random.floats(50_000, -1.0, 1.0));
    x.extend([-87.3, 88.7, 1e-30, -1e-30, f32::MIN_POSITIVE]);
    check_unary("exp_f32", &x, f64::exp, 3e-7);
    special(
        "exp_f32",
        &[
            (0.0, 1.0),
            (-0.0, 1.0),
            (-INF, 0.0),
            (INF, INF),
            (NAN, NAN),
            (89.0, INF),
            (3e38, INF),
            (-3e38, 0.0),
        ],
    );
    // Results that are subnormal: within one unit of their last place.
    for isa in Isa::available() {
        let x = random.floats(10_000, -103.9, -87.3);
        for (x, y) in x.iter().zip(unary(isa, "exp_f32", &x)) {
            let error = (f64::from(y) - f64::from(*x).exp()).abs();
            assert!(error <= f64::from(f32::from_bits(1)) + 3e-7 * f64::from(y), "{isa} exp({x}) = {y}");
        }
    }
}

#[test]
fn log() {
    let mut random = Random(2);
    // Every exponent and mantissa, the neighbourhood of 1, subnormal numbers.
    let mut x: Vec<f32> =
        (0..200_003).map(|_| f32::from_bits((random.bits() % 0x7f80_0000) as u32).max(1e-45)).collect();
    x.extend(random.floats(100_000, 0.5, 2.0));
    x.extend(random.floats(10_000, 0.999, 1.001));
    x.extend((0..10_000).map(|_| f32::from_bits(1 + (random.bits() % 0x7f_ffff) as u32)));
    x.retain(|&x| x != 1.0);
    check_unary("log_f32", &x, f64::ln, 2e-7);
    special(
        "log_f32",
        &[
            (0.0, -INF),
            (-0.0, -INF),
            (-1.0, NAN),
            (-1e-45, NAN),
            (-INF, NAN),
            (INF, INF),
            (NAN, NAN),
            (1.0, 0.0),
        ],
    );
}

#[test]
fn sigmoid() {
    let mut random = Random(7);
    let mut x = random.floats(200_003, -87.3, 20.0);
    x.extend(random.floats(100_000, -1.0, 1.0));
    let expected = |x: f64| 1.0 / (1.0 + (-x).exp());
    check_unary("sigmoid_f32", &x, expected, 3e-7);
    let least = f32::MIN_POSITIVE;
    for isa in Isa::available() {
        let x = random.floats(10_000, -200.0, -87.4);
        let small =
            unary(isa, "sigmoid_f32", &x).into_iter().zip(x).find(|(y, _)| !(0.0..=least).contains(y));
        assert_eq!(small, None, "{isa}");
    }
    let ends = [(0.0, 0.5), (-0.0, 0.5), (INF, 1.0), (-INF, 0.0), (NAN, NAN), (50.0, 1.0), (-3e38, 0.0)];
    special("sigmoid_f32", &ends);
}

#[test]
fn tanh_and_erf() {
    let mut random = Random(3);
    let mut x = random.floats(200_003, -10.0, 10.0);
    x.extend(random.floats(100_000, -1.0, 1.0));
    x.extend((0..10_000).map(|i| 1e-30 * 1.01f32.powi(i % 7000)));
    x.retain(|&x| x != 0.0);
    check_unary("tanh_f32", &x, f64::tanh, 3e-7);
    check_unary("erf_f32", &x, scalar::erf, 3e-7);
    for name in ["tanh_f32", "erf_f32"] {
        special(
            name,
            &[(0.0, 0.0), (-0.0, -0.0), (INF, 1.0), (-INF, -1.0), (NAN, NAN), (50.0, 1.0), (-3e38, -1.0)],
        );
    }
}

#[test]
fn scalar_functions() {
    let mut random = Random(4);
    let x = random.floats(5_003, -20.0, 20.0);
    check_unary("sin_f32", &x, f64::sin, 1e-6);
    check_unary("cos_f32", &x, f64::cos, 1e-6);
    let wide: Vec<f64> = (0..1003).map(|_| random.between(-6.0, 6.0)).collect();
    type Row = (&'static str, fn(f64) -> f64);
    let functions: [Row; 7] = [
        ("exp_f64", f64::exp),
        ("log_f64", f64::ln),
        ("tanh_f64", f64::tanh),
        ("sigmoid_f64", scalar::sigmoid),
        ("erf_f64", scalar::erf),
        ("sin_f64", f64::sin),
        ("cos_f64", f64::cos),
    ];
    for isa in Isa::available() {
        for (name, expected) in functions {
            for (x, y) in wide.iter().zip(unary(isa, name, &wide)) {
                assert!(y.to_bits() == expected(*x).to_bits(), "{isa} {name}({x}) = {y}");
            }
        }
        let pow: Binary<f32> = primitive(isa, "pow_f32");
        let pow_f64: Binary<f64> = primitive(isa, "pow_f64");
        let (mut y, mut z) = (vec![0.0; 1003], vec![0.0; 1003]);
        // SAFETY: all buffers hold 1003 values.
        unsafe {
            pow(y.as_mut_ptr(), x.as_ptr(), x[500..].as_ptr(), 1003);
            pow_f64(z.as_mut_ptr(), wide.as_ptr(), wide.as_ptr(), 1003);
        }
        for i in 0..1003 {
            assert_eq!(y[i].to_bits(), x[i].powf(x[500 + i]).to_bits());
            assert_eq!(z[i].to_bits(), wide[i].powf(wide[i]).to_bits());
        }
    }
}

/// Reduces on every instruction set; all must give the same bits, also from unaligned memory.
fn reduce<T: Copy + Default + std::fmt::Debug>(name: &str, x: &[T]) -> T {
    let bytes = |value: T| format!("{value:?}");
    let mut results = Vec::new();
    for isa in Isa::available() {
        let f: Reduce<T> = primitive(isa, name);
        let mut shifted = vec![T::default()];
        shifted.extend(x);
        // SAFETY: both buffers hold `x.len()` values.
        results.extend(unsafe { [f(x.as_ptr(), x.len()), f(shifted[1..].as_ptr(), x.len())] });
    }
    assert!(results.iter().all(|&r| bytes(r) == bytes(results[0])), "{name} of {}: {results:?}", x.len());
    results[0]
}

#[test]
fn float_reductions() {
    let mut random = Random(5);
    for n in LENGTHS {
        let x = random.floats(n, -2.0, 2.0);
        let wide: Vec<f64> = x.iter().map(|&x| f64::from(x)).collect();
        let magnitude: f64 = wide.iter().map(|x| x.abs()).sum();
        let sum: f64 = wide.iter().sum();
        assert!((f64::from(reduce("sum_f32", &x)) - sum).abs() <= 1e-6 * magnitude);
        assert!((reduce("sum_f64", &wide) - sum).abs() <= 1e-15 * magnitude);
        let max = x.iter().copied().fold(-INF, f32::max);
        let min = x.iter().copied().fold(INF, f32::min);
        assert_eq!((reduce("max_f32", &x), reduce("min_f32", &x)), (max, min));
        assert_eq!((reduce("max_f64", &wide), reduce("min_f64", &wide)), (max.into(), min.into()));
        let near_one: Vec<f32> = x.iter().map(|x| 1.0 + x / 64.0).collect();
        let product: f64 = near_one.iter().map(|&x| f64::from(x)).product();
        assert!((f64::from(reduce("product_f32", &near_one)) / product - 1.0).abs() < 1e-4);
        let near_one: Vec<f64> = near_one.iter().map(|&x| f64::from(x)).collect();
        assert!((reduce("product_f64", &near_one) / product - 1.0).abs() < 1e-12);
        // A NaN anywhere wins.
        for at in [0, n / 2, n.saturating_sub(1)] {
            let (mut x, mut wide) = (x.clone(), wide.clone());
            if at < n {
                (x[at], wide[at]) = (NAN, f64::NAN);
                assert!(reduce("max_f32", &x).is_nan() && reduce("min_f32", &x).is_nan());
                assert!(reduce("max_f64", &wide).is_nan() && reduce("min_f64", &wide).is_nan());
            }
        }
    }
    assert_eq!(reduce::<f32>("product_f32", &[]), 1.0);
    assert_eq!((reduce::<f32>("sum_f32", &[]), reduce::<f32>("max_f32", &[])), (0.0, -INF));
}

#[test]
fn integer_reductions_wrap() {
    let mut random = Random(6);
    for n in LENGTHS {
        let x: Vec<i32> = (0..n).map(|_| random.bits() as i32).collect();
        let y: Vec<u32> = (0..n).map(|_| random.bits() as u32 | 1).collect();
        let sum = x.iter().fold(0, |sum: i32, &x| sum.wrapping_add(x));
        assert_eq!(reduce("sum_i32", &x), sum);
        assert_eq!(reduce("product_i32", &x), x.iter().fold(1, |product: i32, &x| product.wrapping_mul(x)));
        assert_eq!(reduce("sum_u32", &y), y.iter().fold(0, |sum: u32, &y| sum.wrapping_add(y)));
        assert_eq!(reduce("product_u32", &y), y.iter().fold(1, |product: u32, &y| product.wrapping_mul(y)));
        assert_eq!(reduce("max_i32", &x), x.iter().copied().max().unwrap_or(i32::MIN));
        assert_eq!(reduce("min_i32", &x), x.iter().copied().min().unwrap_or(i32::MAX));
        assert_eq!(reduce("max_u32", &y), y.iter().copied().max().unwrap_or(u32::MIN));
        assert_eq!(reduce("min_u32", &y), y.iter().copied().min().unwrap_or(u32::MAX));
    }
}

fn accumulate<T>(operation: &str, kind: &str, make: impl Fn(u64) -> T, op: fn(T, T) -> T)
where
    T: Copy + PartialEq + std::fmt::Debug,
{
    let mut random = Random(7);
    for isa in Isa::available() {
        let f: Unary<T> = primitive(isa, &format!("accumulate_{operation}_{kind}"));
        for n in LENGTHS {
            let mut acc: Vec<T> = (0..n).map(|_| make(random.bits())).collect();
            let src: Vec<T> = (0..n).map(|_| make(random.bits())).collect();
            let expected: Vec<T> = acc.iter().zip(&src).map(|(&a, &b)| op(a, b)).collect();
            // SAFETY: both hold n values.
            unsafe { f(acc.as_mut_ptr(), src.as_ptr(), n) };
            assert_eq!(acc, expected, "{isa} {operation} {kind}");
        }
    }
}

#[test]
fn accumulators() {
    let float = |bits: u64| bits as i32 as f32 / 1e9;
    let double = |bits: u64| bits as i64 as f64 / 1e18;
    accumulate("sum", "f32", float, |a, b| a + b);
    accumulate("product", "f32", float, |a, b| a * b);
    accumulate("max", "f32", float, f32::max);
    accumulate("min", "f32", float, f32::min);
    accumulate("sum", "f64", double, |a, b| a + b);
    accumulate("product", "f64", double, |a, b| a * b);
    accumulate("max", "f64", double, f64::max);
    accumulate("min", "f64", double, f64::min);
    accumulate("sum", "i32", |bits| bits as i32, i32::wrapping_add);
    accumulate("product", "i32", |bits| bits as i32, i32::wrapping_mul);
    accumulate("max", "i32", |bits| bits as i32, i32::max);
    accumulate("min", "i32", |bits| bits as i32, i32::min);
    accumulate("sum", "u32", |bits| bits as u32, u32::wrapping_add);
    accumulate("product", "u32", |bits| bits as u32, u32::wrapping_mul);
    accumulate("max", "u32", |bits| bits as u32, u32::max);
    accumulate("min", "u32", |bits| bits as u32, u32::min);
    for isa in Isa::available() {
        for name in ["accumulate_max_f32", "accumulate_min_f32"] {
            let f: Unary<f32> = primitive(isa, name);
            let (mut acc, src) = ([NAN, 1.0], [1.0, NAN]);
            // SAFETY: both hold two values.
            unsafe { f(acc.as_mut_ptr(), src.as_ptr(), 2) };
            assert!(acc[0].is_nan() && acc[1].is_nan(), "{isa} {name}");
        }
    }
}

/// Loads, stores and gathers of one element type: `size` bytes, `widen` and `narrow` as the reference has them.
fn movement<T>(
    kind: &str,
    size: usize,
    make: impl Fn(u64) -> T,
    widen: impl Fn(&[u8]) -> T,
    narrow: impl Fn(T) -> Vec<u8>,
) where
    T: Copy + Default + PartialEq + std::fmt::Debug,
{
    let mut random = Random(8);
    for (isa, n) in Isa::available().into_iter().flat_map(|isa| LENGTHS.map(|n| (isa, n))) {
        let load: Load<T> = primitive(isa, &format!("load_{kind}"));
        let store: Store<T> = primitive(isa, &format!("store_{kind}"));
        let gather: Gather<T> = primitive(isa, &format!("gather_{kind}"));
        let lanes: Vec<T> = (0..n).map(|_| make(random.bits())).collect();
        for stride in [1isize, 3, -2] {
            // One odd byte before, so that nothing is aligned; the first element in use is `origin`.
            let extent = stride.unsigned_abs() * n + 1;
            let origin = if stride < 0 { extent - 1 } else { 0 };
            let mut memory = vec![0xa5u8; 1 + extent * size];
            let at = |i: usize| 1 + (origin as isize + i as isize * stride) as usize * size;
            // SAFETY: every element named lies inside `memory`.
            unsafe { store(memory.as_mut_ptr().add(at(0)), stride, lanes.as_ptr(), n) };
            for (i, lane) in lanes.iter().enumerate() {
                assert_eq!(memory[at(i)..][..size], narrow(*lane)[..], "{isa} store_{kind} of {lane:?}");
            }
            assert_eq!(memory[0], 0xa5);
            let mut back = vec![T::default(); n];
            // SAFETY: as above.
            unsafe { load(back.as_mut_ptr(), memory.as_ptr().add(at(0)), stride, n) };
            for i in 0..n {
                assert_eq!(back[i], widen(&memory[at(i)..][..size]), "{isa} load_{kind} stride {stride}");
            }
        }
        let table: Vec<u8> = (0..40).flat_map(|_| narrow(make(random.bits()))).collect();
        let mut back = vec![T::default(); n];
        // SAFETY: one element is read.
        unsafe { load(back.as_mut_ptr(), table.as_ptr().add(size), 0, n) };
        assert!(back.iter().all(|&lane| lane == widen(&table[size..][..size])), "{isa} load_{kind} splat");
        // Five elements per row, 8 rows: row index[i] clamped, column i % 5 by calls of five.
        let index: Vec<i32> =
            (0..5).map(|_| random.between(-3.0, 11.0) as i32).chain([i32::MIN, i32::MAX]).collect();
        let mut back = vec![T::default(); 5];
        // SAFETY: the table has 8 rows of 5 elements.
        unsafe { gather(back.as_mut_ptr(), table.as_ptr(), 1, index[2..].as_ptr(), 5, 8, 5) };
        for i in 0..5 {
            let element = i + index[2 + i].clamp(0, 7) as usize * 5;
            assert_eq!(back[i], widen(&table[element * size..][..size]), "{isa} gather_{kind}");
        }
    }
}

#[test]
fn loads_stores_and_gathers() {
    let float = |bits: u64| bits as i32 as f32 / 1e6;
    movement("f32", 4, float, |b| f32::from_ne_bytes(b.try_into().unwrap()), |x| x.to_ne_bytes().into());
    movement(
        "f64",
        8,
        |b| b as i64 as f64,
        |b| f64::from_ne_bytes(b.try_into().unwrap()),
        |x| x.to_ne_bytes().into(),
    );
    movement(
        "i32",
        4,
        |b| b as i32,
        |b| i32::from_ne_bytes(b.try_into().unwrap()),
        |x| x.to_ne_bytes().into(),
    );
    movement(
        "u32",
        4,
        |b| b as u32,
        |b| u32::from_ne_bytes(b.try_into().unwrap()),
        |x| x.to_ne_bytes().into(),
    );
    movement("bool", 1, |b| -((b & 1) as i32), |b| -i32::from(b[0]), |x| vec![u8::from(x == -1)]);
    movement(
        "bf16",
        2,
        float,
        |b| bf16::from_ne_bytes(b.try_into().unwrap()).to_f32(),
        |x| bf16::from_f32(x).to_ne_bytes().into(),
    );
    movement(
        "f16",
        2,
        |bits| float(bits) * 40.0,
        |b| f16::from_ne_bytes(b.try_into().unwrap()).to_f32(),
        |x| f16::from_f32(x).to_ne_bytes().into(),
    );
}

#[test]
fn all_half_precision_numbers_widen_and_every_kind_of_rounding_is_right() {
    let stored: Vec<u16> = (0..=u16::MAX).collect();
    let mut random = Random(9);
    // Values of every exponent, and everything beside and between two neighbouring half numbers.
    let mut lanes: Vec<f32> = (0..500_000).map(|_| f32::from_bits(random.bits() as u32)).collect();
    for &bits in &stored {
        let middle = f16::from_bits(bits).to_f32().to_bits() + 0x1000;
        let middle_bf16 = (u32::from(bits) << 16) + 0x8000;
        lanes.extend(
            [middle - 1, middle, middle + 1, middle_bf16 - 1, middle_bf16, middle_bf16 + 1]
                .map(f32::from_bits),
        );
    }
    lanes.extend((0..5000).map(|i| (i as f32 + 0.5) * 2f32.powi(-24)));
    let agree = |a: f32, b: f32| a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan());
    for isa in Isa::available() {
        let mut widened = vec![0.0; stored.len()];
        let mut narrowed = vec![0u16; lanes.len()];
        for kind in ["bf16", "f16"] {
            let to_f32 =
                |b: u16| if kind == "f16" { f16::from_bits(b).to_f32() } else { bf16::from_bits(b).to_f32() };
            let (load, store): (Load<f32>, Store<f32>) =
                (primitive(isa, &format!("load_{kind}")), primitive(isa, &format!("store_{kind}")));
            // SAFETY: all buffers have the lengths given.
            unsafe {
                load(widened.as_mut_ptr(), stored.as_ptr().cast(), 1, stored.len());
                store(narrowed.as_mut_ptr().cast(), 1, lanes.as_ptr(), lanes.len());
            }
            for (&bits, &lane) in stored.iter().zip(&widened) {
                assert!(agree(lane, to_f32(bits)), "{isa} load_{kind}({bits:#x}) = {lane}");
            }
            let rounded = unary(isa, &format!("round_{kind}"), &lanes);
            for ((&lane, &bits), &rounded) in lanes.iter().zip(&narrowed).zip(&rounded) {
                let expected = if kind == "f16" {
                    f16::from_f32_const(lane).to_bits()
                } else {
                    bf16::from_f32(lane).to_bits()
                };
                let same = bits == expected || (to_f32(bits).is_nan() && lane.is_nan());
                assert!(same, "{isa} store_{kind}({lane:e}) = {bits:#x}, not {expected:#x}");
                assert!(agree(rounded, to_f32(bits)), "{isa} round_{kind}({lane:e}) = {rounded}");
            }
        }
    }
}

#[test]
fn philox_streams_are_one_sequence() {
    let mut whole = vec![0; 5000];
    let portable: Philox = primitive(Isa::Portable, "philox");
    // Element by element, so that blocks side by side are compared with single ones.
    for (e, word) in whole.iter_mut().enumerate() {
        // SAFETY: one word is written.
        unsafe { portable(word, 1, 17, 4, 99, (1 << 34) - 1000 + e as u64, 0) };
    }
    for isa in Isa::available() {
        let philox: Philox = primitive(isa, "philox");
        for (start, stride, n) in
            [(0, 1, 5000), (1, 1, 4097), (7, 1, 3), (0, 1, 0), (999, 1, 64), (3, 13, 300), (4, 4, 9)]
        {
            let mut words = vec![0; n];
            // SAFETY: n words are written.
            unsafe { philox(words.as_mut_ptr(), n, 17, 4, 99, (1 << 34) - 1000 + start, stride) };
            let expected: Vec<u32> = (0..n).map(|i| whole[start as usize + i * stride as usize]).collect();
            assert_eq!(words, expected, "{isa} from {start} by {stride}");
        }
        // A row that begins before the first element has the others at their places.
        for (before, n) in [(1, 70), (4, 5), (5, 68), (80, 160), (127, 300)] {
            let mut words = vec![0; n];
            let mut expected = vec![0; n - before];
            // SAFETY: as many words are written as there are.
            unsafe {
                philox(words.as_mut_ptr(), n, 17, 4, 99, (before as u64).wrapping_neg(), 1);
                portable(expected.as_mut_ptr(), n - before, 17, 4, 99, 0, 1);
            }
            assert_eq!(words[before..], expected, "{isa} from {before} before the first");
        }
        let mut words = [0; 4];
        // SAFETY: four words are written.
        unsafe { philox(words.as_mut_ptr(), 4, 0, 0, 0, 0, 1) };
        assert_eq!(words, [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]);
    }
    assert!(whole.iter().collect::<std::collections::HashSet<_>>().len() > 4990);
}

#[cfg(target_arch = "x86_64")]
#[test]
fn sums_of_registers_have_the_bits_of_the_sum_of_each() {
    use super::vector::{Lanes, x86};
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx2,fma")]
    unsafe fn check(x: &[f32]) {
        // SAFETY: the test asks for the instruction set, and there are seven registers' lanes.
        unsafe {
            let mut registers = [x86::Avx512::splat(0.0); 7];
            for (i, register) in registers.iter_mut().enumerate() {
                *register = x86::Avx512::load(x[16 * i..].as_ptr());
            }
            for (sum, register) in Lanes::sums(registers).into_iter().zip(registers) {
                assert_eq!(sum.to_bits(), register.sum().to_bits());
            }
        }
    }
    if Isa::available().iter().any(|isa| matches!(isa, Isa::Avx512 { .. })) {
        let mut random = Random(3);
        for scale in [1.0, 1e30] {
            let x: Vec<f32> = (0..7 * 16).map(|_| scale * (random.between(-0.5, 0.5) as f32)).collect();
            // SAFETY: the machine has it.
            unsafe { check(&x) };
        }
    }
}

#[test]
fn every_instruction_set_has_the_same_names() {
    let names = |isa| Tiles::of(isa).symbols().iter().map(|symbol| symbol.name).collect::<Vec<_>>();
    for isa in Isa::available() {
        assert_eq!(names(isa), names(Isa::Portable));
        // SAFETY: it takes nothing and touches no memory.
        unsafe { primitive::<unsafe extern "C" fn()>(isa, "zero_upper")() };
    }
    assert!(Tiles::of(Isa::Portable).get("exp_f128").is_none());
}

#[test]
#[ignore = "a measurement, printed by `--ignored --nocapture`"]
fn speed() {
    let x = Random(10).floats(4096, 0.1, 3.0);
    let mut y = vec![0.0f32; 4096];
    for isa in Isa::available() {
        let report = |name: &str, run: &mut dyn FnMut()| {
            let start = std::time::Instant::now();
            (0..3000).for_each(|_| run());
            println!("{isa} {name}: {:.2} G/s", 3000.0 * 4096.0 / start.elapsed().as_secs_f64() / 1e9);
        };
        for name in [
            "exp_f32",
            "log_f32",
            "tanh_f32",
            "erf_f32",
            "round_bf16",
            "round_f16",
            "accumulate_sum_f32",
            "accumulate_max_f32",
        ] {
            let f: Unary<f32> = primitive(isa, name);
            // SAFETY: both hold 4096 values.
            report(name, &mut || unsafe { f(y.as_mut_ptr(), x.as_ptr(), 4096) });
        }
        for name in ["sum_f32", "max_f32"] {
            let f: Reduce<f32> = primitive(isa, name);
            // SAFETY: as above.
            report(name, &mut || y[0] += unsafe { f(x.as_ptr(), 4096) });
        }
        for name in ["load_f32", "load_bf16", "load_f16"] {
            let f: Load<f32> = primitive(isa, name);
            // SAFETY: as above.
            report(name, &mut || unsafe { f(y.as_mut_ptr(), x.as_ptr().cast(), 1, 4096) });
        }
        for name in ["store_bf16", "store_f16"] {
            let f: Store<f32> = primitive(isa, name);
            // SAFETY: as above.
            report(name, &mut || unsafe { f(y.as_mut_ptr().cast(), 1, x.as_ptr(), 4096) });
        }
        let philox: Philox = primitive(isa, "philox");
        // SAFETY: as above.
        report("philox", &mut || unsafe { philox(y.as_mut_ptr().cast(), 4096, 1, 2, 3, 4, 1) });
    }
}
