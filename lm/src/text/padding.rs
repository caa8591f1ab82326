//! Rows of different lengths as one tensor: long ones are cut, short ones filled up.

use kernfusion_ir::Tensor as HostTensor;

/// Where a row is cut or filled up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Side {
    /// At its end: positions begin with the row.
    #[default]
    Right,
    /// At its begin: what comes next follows the row's last token.
    Left,
}

/// Rows of one length.
#[derive(Debug, Clone, PartialEq)]
pub struct Padded {
    /// `i32[rows, length]`
    pub tokens: HostTensor,
    /// `i32[rows, length]`: 1 for a token of a row, 0 for what was filled in.
    pub mask: HostTensor,
}

/// Cuts rows to `length` tokens, or fills them up with `filler`, at `side`.
pub fn pad(rows: &[Vec<i32>], length: usize, filler: i32, side: Side) -> Padded {
    let (mut tokens, mut mask) = (Vec::new(), Vec::new());
    for row in rows {
        let row = truncated(row, length, side);
        let missing = length - row.len();
        let (before, after) = match side {
            Side::Right => (0, missing),
            Side::Left => (missing, 0),
        };
        let filled = |filler, row: &[i32]| [&vec![filler; before], row, &vec![filler; after]].concat();
        tokens.extend(filled(filler, row));
        mask.extend(filled(0, &vec![1; row.len()]));
    }
    let shape = [rows.len(), length];
    Padded { tokens: HostTensor::new(shape, tokens), mask: HostTensor::new(shape, mask) }
}

/// The first `length` tokens of a row, or the last ones if it is cut on the left.
pub fn truncated(row: &[i32], length: usize, side: Side) -> &[i32] {
    let excess = row.len().saturating_sub(length);
    match side {
        Side::Right => &row[..row.len() - excess],
        Side::Left => &row[excess..],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_cut_and_filled_at_either_side() {
        let rows = [vec![1, 2, 3, 4], vec![5], vec![]];
        let numbers = |tensor: &HostTensor| tensor.to_f64();
        let right = pad(&rows, 3, 9, Side::Right);
        assert_eq!(numbers(&right.tokens), [1.0, 2.0, 3.0, 5.0, 9.0, 9.0, 9.0, 9.0, 9.0]);
        assert_eq!(numbers(&right.mask), [1.0, 1.0, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0]);
        let left = pad(&rows, 3, 9, Side::Left);
        assert_eq!(numbers(&left.tokens), [2.0, 3.0, 4.0, 9.0, 9.0, 5.0, 9.0, 9.0, 9.0]);
        assert_eq!(numbers(&left.mask), [1.0, 1.0, 1.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0]);
        assert_eq!(left.tokens.ty().shape, [3, 3]);
    }
}
