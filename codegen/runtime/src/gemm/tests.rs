//! Products of every shape, layout, element type and precision, with hooks, on every instruction set, against
//! f64; and the same bits for any number of threads.

mod bytes;
mod fixed;
mod not_finite;

use super::blocking::B_WORDS;
use super::trial::{WAY, WAYS};
use super::*;
use crate::isa::Bf16Unit;
use crate::testing::Random;
use half::{bf16, f16};

/// An operand in memory, with its values.
struct Data {
    bytes: Vec<u8>,
    /// Of half bytes.
    scales: Vec<u8>,
    operand: Operand,
    /// [batch][outer][k], as they lie in memory.
    values: Vec<f32>,
}

/// How an operand of [batch, outer, k] may lie in memory.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Lie {
    KUnit,
    OuterUnit,
    /// Every second element, rows backwards.
    Sparse,
    /// Tables for all axes: rows shuffled, k contiguous.
    RowTable,
    /// k by a table, rows contiguous.
    KTable,
    Tables,
    /// Rows in runs of seven, k shuffled.
    Runs,
    /// Rows in runs of a hundred, in which whole blocks lie; k by a table that starts somewhere and is even.
    LongRuns,
    /// k in runs of seven, rows shuffled.
    KRuns,
    /// Rows two apart in runs of twenty, k shuffled.
    StepRuns,
}

const LIES: [Lie; 10] = [
    Lie::KUnit,
    Lie::OuterUnit,
    Lie::Sparse,
    Lie::RowTable,
    Lie::KTable,
    Lie::Tables,
    Lie::Runs,
    Lie::LongRuns,
    Lie::KRuns,
    Lie::StepRuns,
];

fn table(stride: usize, len: usize, random: &mut Random) -> Axis {
    let mut offsets: Vec<isize> = (0..len).map(|i| (i * stride) as isize).collect();
    for i in (1..len).rev() {
        offsets.swap(i, (random.bits() % (i as u64 + 1)) as usize);
    }
    Axis::Table(offsets.into())
}

impl Data {
    /// Gives elements at these places of k another value.
    fn set(&mut self, ks: impl Fn(usize) -> bool, value: f32) {
        let (batch, outer, k) = (self.operand.batch.len(), self.operand.outer.len(), self.operand.k.len());
        for (b, i, p) in (0..batch).flat_map(|b| (0..outer).flat_map(move |i| (0..k).map(move |p| (b, i, p))))
        {
            if ks(p) {
                let at =
                    (self.operand.batch.at(b) + self.operand.outer.at(i) + self.operand.k.at(p)) as usize * 4;
                self.bytes[at..at + 4].copy_from_slice(&value.to_ne_bytes());
                self.values[(b * outer + i) * k + p] = value;
            }
        }
    }

    fn random(
        lie: Lie,
        element: Element,
        (batch, outer, k): (usize, usize, usize),
        random: &mut Random,
    ) -> Self {
        let strided = |len: usize, stride: usize| Axis::Strided { len, stride: stride as isize };
        let matrix = (3 * outer * k + 48 * k + 3).next_multiple_of(16);
        let batches = strided(batch, matrix);
        let (outer_axis, k_axis) = match lie {
            Lie::KUnit if element.is_half_byte() => (strided(outer, k / 2 + 16), strided(k, 1)),
            Lie::KUnit => (strided(outer, k + 1), strided(k, 1)),
            Lie::OuterUnit => (strided(outer, 1), strided(k, outer + 1)),
            Lie::Sparse => (strided(outer, 2 * k), strided(k, 2)),
            Lie::RowTable => (table(k, outer, random), strided(k, 1)),
            Lie::KTable => (strided(outer, 1), table(outer, k, random)),
            Lie::Tables => (table(1, outer, random), table(outer, k, random)),
            Lie::Runs => (
                Axis::Table((0..outer as isize).map(|i| i / 7 * 9 + i % 7).collect()),
                table(2 * outer, k, random),
            ),
            Lie::LongRuns => (
                Axis::Table((0..outer as isize).map(|i| i / 100 * 103 + i % 100).collect()),
                Axis::Table((0..k as isize).map(|p| 2 * outer as isize * (p + 1)).collect()),
            ),
            Lie::KRuns => (
                table(2 * k, outer, random),
                Axis::Table((0..k as isize).map(|p| p / 7 * 9 + p % 7).collect()),
            ),
            Lie::StepRuns => (
                Axis::Table((0..outer as isize).map(|i| i / 20 * 43 + i % 20 * 2).collect()),
                table(9 * outer / 4 + 40, k, random),
            ),
        };
        let operand = Operand { element, outer: outer_axis, k: k_axis, batch: batches };
        let (mut bytes, mut values) = (vec![0xff; (batch * matrix + outer + k) * element.size()], Vec::new());
        // Bytes of NaN.
        let mut scales = vec![0xff; bytes.len() / 4];
        for (b, i, p) in (0..batch).flat_map(|b| (0..outer).flat_map(move |i| (0..k).map(move |p| (b, i, p))))
        {
            let x = random.between(-1.0, 1.0) as f32;
            let at = (operand.batch.at(b) + operand.outer.at(i) + operand.k.at(p)) as usize * element.size();
            let (stored, value) = match element {
                Element::F32 => (x.to_ne_bytes().to_vec(), x),
                Element::Bf16 => (bf16::from_f32(x).to_ne_bytes().to_vec(), bf16::from_f32(x).to_f32()),
                Element::F16 => (f16::from_f32(x).to_ne_bytes().to_vec(), f16::from_f32(x).to_f32()),
                Element::I8 => (vec![(127.0 * x).round() as i8 as u8], (127.0 * x).round()),
                Element::HalfByte(kept) => {
                    let start = (operand.batch.at(b) + operand.outer.at(i)) as usize + p / 32 * 16;
                    let exact = 0.3 - start as f32 % 7.0;
                    let (stored, scale) = match kept {
                        ScaleType::Bf16 => {
                            (&bf16::from_f32(exact).to_ne_bytes()[..], bf16::from_f32(exact).to_f32())
                        }
                        ScaleType::F32 => (&exact.to_ne_bytes()[..], exact),
                    };
                    let at = start / 16 * stored.len();
                    scales[at..at + stored.len()].copy_from_slice(stored);
                    let (number, byte) = ((8.0 * x).floor(), &mut bytes[start + p % 16]);
                    let half = (number + 8.0) as u8;
                    *byte = if p % 32 < 16 { *byte & 0xf0 | half } else { *byte & 0x0f | half << 4 };
                    values.push(number * scale);
                    continue;
                }
            };
            bytes[at..at + element.size()].copy_from_slice(&stored);
            values.push(value);
        }
        Data { bytes, scales, operand, values }
    }
}

/// What the hooks of the tests read and write.
struct Context {
    /// Per row and per column, for both hooks.
    rows: Vec<f32>,
    columns: Vec<f32>,
    /// Where the epilogue of `Output::Tile` stores: [batch, m, n], and how often.
    stored: *mut f32,
    times: *mut u8,
    /// A and B, as `Data` has their values.
    operands: [Vec<f32>; 2],
    tiles: Tiles,
    /// Rows of the register tile.
    strip: usize,
    n: usize,
    m: usize,
    k: usize,
}

/// An element of a computed operand, made of that of `Data`. Only A is shifted, else all products would be positive and their sums
/// inexact.
fn worked(x: f32, (outer, k): (usize, usize), batch: usize, shifts: Option<&[f32]>) -> f32 {
    let shift = shifts.map_or(0.0, |shifts| shifts[k] + 0.125 * batch as f32);
    x * (1.0 + 0.25 * (outer % 3) as f32) + shift
}

/// Computes a block of A, or of B.
unsafe extern "C" fn compute<const B: bool, const ALONG_K: bool>(
    tile: *mut f32,
    ld: usize,
    row: usize,
    column: usize,
    rows: usize,
    columns: usize,
    batch: usize,
    context: *const c_void,
) {
    // SAFETY: the tests pass a `Context`, and tiles as documented.
    unsafe {
        let context = &*context.cast::<Context>();
        assert!(columns <= TILE_COLUMNS);
        let (values, extent, shifts) = match B {
            true => (&context.operands[1], context.n, None),
            false => (&context.operands[0], context.m, Some(&context.columns[..])),
        };
        for (i, j) in (0..rows).flat_map(|i| (0..columns).map(move |j| (i, j))) {
            let (outer, k) = if ALONG_K { (row + i, column + j) } else { (column + j, row + i) };
            let x = values[(batch * extent + outer) * context.k + k];
            tile.add(i * ld + j).write(worked(x, (outer, k), batch, shifts));
        }
    }
}

/// What computes A or B of a variant.
fn prologue(b: bool, along_k: bool) -> Prologue {
    let function: TileFn = match (b, along_k) {
        (false, false) => compute::<false, false>,
        (false, true) => compute::<false, true>,
        (true, false) => compute::<true, false>,
        (true, true) => compute::<true, true>,
    };
    Prologue { function, along_k }
}

/// (x + column) · row, in place, and stored where `Output::Tile` needs it.
unsafe extern "C" fn finish(
    tile: *mut f32,
    ld: usize,
    row: usize,
    column: usize,
    rows: usize,
    columns: usize,
    batch: usize,
    context: *const c_void,
) {
    // SAFETY: as above.
    unsafe {
        let context = &*context.cast::<Context>();
        assert!(columns <= if context.tiles == Tiles::Rows { context.n } else { TILE_COLUMNS });
        if context.tiles != Tiles::Any {
            let strip = |row: usize| row / context.strip;
            assert_eq!(strip(row), strip(row + rows - 1), "rows of one strip");
            assert!(context.tiles == Tiles::Strips || columns == context.n, "whole rows");
        }
        for (i, j) in (0..rows).flat_map(|i| (0..columns).map(move |j| (i, j))) {
            let x = tile.add(i * ld + j);
            *x = (*x + context.columns[column + j]) * context.rows[row + i] + batch as f32;
            let at = (batch * context.m + row + i) * context.n + column + j;
            context.stored.add(at).write(*x);
            *context.times.add(at) += 1;
        }
    }
}

struct Case {
    size: (usize, usize, usize, usize),
    a: Data,
    b: Data,
    hooks: Context,
    contraction: Contraction,
    direct: bool,
    stored: Vec<f32>,
    times: Vec<u8>,
}

#[derive(Clone, Copy, Debug)]
struct Variant {
    lies: (Lie, Lie),
    elements: (Element, Element),
    precision: Precision,
    /// Whether A and B are computed, and if so, whether along k.
    computed: [Option<bool>; 2],
    epilogue: bool,
    tiles: Tiles,
    direct: bool,
}

const PRECISIONS: [Precision; 5] =
    [Precision::F32, Precision::Bf16, Precision::Fixed, Precision::X3, Precision::X6];

/// Those of which an instruction set has kernels of its own.
fn precisions(isa: Isa) -> impl Iterator<Item = Precision> {
    let has_own = move |precision: &Precision| match precision {
        Precision::Fixed => Precision::F32.gains_by_fixed_point(isa),
        Precision::X3 | Precision::X6 => isa.has_tiles(),
        _ => true,
    };
    PRECISIONS.into_iter().filter(has_own)
}

const PLAIN: Variant = Variant {
    lies: (Lie::KUnit, Lie::OuterUnit),
    elements: (Element::F32, Element::F32),
    precision: Precision::F32,
    computed: [None; 2],
    epilogue: false,
    tiles: Tiles::Any,
    direct: true,
};

impl Case {
    fn new(isa: Isa, size: (usize, usize, usize, usize), variant: Variant, seed: u64) -> Self {
        let ((batch, m, n, k), random) = (size, &mut Random(seed));
        let a = Data::random(variant.lies.0, variant.elements.0, (batch, m, k), random);
        let b = Data::random(variant.lies.1, variant.elements.1, (batch, n, k), random);
        let epilogue = variant.epilogue || !variant.direct;
        // Rows of C are longer than n, and matrices lie in reverse order.
        let order: Vec<isize> = (0..batch).rev().map(|b| (b * m * (n + 3)) as isize).collect();
        let output = match variant.direct {
            true => Output::Direct { batch: Axis::Table(order.into()), ldc: n + 3, adds: false },
            false => Output::Tile,
        };
        let contraction = Contraction {
            isa,
            m,
            n,
            k,
            batch,
            a: a.operand.clone(),
            b: b.operand.clone(),
            output,
            precision: variant.precision,
            tiles: variant.tiles,
            prologues: [0, 1].map(|side| variant.computed[side].map(|along_k| prologue(side == 1, along_k))),
            epilogue: epilogue.then_some(finish as TileFn),
        };
        let (mut stored, mut times) = (vec![f32::NAN; batch * m * n], vec![0; batch * m * n]);
        let hooks = Context {
            rows: random.floats(m, 0.5, 1.5),
            columns: random.floats(n.max(k), -1.0, 1.0),
            stored: stored.as_mut_ptr(),
            times: times.as_mut_ptr(),
            operands: [a.values.clone(), b.values.clone()],
            tiles: variant.tiles,
            strip: register_rows(isa, variant.precision),
            n,
            m,
            k,
        };
        Case { size, a, b, hooks, contraction, direct: variant.direct, stored, times }
    }

    /// C as [batch, m, n]; what lies between its rows must stay as it was.
    fn run(&mut self, threads: usize, workspaces: &Workspaces) -> Vec<f32> {
        let (batch, m, n, _) = self.size;
        self.stored.fill(f32::NAN);
        self.times.fill(0);
        let mut c = vec![7.25f32; batch * m * (n + 3)];
        let touched = Touched { start: c.as_ptr().cast(), size: 4, row: 4 * (n + 3), batch: 0 };
        let buffers = Buffers {
            a: self.a.bytes.as_ptr(),
            b: self.b.bytes.as_ptr(),
            scales: self.b.scales.as_ptr().cast(),
            c: if self.direct { c.as_mut_ptr() } else { std::ptr::null_mut() },
            context: (&raw const self.hooks).cast(),
            reads: [Some(touched); STREAMS],
            writes: [Some(touched); STREAMS],
        };
        // SAFETY: the axes were made for these buffers.
        unsafe { self.contraction.run(&buffers, &Pool::new(threads), workspaces).unwrap() };
        if self.contraction.epilogue.is_some() {
            assert!(self.times.iter().all(|&times| times == 1), "each element is finished once");
        }
        if !self.direct {
            return self.stored.clone();
        }
        let place = |b: usize, i: usize| ((batch - 1 - b) * m + i) * (n + 3);
        for (b, i) in (0..batch).flat_map(|b| (0..m).map(move |i| (b, i))) {
            assert_eq!(c[place(b, i) + n..][..3], [7.25; 3]);
        }
        let rows = (0..batch * m).flat_map(|row| c[place(row / m, row % m)..][..n].to_vec());
        rows.collect()
    }

    fn check(&mut self, variant: Variant) {
        let (batch, m, n, k) = self.size;
        let workspaces = Workspaces::new(3);
        let what = format!("{} {:?} {variant:?}", self.contraction.isa, self.size);
        let c = self.run(2, &workspaces);
        for threads in [1, 3] {
            let again = self.run(threads, &workspaces);
            assert!(same_bits(&c, &again), "{what}: {threads} threads changed a bit");
        }
        // Half bytes are not rounded again, where they are not packed.
        let is_read = |element: Element| element.is_half_byte() && gemv::suits(&self.contraction);
        let rounds = [variant.elements.0, variant.elements.1]
            .map(|element| variant.precision.rounds_to_bf16() && !is_read(element));
        let is_fixed = microkernel::Kernels::of(self.contraction.isa, variant.precision).is_fixed();
        let round = |side: usize, x: f32| match rounds[side] && !is_fixed {
            true => bf16::from_f32(x).to_f32(),
            false => x,
        };
        let values = [(&self.a.values, m), (&self.b.values, n)];
        let [rows, columns] = [0, 1].map(|side| {
            let (values, extent) = values[side];
            let value = |(at, &x): (usize, &f32)| match variant.computed[side] {
                None => x,
                Some(_) => {
                    let shifts = (side == 0).then_some(&self.hooks.columns[..]);
                    worked(x, (at / k % extent, at % k), at / (extent * k), shifts)
                }
            };
            values.iter().enumerate().map(value).collect::<Vec<_>>()
        });
        let [mut rows, mut columns] = [(0, &rows), (1, &columns)]
            .map(|(side, values)| values.iter().map(|&x| f64::from(round(side, x))).collect::<Vec<_>>());
        if is_fixed && k > 0 {
            for values in [&mut rows, &mut columns] {
                values.chunks_mut(k).for_each(fixed::in_fixed_point);
            }
        }
        for (b, i, j) in (0..batch).flat_map(|b| (0..m).flat_map(move |i| (0..n).map(move |j| (b, i, j)))) {
            let (row, column) = (&rows[(b * m + i) * k..][..k], &columns[(b * n + j) * k..][..k]);
            let (mut sum, mut size) = (0.0, 1.0);
            for product in row.iter().zip(column).map(|(x, y)| x * y) {
                (sum, size) = (sum + product, size + product.abs());
            }
            if self.contraction.epilogue.is_some() {
                sum = (sum + f64::from(self.hooks.columns[j])) * f64::from(self.hooks.rows[i]) + b as f64;
            }
            let got = f64::from(c[(b * m + i) * n + j]);
            let bound = if variant.precision == Precision::X3 { 1.2e-5 } else { 1e-6 };
            assert!((got - sum).abs() <= bound * size, "{what} ({b}, {i}, {j}): {got}, not {sum}");
        }
    }
}

fn check(isa: Isa, size: (usize, usize, usize, usize), variant: Variant) {
    let seed = (size.0 + 3 * size.1 + 5 * size.2 + 7 * size.3) as u64;
    Case::new(isa, size, variant, seed).check(variant);
}

#[test]
fn all_layouts_and_elements() {
    let elements = [Element::F32, Element::Bf16, Element::F16, Element::I8];
    for isa in Isa::available() {
        for (a, b) in LIES.into_iter().flat_map(|a| LIES.map(|b| (a, b))) {
            for (e, precision) in elements.into_iter().flat_map(|e| precisions(isa).map(move |p| (e, p))) {
                let lies = (a, b);
                let other = elements[(a as usize + b as usize) % 4];
                let variant = Variant { lies, elements: (e, other), precision, ..PLAIN };
                check(isa, (2, 37, 45, 19), variant);
                check(isa, (1, 3, 45, 19), variant);
            }
        }
    }
}

#[test]
fn all_sizes() {
    let sizes = [1, 2, 5, 14, 33, 130];
    for isa in Isa::available() {
        for (m, n) in sizes.into_iter().flat_map(|m| sizes.map(|n| (m, n))) {
            for k in [0, 1, 2, 17, 65] {
                let lies = (LIES[(m + k) % 3], LIES[(n + k) % 3]);
                let precision = PRECISIONS[(m + n) % PRECISIONS.len()];
                let variant = Variant { lies, precision, epilogue: n % 3 == 0, ..PLAIN };
                check(isa, (1 + k % 2, m, n, k), variant);
            }
        }
    }
}

#[test]
fn hooks_on_every_path() {
    // Within one block of k, several blocks, few rows, more columns than a tile; both outputs.
    let sizes = [(3, 40, 50, 60), (2, 29, 70, 1000), (2, 5, 400, 800), (1, 121, 801, 390), (1, 16, 20, 385)];
    for isa in Isa::available() {
        for (size, direct) in sizes.into_iter().flat_map(|size| [(size, true), (size, false)]) {
            for (lie, precision) in LIES.into_iter().flat_map(|lie| precisions(isa).map(move |p| (lie, p))) {
                let lies = (lie, if direct { Lie::KUnit } else { Lie::OuterUnit });
                let along_k = lie == Lie::KUnit;
                let computed = match (direct, lie == Lie::OuterUnit) {
                    (true, _) => [Some(along_k), None],
                    (false, true) => [None, Some(along_k)],
                    (false, false) => [Some(!along_k), Some(along_k)],
                };
                let variant = Variant { lies, precision, computed, epilogue: true, direct, ..PLAIN };
                if size.3 < 800 || lie == Lie::OuterUnit || lie == Lie::KUnit {
                    check(isa, size, variant);
                }
            }
        }
    }
}

#[test]
fn strips_and_whole_rows() {
    // Rows within one block of k and several, wider than a tile; more columns than rows; a packed B that is too large to be whole.
    let sizes =
        [(2, 40, 401, 60), (1, 131, 70, 800), (1, 20, 900, 390), (1, 30, 1100, 3100), (2, 3, 450, 20)];
    for isa in Isa::available() {
        for (number, (size, tiles)) in
            sizes.into_iter().flat_map(|size| [Tiles::Strips, Tiles::Rows].map(|t| (size, t))).enumerate()
        {
            for precision in precisions(isa).filter(|&p| size.3 < 1000 || p == Precision::F32) {
                let lies = (LIES[number % 3], LIES[(number + 1) % 3]);
                let variant =
                    Variant { lies, precision, tiles, epilogue: true, direct: number % 4 < 2, ..PLAIN };
                check(isa, size, variant);
            }
        }
    }
}

#[test]
fn few_rows_are_computed_the_other_way_round() {
    let elements = [Element::F32, Element::Bf16, Element::F16, Element::I8];
    // One block of k and several; rows below and above a panel, and as many as a tile has columns; more of A than a second-level cache holds.
    let sizes = [
        (2, 9, 45, 19),
        (1, 37, 290, 390),
        (2, 64, 131, 800),
        (1, 384, 770, 40),
        (1, 33, 66, 384),
        (1, 18, 40, 30_000),
    ];
    for isa in Isa::available() {
        for (number, size) in sizes.into_iter().enumerate() {
            for (place, lie) in LIES.into_iter().enumerate() {
                let (direct, epilogue) = (place % 2 == 0, (number + place) % 3 != 0);
                let elements = (elements[place % 4], elements[(number + place / 2) % 4]);
                let precision = PRECISIONS[(place + number) % PRECISIONS.len()];
                let lies = (lie, Lie::KUnit);
                check(isa, size, Variant { lies, elements, precision, epilogue, direct, ..PLAIN });
                // The gradient of a weight, whose windows are values of k in runs.
                let precision = [Precision::F32, Precision::Bf16][(place + number) % 2];
                let elements = [(Element::F32, Element::F32), (Element::F32, Element::Bf16)][place / 2 % 2];
                let lies = (lie, Lie::KRuns);
                check(isa, size, Variant { lies, elements, precision, epilogue, direct, ..PLAIN });
            }
        }
    }
}

/// On a machine whose caches hold next to nothing, B is never packed whole where it need not be.
#[test]
fn small_caches_change_no_bit() {
    let sizes =
        [(2, 40, 401, 60), (1, 131, 70, 800), (1, 37, 640, 900), (1, 300, 800, 410), (1, 18, 45, 1000)];
    let lies = [(Lie::KUnit, Lie::OuterUnit), (Lie::KUnit, Lie::KUnit), (Lie::OuterUnit, Lie::RowTable)];
    let tiles = [Tiles::Any, Tiles::Strips, Tiles::Rows];
    let all = || lies.iter().flat_map(|&lies| tiles.map(|tiles| (lies, tiles))).enumerate();
    for isa in Isa::available() {
        for (precision, size) in precisions(isa).flat_map(|precision| sizes.map(|size| (precision, size))) {
            for (number, (lies, tiles)) in all() {
                let direct = number % 2 == 0;
                let epilogue = !direct || tiles != Tiles::Any;
                let variant = Variant { lies, precision, tiles, epilogue, direct, ..PLAIN };
                let mut case = Case::new(isa, size, variant, 5);
                let mut run = |words| {
                    B_WORDS.set(words);
                    case.run(2, &Workspaces::new(2))
                };
                let [as_it_is, small] = [None, Some(1000)].map(&mut run);
                B_WORDS.set(None);
                assert!(same_bits(&as_it_is, &small), "{isa} {size:?} {variant:?}");
            }
        }
    }
}

#[test]
fn the_tile_unit_and_its_emulation_have_the_same_bits() {
    let unit = |bf16| Isa::Avx512 { bf16 };
    let both = [unit(Bf16Unit::Tiles), unit(Bf16Unit::EmulatedTiles)];
    if !both.iter().all(|isa| Isa::available().contains(isa)) {
        return;
    }
    // Magnitudes of all kinds: sums that cancel, and numbers whose lower parts, or they themselves, are subnormal.
    let scales = [1.0f32, 1e-30, 1e-38, 1e19];
    for (number, &scale) in scales.iter().enumerate() {
        for (precision, lie) in PRECISIONS.into_iter().flat_map(|p| LIES.map(|lie| (p, lie))) {
            let size = [(2, 70, 45, 900), (1, 33, 64, 77), (1, 1200, 32, 31), (1, 200, 300, 65)][number];
            let variant = Variant { lies: (lie, Lie::KUnit), precision, ..PLAIN };
            let [hardware, emulated] = both.map(|isa| {
                let mut case = Case::new(isa, size, variant, 11);
                for at in (0..case.a.bytes.len()).step_by(4) {
                    let bytes = case.a.bytes[at..at + 4].try_into().expect("four bytes");
                    let wide = f32::from_ne_bytes(bytes) * scale * if at % 28 == 0 { 1e5 } else { 1.0 };
                    case.a.bytes[at..at + 4].copy_from_slice(&wide.to_ne_bytes());
                }
                case.run(2, &Workspaces::new(2))
            });
            assert!(
                hardware
                    .iter()
                    .zip(&emulated)
                    .all(|(a, b)| a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan()),
                "{precision:?} {lie:?} {scale:e}"
            );
        }
    }
}

fn same_bits(a: &[f32], b: &[f32]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a.to_bits() == b.to_bits())
}

/// Few rows are multiplied with lines of B one after another, or with several of them side by side; larger products with B in larger or
/// smaller blocks.
#[test]
fn both_ways_have_the_same_bits() {
    let elements = [Element::F32, Element::Bf16, Element::I8];
    for (isa, element) in Isa::available().into_iter().flat_map(|isa| elements.map(|element| (isa, element)))
    {
        // Every number of rows; no line for each stream, one, and some left over; sums shorter and longer than what is added at a time. B of
        // more than two and of more than twelve mebibytes.
        let few = (1..=8).flat_map(|m| [(m, 3, 64), (m, 5, 17), (m, 403, 200), (m, 39, 7)]);
        // Two groups of rows, three, and as many as there may be.
        let groups = [9, 13, 32].into_iter().flat_map(|m| [(m, 7, 64), (m, 403, 40), (m, 75, 1100)]);
        let large = [(20, 801, 1900), (18, 40, 30_000)];
        let large = large.into_iter().filter(|_| element == Element::F32 && isa != Isa::Portable);
        let in_tiles = few.chain(groups).map(|size| (size, Tiles::Any));
        for ((m, n, k), tiles) in in_tiles.chain(large.map(|size| (size, Tiles::Strips))) {
            let variant =
                Variant { lies: (Lie::KUnit, Lie::KUnit), elements: (Element::F32, element), ..PLAIN };
            let mut case = Case::new(isa, (2, m, n, k), variant, 17);
            case.contraction.tiles = tiles;
            let [first, second] = WAYS.map(|way| {
                WAY.set(Some(way));
                case.run(2, &Workspaces::new(2))
            });
            WAY.set(None);
            assert!(same_bits(&first, &second), "{isa} {element:?} {m} x {k} x {n}");
        }
    }
}

/// Half bytes are unpacked and scaled as they are read, and pairs of bf16 multiplied, one line after another or several side by side, for one
/// group of rows and for more.
#[test]
fn half_bytes_and_pairs_are_multiplied_as_they_lie() {
    let halves = [ScaleType::Bf16, ScaleType::F32].map(|scale| (Element::F32, Element::HalfByte(scale)));
    let elements = halves.into_iter().chain([(Element::F32, Element::Bf16)]);
    let kinds = elements.chain([(Element::Bf16, Element::Bf16)]);
    for (isa, elements) in
        Isa::available().into_iter().flat_map(|isa| kinds.clone().map(move |kind| (isa, kind)))
    {
        let few = (1..=7).flat_map(|m| [(m, 5, 32), (m, 403, 96), (m, 39, 1024 + 64)]);
        let groups = [(9, 7, 64), (13, 403, 32), (16, 75, 2080)];
        // Packed, as they are and with operands exchanged.
        let packed = [(33, 7, 64), (40, 403, 800), (400, 75, 32)];
        // Less than a register, some lanes of one, a pair that is not whole.
        let pairs = [(1, 9, 2), (4, 9, 38), (7, 21, 1026), (3, 9, 33), (13, 9, 1025)];
        let pairs = pairs.into_iter().filter(|_| elements.1 == Element::Bf16);
        for (precision, (m, n, k)) in few
            .chain(groups)
            .chain(packed)
            .chain(pairs)
            .flat_map(|size| precisions(isa).map(move |precision| (precision, size)))
        {
            let variant = Variant { lies: (Lie::KUnit, Lie::KUnit), elements, precision, ..PLAIN };
            let mut case = Case::new(isa, (2, m, n, k), variant, 23);
            let ways = WAYS.map(|way| {
                WAY.set(Some(way));
                case.check(variant);
                case.run(2, &Workspaces::new(2))
            });
            WAY.set(None);
            assert!(same_bits(&ways[0], &ways[1]), "{isa} {precision:?} {elements:?} {m} x {k} x {n}");
        }
    }
}

/// A product in strips is not computed the other way round.
#[test]
fn the_other_way_round_has_the_same_bits() {
    for isa in Isa::available() {
        for precision in precisions(isa) {
            let variant = Variant { lies: (Lie::KUnit, Lie::KUnit), precision, epilogue: true, ..PLAIN };
            let mut case = Case::new(isa, (2, 40, 99, 900), variant, 5);
            let transposed = case.run(2, &Workspaces::new(2));
            case.contraction.tiles = Tiles::Strips;
            let plain = case.run(2, &Workspaces::new(2));
            assert!(same_bits(&transposed, &plain), "{isa} {precision:?}");
        }
    }
}

/// As a loop does it: A changes from run to run, B only where it is said.
#[test]
fn a_factor_that_stays_is_packed_once() {
    for isa in Isa::available() {
        for size in [(1, 40, 99, 300), (2, 50, 70, 40), (1, 5, 64, 900), (1, 20, 70, 900), (1, 40, 1700, 16)]
        {
            for lie in [Lie::KUnit, Lie::OuterUnit] {
                let variant = Variant { lies: (Lie::KUnit, lie), epilogue: true, ..PLAIN };
                let mut case = Case::new(isa, size, variant, 9);
                let mut keeping = Workspaces::keeping();
                keeping.forget(2);
                let check = |case: &mut Case, workspaces: &Workspaces| {
                    let (kept, plain) = (case.run(2, workspaces), case.run(2, &Workspaces::new(2)));
                    assert!(same_bits(&kept, &plain), "{isa} {size:?} {lie:?}");
                    kept
                };
                check(&mut case, &keeping);
                case.a.set(|k| k == 3, 0.5);
                let before = check(&mut case, &keeping);
                case.b.set(|k| k == 5, -0.25);
                // One matrix in one piece, and not read where it lies.
                if size == (1, 40, 99, 300) {
                    assert!(same_bits(&case.run(2, &keeping), &before), "{isa} {lie:?}: packed again");
                }
                keeping.forget(2);
                check(&mut case, &keeping);
                keeping.forget(3);
                case.run(3, &keeping);
            }
        }
    }
}

/// What a text that is shorter than its cache has not written is not read: it may be no number.
#[test]
fn lines_at_the_ends_that_count_for_nothing_are_not_read() {
    for isa in Isa::available() {
        for (size, first, last) in
            [((2, 3, 64, 200), 7, 150), ((1, 1, 390, 70), 0, 69), ((3, 8, 20, 40), 40, 40)]
        {
            for lie in [Lie::OuterUnit, Lie::KTable] {
                let variant = Variant { lies: (Lie::KUnit, lie), ..PLAIN };
                let mut case = Case::new(isa, size, variant, 3);
                let outside = move |k| k < first || k >= last;
                case.a.set(outside, 0.0);
                case.b.set(outside, f32::NAN);
                let read = case.run(2, &Workspaces::new(2));
                case.b.set(outside, 1.0);
                case.check(variant);
                let same = case.run(3, &Workspaces::new(3));
                assert!(same_bits(&read, &same), "{isa} {size:?} {lie:?}");
            }
        }
    }
}

#[test]
fn long_sums_are_packed_block_by_block() {
    // 5,000 words a column leave room for fewer than 768 of 800 columns, so that B is packed one block at a time.
    for isa in Isa::available().into_iter().take(1).chain([Isa::Portable]) {
        for (direct, precision) in [
            (true, Precision::F32),
            (false, Precision::F32),
            (false, Precision::Bf16),
            (false, Precision::X6),
            (false, Precision::Fixed),
        ] {
            let lies = (Lie::OuterUnit, Lie::OuterUnit);
            let variant = Variant { lies, precision, epilogue: true, direct, ..PLAIN };
            check(isa, (1, 9, 1600, 5000), variant);
        }
    }
}

#[test]
fn a_shared_factor_is_read_again_for_every_matrix() {
    for isa in Isa::available() {
        let mut case = Case::new(isa, (4, 30, 40, 20), PLAIN, 3);
        case.contraction.b.batch = Axis::Strided { len: 4, stride: 0 };
        let first = case.b.values[..40 * 20].to_vec();
        case.b.values = first.repeat(4);
        case.check(PLAIN);
    }
}

#[test]
fn generic_products_are_exact() {
    let mut random = Random(4);
    let (batch, m, n, k) = (3, 7, 5, 11);
    let strided = |len: usize, stride: isize| Axis::Strided { len, stride };
    let layout = |outer| Layout { outer, k: strided(k, 1), batch: strided(batch, 100) };
    let a: Vec<i32> = (0..batch * 100).map(|_| random.bits() as i32).collect();
    let b: Vec<i32> = (0..batch * 100).map(|_| random.bits() as i32).collect();
    let (rows, columns) = (table(k, m, &mut random), strided(n, 2 * k as isize));
    let (mut c, mut wide) = (vec![0i32; batch * m * n], vec![0f64; batch * m * n]);
    let widen = |x: &[i32]| x.iter().map(|&x| f64::from(x)).collect::<Vec<_>>();
    let (a_wide, b_wide) = (widen(&a), widen(&b));
    let mut product =
        GenericContraction { number: Number::I32, a: layout(rows.clone()), b: layout(columns.clone()) };
    let pool = Pool::new(2);
    // SAFETY: the axes stay inside 100 elements a matrix, and the results have their own.
    unsafe {
        product.run(a.as_ptr().cast(), b.as_ptr().cast(), c.as_mut_ptr().cast(), &pool);
        product.number = Number::F64;
        product.run(a_wide.as_ptr().cast(), b_wide.as_ptr().cast(), wide.as_mut_ptr().cast(), &pool);
    }
    let signed = c.clone();
    product.number = Number::U32;
    // SAFETY: as above.
    unsafe { product.run(a.as_ptr().cast(), b.as_ptr().cast(), c.as_mut_ptr().cast(), &pool) };
    assert_eq!(c, signed, "wrapping products do not depend on the sign");
    for row in 0..batch * m * n {
        let (batch, i, j) = (row / (m * n), row / n % m, row % n);
        let at = |axis: &Axis, i: usize, p: usize| (batch * 100) + (axis.at(i) as usize) + p;
        let terms = || (0..k).map(|p| (a[at(&rows, i, p)], b[at(&columns, j, p)]));
        assert_eq!(c[row], terms().fold(0, |sum: i32, (x, y)| sum.wrapping_add(x.wrapping_mul(y))));
        assert_eq!(wide[row], terms().fold(0.0, |sum, (x, y)| sum + f64::from(x) * f64::from(y)));
    }
}
