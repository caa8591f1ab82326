//! Products of bytes are exact on every instruction set.

use super::super::kernels::WITHOUT_VNNI;
use super::*;

const OF_BYTES: Variant =
    Variant { elements: (Element::I8, Element::I8), precision: Precision::Int8, ..PLAIN };

/// The sums of a case, each rounded once.
fn exact(case: &Case) -> Vec<f32> {
    let (batch, m, n, k) = case.size;
    let of =
        |values: &[f32], row: usize| values[row * k..][..k].iter().map(|&x| x as i64).collect::<Vec<_>>();
    let entries =
        (0..batch).flat_map(|b| (0..m).flat_map(move |i| (0..n).map(move |j| (b * m + i, b * n + j))));
    let sum = |(i, j)| {
        let (row, column) = (of(&case.a.values, i), of(&case.b.values, j));
        row.iter().zip(column).map(|(x, y)| x * y).sum::<i64>() as f32
    };
    entries.map(sum).collect()
}

/// A case with some bytes of −128.
fn case(isa: Isa, size: (usize, usize, usize, usize), lies: (Lie, Lie)) -> Case {
    let mut case = Case::new(isa, size, Variant { lies, ..OF_BYTES }, 11 + size.1 as u64);
    for (number, data) in [&mut case.a, &mut case.b].into_iter().enumerate() {
        for p in (number..data.operand.k.len()).step_by(3) {
            let at = data.operand.outer.at(0) + data.operand.k.at(p);
            data.bytes[at as usize] = i8::MIN as u8;
            data.values[p] = -128.0;
        }
    }
    case
}

const SIZES: [(usize, usize, usize, usize); 12] = [
    (2, 1, 45, 20),
    (1, 1, 700, 19),
    (2, 5, 37, 64),
    (1, 9, 130, 772),
    (1, 31, 66, 2048),
    (2, 40, 65, 19),
    (1, 57, 290, 390),
    (1, 130, 70, 1601),
    (1, 33, 500, 3100),
    (1, 400, 801, 40),
    (1, 14, 32, 0),
    (2, 3, 3, 1),
];

#[test]
fn sums_are_exact_for_any_layout_and_number_of_threads() {
    let others = LIES.into_iter().flat_map(|lie| [(Lie::Sparse, lie), (lie, Lie::KUnit)]);
    let small = others.flat_map(|lies| [SIZES[1], SIZES[5], SIZES[6]].map(|size| (size, lies)));
    let all = SIZES.map(|size| (size, (Lie::KUnit, Lie::KUnit))).into_iter().chain(small);
    for isa in Isa::available() {
        for (size, lies) in all.clone() {
            let mut case = case(isa, size, lies);
            let expected = exact(&case);
            for threads in [1, 3] {
                let got = case.run(threads, &Workspaces::new(3));
                assert!(same_bits(&got, &expected), "{isa} {size:?} {lies:?} {threads} threads");
            }
        }
    }
}

#[test]
fn sums_are_exact_without_instructions_for_bytes() {
    WITHOUT_VNNI.set(true);
    for isa in Isa::available() {
        for size in SIZES {
            let mut case = case(isa, size, (Lie::KUnit, Lie::KUnit));
            let expected = exact(&case);
            assert!(same_bits(&case.run(1, &Workspaces::new(1)), &expected), "{isa} {size:?}");
        }
    }
    WITHOUT_VNNI.set(false);
}

#[test]
fn hooks_see_floats() {
    for isa in Isa::available() {
        for (number, size) in SIZES.into_iter().enumerate().filter(|(_, size)| size.3 > 0) {
            for (tiles, direct) in
                [(Tiles::Any, true), (Tiles::Strips, false), (Tiles::Rows, number % 2 == 0)]
            {
                let lies = (Lie::KUnit, if number % 3 == 0 { Lie::OuterUnit } else { Lie::KUnit });
                check(isa, size, Variant { lies, epilogue: true, tiles, direct, ..OF_BYTES });
            }
        }
    }
}

#[test]
fn the_largest_sums_fit() {
    for isa in Isa::available() {
        for (m, k) in [(1, MOST_TERMS_OF_BYTES), (1, MOST_TERMS_OF_BYTES / 4 * 4), (12, 130_000)] {
            let mut case = case(isa, (1, m, 3, k), (Lie::KUnit, Lie::KUnit));
            for data in [&mut case.a, &mut case.b] {
                data.bytes.fill(i8::MIN as u8);
                data.values.fill(-128.0);
            }
            let expected = exact(&case);
            assert!(same_bits(&case.run(2, &Workspaces::new(2)), &expected), "{isa} {m} {k}");
        }
    }
}
