//! What more than one back end asks about kernels.

use kernfusion_ir::kernel::{BufferId, Direction, Index, InstrKind, Kernel, Region, Scalar, StoreMode};

/// Replaces buffers by the kernel's own numbers, in the order of first use, so that kernels that differ in nothing
/// but buffers become equal. Names and covered nodes are dropped for the same reason.
pub fn number_slots(kernel: &Kernel) -> (Kernel, Vec<BufferId>) {
    let mut kernel = Kernel { name: String::new(), covers: vec![], ..kernel.clone() };
    let mut slots: Vec<BufferId> = vec![];
    kernel.renumber(|buffer| {
        let known = slots.iter().position(|&slot| slot == buffer);
        let slot = known.unwrap_or_else(|| {
            slots.push(buffer);
            slots.len() - 1
        });
        BufferId(slot as u32)
    });
    (kernel, slots)
}

/// Whether a region reduces in this direction.
pub fn reduces(region: &Region, direction: Direction) -> bool {
    region.instrs.iter().any(|instr| matches!(instr.kind, InstrKind::Reduce(_, d, _) if d == direction))
}

/// Whether the kernel adds to what is stored.
pub fn scatters(kernel: &Kernel) -> bool {
    kernel.stores.iter().any(|store| store.mode == StoreMode::Add)
}

/// Axes along which no two points of the domain add to one element, whatever the indices read at run time.
pub fn axes_without_collisions(kernel: &Kernel) -> Vec<bool> {
    let axes = &kernel.domain.axes;
    let mut safe = vec![true; axes.len()];
    for store in kernel.stores.iter().filter(|store| store.mode == StoreMode::Add) {
        for (axis, safe) in safe.iter_mut().enumerate() {
            *safe &= axes[axis] == 1 || store.index.strides[axis] != 0;
        }
        let direct = (0..axes.len()).filter(|&axis| safe[axis]);
        let direct = direct.map(|axis| (store.index.strides[axis].unsigned_abs() as usize, axes[axis]));
        let indirect = store.index.indirect.iter();
        let indirect = indirect.map(|term| (term.stride.unsigned_abs() as usize, term.limit));
        let mut terms: Vec<_> = direct.chain(indirect).filter(|(_, extent)| *extent > 1).collect();
        terms.sort_unstable();
        // Distinct if each stride jumps over everything that the smaller ones reach.
        let reach = terms.iter().try_fold(0, |reach, &(stride, extent)| {
            (stride > reach).then_some(reach + stride * (extent - 1))
        });
        if reach.is_none() {
            safe.fill(false);
        }
    }
    safe
}

/// The index maps of an instruction.
pub fn indices(kind: &InstrKind) -> Vec<&Index> {
    match kind {
        InstrKind::Coordinate(index) | InstrKind::Random { element: index, .. } => vec![index],
        InstrKind::Load { index, guard, .. } => {
            std::iter::once(index).chain(guard.iter().map(|bound| &bound.coordinate)).collect()
        }
        InstrKind::InRange(bounds) => bounds.iter().map(|bound| &bound.coordinate).collect(),
        InstrKind::Constant(_)
        | InstrKind::Producer(_)
        | InstrKind::Unary(..)
        | InstrKind::Binary(..)
        | InstrKind::Compare(..)
        | InstrKind::Select(..)
        | InstrKind::Cast(_)
        | InstrKind::Reduce(..) => vec![],
    }
}

/// The operands of an instruction, those inside index maps included, to be changed.
pub fn operands_mut(kind: &mut InstrKind) -> Vec<&mut Scalar> {
    match kind {
        InstrKind::Random { seed, step, element, .. } => {
            let indirect = element.indirect.iter_mut().map(|term| &mut term.value);
            [seed, step].into_iter().chain(indirect).collect()
        }
        InstrKind::Unary(_, x) | InstrKind::Cast(x) | InstrKind::Reduce(_, _, x) => vec![x],
        InstrKind::Binary(_, x, y) | InstrKind::Compare(_, x, y) => vec![x, y],
        InstrKind::Select(condition, x, y) => vec![condition, x, y],
        kind => {
            let terms = indices_mut(kind).into_iter().flat_map(|index| &mut index.indirect);
            terms.map(|term| &mut term.value).collect()
        }
    }
}

/// The index maps of an instruction, to be changed.
pub fn indices_mut(kind: &mut InstrKind) -> Vec<&mut Index> {
    match kind {
        InstrKind::Coordinate(index) | InstrKind::Random { element: index, .. } => vec![index],
        InstrKind::Load { index, guard, .. } => {
            std::iter::once(index).chain(guard.iter_mut().map(|bound| &mut bound.coordinate)).collect()
        }
        InstrKind::InRange(bounds) => bounds.iter_mut().map(|bound| &mut bound.coordinate).collect(),
        InstrKind::Constant(_)
        | InstrKind::Producer(_)
        | InstrKind::Unary(..)
        | InstrKind::Binary(..)
        | InstrKind::Compare(..)
        | InstrKind::Select(..)
        | InstrKind::Cast(_)
        | InstrKind::Reduce(..) => vec![],
    }
}

/// The stride of axes that are walked as one.
pub fn common_stride(extents: &[usize], strides: &[i64]) -> Option<i64> {
    let mut axes = extents.iter().zip(strides).filter(|(extent, _)| **extent != 1).rev();
    let Some((&extent, &stride)) = axes.next() else { return Some(0) };
    let mut next = stride * extent as i64;
    for (&extent, &outer) in axes {
        if outer != next {
            return None;
        }
        next *= extent as i64;
    }
    Some(stride)
}
