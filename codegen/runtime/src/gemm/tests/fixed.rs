//! Products in fixed point.

use super::*;

/// The values of a row in fixed point.
pub(super) fn in_fixed_point(row: &mut [f64]) {
    for block in row.chunks_mut(128) {
        let most = block.iter().fold(0.0_f64, |most, x| most.max(x.abs())) as f32;
        for x in block {
            let whole = (*x as f32 * (4095.0 / most)).round_ties_even();
            *x = if most == 0.0 { 0.0 } else { f64::from(whole) * f64::from(most / 4095.0) };
        }
    }
}

/// The largest magnitude of the block that value `p` is in.
fn largest_beside(row: &[f32], p: usize) -> f64 {
    let start = p / 128 * 128;
    row[start..row.len().min(start + 128)].iter().fold(0.0, |most, x| f64::from(x.abs()).max(most))
}

/// In fixed point a value is off by at most a half of its block's scale; sums are exact within a block, also of the largest numbers, and the same bits on
/// all processors.
#[test]
fn fixed_point_is_as_exact_as_it_says() {
    let has = |isa: &Isa| precisions(*isa).any(|precision| precision == Precision::Fixed);
    let isas: Vec<_> = Isa::available().into_iter().filter(has).collect();
    let k = 1300;
    for (scale, lie) in [1.0, 1e-18, 1e15].into_iter().flat_map(|s| LIES.map(|lie| (s, lie))) {
        let variant = Variant { lies: (lie, lie), precision: Precision::Fixed, ..PLAIN };
        let cases = isas.iter().map(|&isa| {
            let mut case = Case::new(isa, (1, 33, 47, k), variant, 5);
            // One block is the same large number everywhere, others are zeros and next to nothing.
            for data in [&mut case.a, &mut case.b] {
                data.set(|p| p / 128 == 3, 2.0);
                data.set(|p| p / 128 == 4, 0.0);
                data.set(|p| p / 128 == 6, 3e-39);
                data.set(|p| p == 700, scale);
            }
            let c = case.run(2, &Workspaces::new(2));
            (case, c)
        });
        let cases: Vec<_> = cases.collect();
        assert!(cases.windows(2).all(|pair| same_bits(&pair[0].1, &pair[1].1)), "{isas:?} {lie:?} {scale}");
        let Some((case, c)) = cases.first() else { return };
        for (i, j) in (0..33).flat_map(|i| (0..47).map(move |j| (i, j))) {
            let (row, column) = (&case.a.values[i * k..][..k], &case.b.values[j * k..][..k]);
            let sum: f64 = row.iter().zip(column).map(|(x, y)| f64::from(*x) * f64::from(*y)).sum();
            let size: f64 = row.iter().zip(column).map(|(x, y)| f64::from(x * y).abs()).sum();
            let off: f64 = (0..k)
                .map(|p| {
                    let (of_x, of_y) = (largest_beside(row, p), largest_beside(column, p));
                    let (x, y) = (f64::from(row[p]).abs(), f64::from(column[p]).abs());
                    (x * of_y + y * of_x + of_x * of_y / 8190.0) / 8190.0
                })
                .sum();
            let got = f64::from(c[i * 47 + j]);
            assert!(
                (got - sum).abs() <= 1.001 * off + 1e-6 * size,
                "{lie:?} {scale} ({i}, {j}): {got}, not {sum}"
            );
        }
    }
}

/// Products of few rows, of short sums or of windows do not gain by it, and products of bf16 only where these are computed in `f32`.
#[test]
fn fixed_point_is_for_products_that_gain_by_it() {
    for isa in Isa::available() {
        let gains = |precision, size, lies| {
            let variant = Variant { precision, lies, ..PLAIN };
            Case::new(isa, size, variant, 1).contraction.gains_by_fixed_point()
        };
        let (size, lies) = ((1, 64, 64, 384), PLAIN.lies);
        let has = match isa {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 { bf16: Bf16Unit::None | Bf16Unit::Pairs } => is_x86_feature_detected!("avx512vnni"),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => is_x86_feature_detected!("avxvnni"),
            _ => false,
        };
        assert_eq!(gains(Precision::F32, size, lies), has, "{isa}");
        let of_bf16 = has && isa != Isa::Avx512 { bf16: Bf16Unit::Pairs };
        assert_eq!(gains(Precision::Bf16, size, lies), of_bf16, "{isa}");
        for size in [(1, 31, 64, 384), (1, 64, 1, 384), (1, 64, 64, 64), (1, 64, 64, 140), (1, 64, 64, 0)] {
            assert!(!gains(Precision::F32, size, lies), "{isa} {size:?}");
        }
        assert!(!gains(Precision::F32, size, (Lie::KUnit, Lie::Runs)), "{isa}");
    }
}
