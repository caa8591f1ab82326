//! Which columns of a chain matter: found from comparisons of coordinates, not from masks by name.
//!
//! Take the points beyond a diagonal, `column − row > d`. A comparison of coordinates has one known outcome there, a
//! `select` on it one known operand, and what follows may be known, too: e^−∞ is 0, and 0 times anything is 0. If every
//! consumer then multiplies zeros and every reduction along the row reduces its neutral element, no back end need go
//! there. (Statistics of a row are taken as finite: where they are not, the points this side of the diagonal make the
//! same NaN.)
//!
//! ```text
//! %3 = select (row ≥ column) %2 −∞;  %4 = reduce.columns max %3;  %6 = exp (%3 − %4);  contract %6 …   →  column ≤ row
//! ```

use kernfusion_ir::kernel::{
    Band, Consumer, Direction, Domain, Index, Instr, InstrKind, Region, Scalar, Store,
};
use kernfusion_ir::{Binary, Compare, DType, ReduceOp, Unary};

/// What is known of a value at the points in question.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Known {
    Nothing,
    Zero,
    /// −∞, or so far below every score that `exp` of it is 0.
    Lowest,
    Truth(bool),
}

/// A constant at or below this counts as −∞: added to any score it leaves −10³⁰, whose exponential is 0.
const LOWEST: f64 = -1e30;

/// The points beyond a diagonal.
#[derive(Clone, Copy)]
enum Beyond {
    /// `column − row ≥ distance`
    Right(i64),
    /// `column − row ≤ distance`
    Left(i64),
}

/// The columns that matter, if it is known that some do not; and the conditions that hold left of the band's upper edge.
pub(super) fn find(
    region: &Region,
    domain: &Domain,
    consumers: &[Consumer],
    stores: &[Store],
) -> Option<(Band, Vec<Scalar>)> {
    let columns = domain.column_axes();
    let is_plain = domain.rows == 1 && columns.len() == 1;
    // What is stored along columns is stored in all of them, be it the same number.
    let is_of_row = |store: &Store| {
        let stays =
            columns.clone().all(|axis| store.index.strides[axis] == 0) && store.index.indirect.is_empty();
        stays && !region.varies(store.value, columns.clone(), domain)
    };
    if !is_plain || !stores.iter().all(is_of_row) {
        return None;
    }
    let proof = Proof { region, domain, consumers, lines: lines(region, domain) };
    let mut diagonals: Vec<i64> = proof.diagonals();
    diagonals.sort_unstable();
    let right = diagonals.iter().copied().find(|&d| proof.holds(Beyond::Right(d)));
    let left = diagonals.iter().rev().copied().find(|&d| proof.holds(Beyond::Left(d)));
    let band = Band { lower: left.map(|d| d + 1), upper: right.map(|d| d - 1) };
    let holds = |instr: &Instr, upper: i64| match instr.kind {
        InstrKind::Compare(op, x, y) => proof.outcome(op, x, y, Beyond::Left(upper)) == Some(true),
        _ => false,
    };
    let instrs = region.instrs.iter().enumerate();
    let inside = instrs.filter(|(_, instr)| band.upper.is_some_and(|upper| holds(instr, upper)));
    let inside = inside.map(|(at, _)| Scalar(at as u32)).collect();
    (left.is_some() || right.is_some()).then_some((band, inside))
}

/// `offset + row·r + column·c`, for the values that are such everywhere in the domain.
type Line = Option<[i64; 3]>;

fn lines(region: &Region, domain: &Domain) -> Vec<Line> {
    let (row, column) = (domain.outer, domain.outer + domain.rows);
    let mut lines: Vec<Line> = vec![];
    for instr in &region.instrs {
        let of = |scalar: &Scalar| lines[scalar.0 as usize];
        let line = match &instr.kind {
            InstrKind::Coordinate(index) => line(index, row, column),
            InstrKind::Constant(value) if value.value().fract() == 0.0 && value.value().abs() < 1e9 => {
                Some([value.value() as i64, 0, 0])
            }
            InstrKind::Binary(Binary::Add, x, y) => {
                of(x).zip(of(y)).map(|(x, y)| [x[0] + y[0], x[1] + y[1], x[2] + y[2]])
            }
            InstrKind::Binary(Binary::Sub, x, y) => {
                of(x).zip(of(y)).map(|(x, y)| [x[0] - y[0], x[1] - y[1], x[2] - y[2]])
            }
            InstrKind::Cast(x) => of(x),
            _ => None,
        };
        let extents = [domain.axes[row], domain.axes[column]];
        lines.push(line.filter(|&line| is_exact(line, extents, instr.dtype)));
    }
    lines
}

/// Whether a dtype has all numbers of a line: otherwise they wrap, or are rounded.
fn is_exact([offset, row, column]: [i64; 3], extents: [usize; 2], dtype: DType) -> bool {
    let along = |stride: i64, extent: usize| stride * (extent as i64 - 1).max(0);
    let ends = [along(row, extents[0]), along(column, extents[1])];
    let low = offset + ends.iter().map(|&end| end.min(0)).sum::<i64>();
    let high = offset + ends.iter().map(|&end| end.max(0)).sum::<i64>();
    let (least, most) = match dtype {
        DType::F64 => (-1 << 53, 1 << 53),
        DType::F32 => (-1 << 24, 1 << 24),
        DType::F16 => (-1 << 11, 1 << 11),
        DType::BF16 => (-1 << 8, 1 << 8),
        DType::I32 => (i64::from(i32::MIN), i64::from(i32::MAX)),
        DType::U32 => (0, i64::from(u32::MAX)),
        DType::I8 => (i64::from(i8::MIN), i64::from(i8::MAX)),
        DType::Bool => return false,
    };
    least <= low && high <= most
}

fn line(index: &Index, row: usize, column: usize) -> Line {
    let others = index.strides.iter().enumerate().any(|(at, &s)| s != 0 && at != row && at != column);
    let plain = !others && index.indirect.is_empty();
    plain.then(|| [index.offset, index.strides[row], index.strides[column]])
}

struct Proof<'a> {
    region: &'a Region,
    domain: &'a Domain,
    consumers: &'a [Consumer],
    lines: Vec<Line>,
}

impl Proof<'_> {
    /// `a + b·(column − row)`, if the difference of two lines is that.
    fn difference(&self, x: Scalar, y: Scalar) -> Option<(i64, i64)> {
        let (x, y) = self.lines[x.0 as usize].zip(self.lines[y.0 as usize])?;
        let [a, row, column] = [x[0] - y[0], x[1] - y[1], x[2] - y[2]];
        (row == -column && column.abs() == 1).then_some((a, column))
    }

    /// Where comparisons may change their outcome.
    fn diagonals(&self) -> Vec<i64> {
        let near = |instr: &Instr| match instr.kind {
            InstrKind::Compare(_, x, y) => self.difference(x, y).map(|(a, b)| -a * b),
            _ => None,
        };
        self.region.instrs.iter().filter_map(near).flat_map(|d| [d - 1, d, d + 1]).collect()
    }

    /// The outcome of a comparison beyond a diagonal, if it has one there.
    fn outcome(&self, op: Compare, x: Scalar, y: Scalar, beyond: Beyond) -> Option<bool> {
        let (a, b) = self.difference(x, y)?;
        // The range of x − y there.
        let (low, high) = match (beyond, b > 0) {
            (Beyond::Right(d), true) => (a + d, i64::MAX),
            (Beyond::Right(d), false) => (i64::MIN, a - d),
            (Beyond::Left(d), true) => (i64::MIN, a + d),
            (Beyond::Left(d), false) => (a - d, i64::MAX),
        };
        let always = |yes: bool, no: bool| if yes { Some(true) } else { no.then_some(false) };
        match op {
            Compare::Lt => always(high < 0, low >= 0),
            Compare::Le => always(high <= 0, low > 0),
            Compare::Gt => always(low > 0, high <= 0),
            Compare::Ge => always(low >= 0, high < 0),
            Compare::Eq => always(false, low > 0 || high < 0),
            Compare::Ne => always(low > 0 || high < 0, false),
        }
    }

    /// Whether nothing beyond the diagonal matters.
    fn holds(&self, beyond: Beyond) -> bool {
        let mut known: Vec<Known> = vec![];
        for instr in &self.region.instrs {
            if let InstrKind::Reduce(op, direction, x) = &instr.kind {
                let neutral = match op {
                    ReduceOp::Sum => Known::Zero,
                    ReduceOp::Max => Known::Lowest,
                    ReduceOp::Min => return false,
                };
                let varies = self.region.varies(*x, self.domain.column_axes(), self.domain);
                if *direction == Direction::Rows || !varies || known[x.0 as usize] != neutral {
                    return false;
                }
            }
            let value = self.known(instr, &known, beyond);
            known.push(value);
        }
        self.consumers.iter().all(|consumer| known[consumer.value.0 as usize] == Known::Zero)
    }

    fn known(&self, instr: &Instr, known: &[Known], beyond: Beyond) -> Known {
        let of = |scalar: &Scalar| known[scalar.0 as usize];
        let is_positive = |scalar: &Scalar| matches!(&self.region.instr(*scalar).kind, InstrKind::Constant(c) if c.value() > 0.0);
        match &instr.kind {
            InstrKind::Constant(value) if value.value() == 0.0 => Known::Zero,
            InstrKind::Constant(value) if value.value() <= LOWEST => Known::Lowest,
            InstrKind::Compare(op, x, y) => {
                self.outcome(*op, *x, *y, beyond).map_or(Known::Nothing, Known::Truth)
            }
            InstrKind::Select(condition, x, y) => match of(condition) {
                Known::Truth(true) => of(x),
                Known::Truth(false) => of(y),
                _ if of(x) == of(y) => of(x),
                _ => Known::Nothing,
            },
            InstrKind::Cast(x) => of(x),
            InstrKind::Unary(Unary::Exp, x) if of(x) == Known::Lowest => Known::Zero,
            InstrKind::Unary(Unary::Neg | Unary::Abs | Unary::Sqrt, x) if of(x) == Known::Zero => Known::Zero,
            InstrKind::Unary(Unary::Not, x) => match of(x) {
                Known::Truth(truth) => Known::Truth(!truth),
                _ => Known::Nothing,
            },
            InstrKind::Binary(op, x, y) => match (op, of(x), of(y)) {
                (Binary::Mul, Known::Zero, _) | (Binary::Mul, _, Known::Zero) => Known::Zero,
                (Binary::Div, Known::Zero, _) => Known::Zero,
                (Binary::Add | Binary::Sub, Known::Zero, Known::Zero) => Known::Zero,
                (Binary::Add | Binary::Sub, Known::Lowest, Known::Nothing | Known::Zero)
                | (Binary::Add, Known::Nothing | Known::Zero, Known::Lowest) => Known::Lowest,
                (Binary::Mul | Binary::Div, Known::Lowest, _) if is_positive(y) => Known::Lowest,
                (Binary::Mul, _, Known::Lowest) if is_positive(x) => Known::Lowest,
                (Binary::And, Known::Truth(false), _) | (Binary::And, _, Known::Truth(false)) => {
                    Known::Truth(false)
                }
                (Binary::And, Known::Truth(true), other) | (Binary::And, other, Known::Truth(true)) => other,
                (Binary::Or, Known::Truth(true), _) | (Binary::Or, _, Known::Truth(true)) => {
                    Known::Truth(true)
                }
                (Binary::Or, Known::Truth(false), other) | (Binary::Or, other, Known::Truth(false)) => other,
                _ => Known::Nothing,
            },
            _ => Known::Nothing,
        }
    }
}
