//! Brings the axes of a kernel into the order and number that a back end wants: axes of extent 1 vanish, and neighbours of a group
//! that every index map walks as one axis become one axis, those of sums and of consumers' results too.

use crate::analysis::{indices, indices_mut};
use kernfusion_ir::kernel::{Domain, Form, Index, Kernel, Operand};

/// The kernel with its axes in these groups, in their order: outer, rows, columns.
pub fn regrouped(kernel: &Kernel, groups: [Vec<usize>; 3]) -> Kernel {
    let extents = kernel.domain.axes.clone();
    let all = kernel_indices(kernel);
    let merged = groups.map(|group| merge(&group, &extents, &all));
    let [outer, rows, _] = [0, 1, 2].map(|group| merged[group].len());
    let axes: Vec<Vec<usize>> = merged.into_iter().flatten().collect();
    let mut result = kernel.clone();
    result.domain = Domain { axes: products(&axes, &extents), outer, rows };
    let own = result.region.instrs.iter_mut().flat_map(|instr| indices_mut(&mut instr.kind));
    let own = own.chain(result.stores.iter_mut().map(|store| &mut store.index));
    own.for_each(|index| restride(index, &axes));
    let Form::Contraction(contraction) = &mut result.form else { return result };
    for product in &mut contraction.products {
        let all = [&product.a, &product.b].into_iter().flat_map(operand_indices).collect();
        let (k, further) = further(&axes, &extents, &product.k, &all);
        product.k = k;
        for operand in [&mut product.a, &mut product.b] {
            operand_indices_mut(operand).for_each(|index| restride(index, &further));
        }
    }
    for consumer in &mut contraction.consumers {
        let all = operand_indices(&consumer.with).into_iter().chain([&consumer.index]).collect();
        let (p, further) = further(&axes, &extents, &consumer.p, &all);
        consumer.p = p;
        operand_indices_mut(&mut consumer.with).for_each(|index| restride(index, &further));
        restride(&mut consumer.index, &further);
    }
    result
}

/// The kernel with its own groups.
pub fn merged(kernel: &Kernel) -> Kernel {
    let domain = &kernel.domain;
    let groups = [domain.outer_axes(), domain.row_axes(), domain.column_axes()];
    regrouped(kernel, groups.map(Iterator::collect))
}

/// Every index map, those of operands and consumers too.
fn kernel_indices(kernel: &Kernel) -> Vec<&Index> {
    let own = kernel.region.instrs.iter().flat_map(|instr| indices(&instr.kind));
    own.chain(kernel.stores.iter().map(|store| &store.index))
        .chain(kernel.operands().flat_map(|(operand, _)| operand_indices(operand)))
        .chain(kernel.consumers().iter().map(|consumer| &consumer.index))
        .collect()
}

/// Changes every index map, those of operands and consumers too.
pub fn for_each_index(kernel: &mut Kernel, mut change: impl FnMut(&mut Index)) {
    kernel.region.instrs.iter_mut().flat_map(|instr| indices_mut(&mut instr.kind)).for_each(&mut change);
    kernel.stores.iter_mut().for_each(|store| change(&mut store.index));
    kernel.operands_mut().flat_map(operand_indices_mut).for_each(&mut change);
    if let Form::Contraction(contraction) = &mut kernel.form {
        contraction.consumers.iter_mut().for_each(|consumer| change(&mut consumer.index));
    }
}

fn operand_indices(operand: &Operand) -> Vec<&Index> {
    operand.region.instrs.iter().flat_map(|instr| indices(&instr.kind)).collect()
}

fn operand_indices_mut(operand: &mut Operand) -> impl Iterator<Item = &mut Index> {
    operand.region.instrs.iter_mut().flat_map(|instr| indices_mut(&mut instr.kind))
}

/// Merges the axes that follow the kernel's: their extents, and lists of old axes for all new ones.
fn further(
    axes: &[Vec<usize>],
    extents: &[usize],
    own: &[usize],
    all: &Vec<&Index>,
) -> (Vec<usize>, Vec<Vec<usize>>) {
    let extents = [extents, own].concat();
    let group: Vec<_> = (extents.len() - own.len()..extents.len()).collect();
    let lists = merge(&group, &extents, all);
    (products(&lists, &extents), [axes, &lists[..]].concat())
}

/// Lists of old axes that become one new axis each, outermost first.
fn merge(group: &[usize], extents: &[usize], all: &[&Index]) -> Vec<Vec<usize>> {
    let mut merged: Vec<Vec<usize>> = vec![];
    for &axis in group.iter().filter(|&&axis| extents[axis] != 1) {
        let walks_on = |last: usize| {
            all.iter().all(|index| index.strides[last] == index.strides[axis] * extents[axis] as i64)
        };
        match merged.last_mut() {
            Some(list) if walks_on(*list.last().expect("lists are not empty")) => list.push(axis),
            _ => merged.push(vec![axis]),
        }
    }
    merged
}

fn products(lists: &[Vec<usize>], extents: &[usize]) -> Vec<usize> {
    lists.iter().map(|list| list.iter().map(|&axis| extents[axis]).product()).collect()
}

fn restride(index: &mut Index, axes: &[Vec<usize>]) {
    index.strides =
        axes.iter().map(|list| index.strides[*list.last().expect("lists are not empty")]).collect();
}
