//! The iteration space of a kernel under construction: original axes, each refined into parts where a reshape
//! asks for it.

use kernfusion_ir::kernel::{Domain, Index, Refusal};

/// The four groups of axes, in the order in which they stand.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Role {
    Outer,
    Row,
    Column,
    /// Summed by a product; not part of the kernel's domain.
    Summed,
}

#[derive(Debug, Clone)]
struct Axis {
    extent: usize,
    role: Role,
    /// The original axis of which this is a part.
    original: usize,
}

/// Axes in order of their roles.
#[derive(Debug, Clone)]
pub(super) struct Space {
    axes: Vec<Axis>,
}

impl Space {
    /// A space from original axes, given as (extent, role); axes of one role keep their order.
    pub(super) fn new(originals: &[(usize, Role)]) -> Self {
        let mut axes: Vec<_> = originals
            .iter()
            .enumerate()
            .map(|(original, &(extent, role))| Axis { extent, role, original })
            .collect();
        axes.sort_by_key(|axis| axis.role);
        Space { axes }
    }

    /// With all row axes but the last one as outer axes, if there are such.
    pub(super) fn with_one_row_axis(mut self) -> Option<Self> {
        let last = self.axes.iter().rposition(|axis| axis.role == Role::Row)?;
        let others = self.axes.iter_mut().take(last).filter(|axis| axis.role == Role::Row);
        let moved = others.map(|axis| axis.role = Role::Outer).count();
        (moved > 0).then_some(self)
    }

    /// The extents, summed axes included.
    pub(super) fn extents(&self) -> Vec<usize> {
        self.axes.iter().map(|axis| axis.extent).collect()
    }

    /// With further summed axes, as original axes after its own.
    pub(super) fn extended(&self, extents: &[usize]) -> Space {
        let own = self.originals();
        let added = extents.iter().enumerate();
        let added = added.map(|(i, &extent)| Axis { extent, role: Role::Summed, original: own + i });
        Space { axes: self.axes.iter().cloned().chain(added).collect() }
    }

    /// The number of original axes.
    pub(super) fn originals(&self) -> usize {
        self.axes.iter().map(|axis| axis.original + 1).max().unwrap_or(0)
    }

    /// The kernel's domain: everything but summed axes.
    pub(super) fn domain(&self) -> Domain {
        let count = |role| self.axes.iter().filter(|axis| axis.role == role).count();
        let axes =
            self.axes.iter().filter(|axis| axis.role != Role::Summed).map(|axis| axis.extent).collect();
        Domain { axes, outer: count(Role::Outer), rows: count(Role::Row) }
    }

    /// Extents of the summed axes.
    pub(super) fn summed(&self) -> Vec<usize> {
        self.axes.iter().filter(|axis| axis.role == Role::Summed).map(|axis| axis.extent).collect()
    }

    /// The number of axes, with or without the summed ones.
    pub(super) fn rank(&self, with_summed: bool) -> usize {
        self.axes.iter().filter(|axis| with_summed || axis.role != Role::Summed).count()
    }

    /// The coordinate of an original axis, in a space of `rank` axes.
    pub(super) fn coordinate(&self, original: usize, rank: usize) -> Index {
        let parts = self.axes.iter().enumerate().take(rank).filter(|(_, axis)| axis.original == original);
        let mut index = Index::constant(rank, 0);
        for (place, axis) in parts {
            index.strides.iter_mut().for_each(|stride| *stride *= axis.extent as i64);
            index.strides[place] = 1;
        }
        index
    }

    /// The places of the axes of a role.
    pub(super) fn axes_of(&self, role: Role) -> std::ops::Range<usize> {
        let before = self.axes.iter().take_while(|axis| axis.role < role).count();
        before..before + self.axes.iter().filter(|axis| axis.role == role).count()
    }

    /// Whether an index has a stride along axes of a role. What is looked up for it may vary there, too.
    pub(super) fn strides_along(&self, index: &Index, role: Role) -> bool {
        let strides = index.strides.iter().zip(&self.axes);
        strides.into_iter().any(|(&stride, axis)| axis.role == role && axis.extent > 1 && stride != 0)
    }

    /// Whether two indices are equal at every point: along an axis of one point they may differ.
    pub(super) fn same(&self, a: &Index, b: &Index) -> bool {
        let strides = a.strides.iter().zip(&b.strides).zip(&self.axes);
        let mut strides = strides.filter(|(_, axis)| axis.extent > 1);
        a.offset == b.offset && a.indirect == b.indirect && strides.all(|((a, b), _)| a == b)
    }

    /// Splits an axis so that its inner part has the extent `inner`.
    pub(super) fn split(&mut self, axis: usize, inner: usize) {
        let part = Axis { extent: inner, ..self.axes[axis].clone() };
        self.axes[axis].extent /= inner;
        self.axes.insert(axis + 1, part);
    }

    /// Quotient and remainder of an index by a positive number.
    pub(super) fn divide(&self, at: &Index, by: usize) -> Result<(Index, Index), Refusal> {
        let (rank, divisor) = (at.strides.len(), by as i64);
        let mut quotient = Index::constant(rank, at.offset.div_euclid(divisor));
        let mut remainder = Index::constant(rank, at.offset.rem_euclid(divisor));
        for (place, &stride) in at.strides.iter().enumerate() {
            let extent = self.axes[place].extent;
            if extent == 1 || stride == 0 {
                continue;
            }
            if stride % divisor == 0 {
                quotient.strides[place] = stride / divisor;
            } else if stride > 0 && stride * (extent as i64 - 1) < divisor {
                remainder.strides[place] = stride;
            } else if stride > 0 && divisor % stride == 0 && extent.is_multiple_of(by / stride as usize) {
                return Err(Refusal::Split { axis: place, inner: by / stride as usize });
            } else {
                return Err(Refusal::Because("a reshape does not align with the axes"));
            }
        }
        for term in &at.indirect {
            if term.stride % divisor != 0 {
                return Err(Refusal::Because("a reshape splits a position known only at run time"));
            }
            quotient
                .indirect
                .push(kernfusion_ir::kernel::Indirect { stride: term.stride / divisor, ..*term });
        }
        let (low, high) = remainder.range(&self.extents()[..rank]);
        if low < 0 || high >= divisor {
            return Err(Refusal::Because("a slice does not align with a reshape"));
        }
        Ok((quotient, remainder))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_division_asks_for_the_split_that_makes_it_exact() {
        let mut space = Space::new(&[(24, Role::Column)]);
        assert_eq!(space.divide(&space.coordinate(0, 1), 6), Err(Refusal::Split { axis: 0, inner: 6 }));
        space.split(0, 6);
        let (quotient, remainder) = space.divide(&space.coordinate(0, 2), 6).expect("exact now");
        assert_eq!((quotient.strides, remainder.strides), (vec![1, 0], vec![0, 1]));
        assert!(matches!(space.divide(&space.coordinate(0, 2), 5), Err(Refusal::Because(_))));
    }

    #[test]
    fn roles_keep_their_order() {
        let space = Space::new(&[(2, Role::Column), (3, Role::Summed), (5, Role::Row), (7, Role::Column)]);
        assert_eq!(space.extents(), [5, 2, 7, 3]);
        assert_eq!(space.domain(), Domain { axes: vec![5, 2, 7], outer: 0, rows: 1 });
        assert_eq!(space.coordinate(3, 3).strides, [0, 0, 1]);
    }
}
