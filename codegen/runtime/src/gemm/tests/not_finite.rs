//! NaNs and infinities in operands.

use super::*;

/// A row with something that is not finite has no finite sums, others have: also where values are taken apart, and for NaNs that become
/// zero when their bits are rounded as those of a number.
#[test]
fn what_is_not_finite_stays_so_in_its_row() {
    const ROW: usize = 21;
    for isa in Isa::available() {
        for (precision, lie) in precisions(isa).flat_map(|p| [Lie::KUnit, Lie::OuterUnit].map(|lie| (p, lie)))
        {
            for bits in [0x7fff_ffff, u32::MAX, 0x7fc0_0000, 0x7f80_0000, 0xff80_0000] {
                // Packed, and few rows, whose lines of B are multiplied as they lie.
                for (m, element) in [(40, Element::F32), (24, Element::F32), (24, Element::Bf16)] {
                    let elements = (Element::F32, element);
                    let variant = Variant { lies: (lie, Lie::KUnit), elements, precision, ..PLAIN };
                    let mut case = Case::new(isa, (1, m, 33, 70), variant, 3);
                    let operand = &case.a.operand;
                    let at = operand.outer.at(ROW) + operand.k.at(50) + operand.batch.at(0);
                    case.a.bytes[4 * at as usize..][..4].copy_from_slice(&bits.to_ne_bytes());
                    for (i, row) in case.run(2, &Workspaces::new(2)).chunks_exact(33).enumerate() {
                        let expected = row.iter().all(|sum| sum.is_finite() != (i == ROW));
                        assert!(expected, "{isa} {precision:?} {lie:?} {m} {element:?} {bits:x}: row {i}");
                    }
                }
            }
        }
    }
}

/// A NaN or an infinity in a column of B, beside blocks of finite numbers, is in that column of C and in no other.
#[test]
fn what_is_not_finite_in_b_stays_so_in_its_column() {
    const COLUMN: usize = 20;
    for isa in Isa::available() {
        for (lie, bits) in [Lie::KUnit, Lie::OuterUnit]
            .into_iter()
            .flat_map(|l| [0x7fc0_0000_u32, 0xff80_0000].map(|b| (l, b)))
        {
            let variant = Variant { lies: (lie, lie), precision: Precision::Fixed, ..PLAIN };
            let mut case = Case::new(isa, (1, 40, 33, 300), variant, 3);
            let operand = &case.b.operand;
            let at = operand.outer.at(COLUMN) + operand.k.at(150) + operand.batch.at(0);
            case.b.bytes[4 * at as usize..][..4].copy_from_slice(&bits.to_ne_bytes());
            for row in case.run(2, &Workspaces::new(2)).chunks_exact(33) {
                let expected = row.iter().enumerate().all(|(j, sum)| sum.is_finite() != (j == COLUMN));
                assert!(expected, "{isa} {lie:?} {bits:x}");
            }
        }
    }
}
