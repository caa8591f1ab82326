//! Operators that read at places which are known only at run time. Indices are `i32`, clamped into what they index.

use super::{Operator, one, row};
use crate::call::{Built, Call, Fault, as_dtype};
use kernfusion::trace::{Sorted, Tensor};
use kernfusion_ir::DType;

#[rustfmt::skip]
pub(super) const OPERATORS: &[Operator] = &[
    row("aten.embedding.default",    "the rows of weight at indices; no gradient for that of padding_idx", embedding),
    row("aten.index_select.default", "the parts at index along dim",                   index_select),
    row("aten.gather.default",       "out[i][j] = self[index[i][j]][j], along dim",     gathered),
    row("aten.index.Tensor",         "the elements at indices, which broadcast, one for each axis", indexed),
    row("aten._unsafe_index.Tensor", "index.Tensor",                                  indexed),
    row("aten.take_along_dim.default", "gather, where self and indices broadcast but for dim", take_along),
    row("aten.one_hot.default",      "1 at the class that self says, else 0",          one_hot),
    row("aten.tril.default",         "matrices with zeros above the diagonal",         |call| one(call.tensor("self")?.tril(diagonal(call)?))),
    row("aten.triu.default",         "matrices with zeros below the diagonal",         |call| one(call.tensor("self")?.triu(diagonal(call)?))),
    row("aten.topk.default",         "the k largest along dim, and their indices",     largest),
    row("aten.argsort.default",      "the indices of the elements along dim in order", |call| { let x = call.tensor("self")?; one(x.argsort(call.axis("dim", -1, x.rank())?, order(call, "descending", false)?)) }),
    row("aten.sort.stable",          "sort, in which equal elements keep their order", sorted),
    row("aten.sort.default",         "the elements along dim in order, and their indices", sorted),
];

fn embedding(call: &Call<'_>) -> Built {
    let rows = call.tensor("weight")?.gather(0, &call.tensor("indices")?);
    let padding = call.int_or("padding_idx", -1)?;
    if padding < 0 {
        return one(rows);
    }
    let is_padding = call.tensor("indices")?.eq(padding as f64).unsqueeze(-1);
    one(is_padding.select(rows.stop_gradient(), rows))
}

fn index_select(call: &Call<'_>) -> Built {
    let x = call.tensor("self")?;
    let axis = call.axis("dim", 0, x.rank())?;
    one(x.gather(axis, &call.tensor("index")?))
}

fn gathered(call: &Call<'_>) -> Built {
    let x = call.tensor("self")?;
    picked(&x, &call.tensor("index")?, call.axis("dim", 0, x.rank())?)
}

/// `x[index[i][j]][j]`, along an axis.
pub(super) fn picked(x: &Tensor, index: &Tensor, axis: isize) -> Built {
    if x.rank() != index.rank() || x.rank() == 0 {
        return Err("self and index have other numbers of axes".into());
    }
    let mut x = x.clone();
    for other in (0..x.rank() as isize).filter(|&other| other != axis) {
        x = x.slice(other, 0..index.dim(other));
    }
    one(x.transpose(axis, -1).pick_in_rows(&index.transpose(axis, -1)).transpose(axis, -1))
}

fn take_along(call: &Call<'_>) -> Built {
    let (x, index) = (call.tensor("self")?, call.tensor("indices")?);
    let (Some(_), true) = (call.optional_int("dim")?, x.rank() == index.rank()) else {
        return Err("self and indices have other numbers of axes, or there is no dim".into());
    };
    let axis = call.axis("dim", 0, x.rank())?;
    let shape = call.result()?.shape.clone();
    let mut whole = shape.clone();
    *whole.get_mut(axis.unsigned_abs()).ok_or("the result has other axes")? = x.dim(axis);
    let (rows, index) = (x.broadcast_to(whole), index.broadcast_to(shape));
    one(rows.transpose(axis, -1).pick_in_rows(&index.transpose(axis, -1)).transpose(axis, -1))
}

fn one_hot(call: &Call<'_>) -> Built {
    let classes = *call.result()?.shape.last().ok_or("its result has no axis")?;
    one(call.tensor("self")?.one_hot(classes, call.result()?.dtype))
}

fn indexed(call: &Call<'_>) -> Built {
    let x = call.tensor("self")?;
    one(match Indexed::new(&x, call.optional_tensors("indices")?)? {
        Some(indexed) => indexed.read(&x),
        None => x,
    })
}

/// Elements of a tensor at indices, one for each of some axes, which broadcast against each other. Indexed axes count as one axis.
pub(super) struct Indexed {
    shape: Vec<usize>,
    /// Axes that are not indexed and stand before the result's axes of the index: where the indexed ones are neighbours, those before them,
    /// else none.
    before: Vec<usize>,
    axes: Vec<usize>,
    after: Vec<usize>,
    /// `i32`: which of the indexed axes' elements, row-major.
    pub(super) place: Tensor,
}

impl Indexed {
    /// Nothing, if there is no index.
    pub(super) fn new(x: &Tensor, indices: Vec<Option<Tensor>>) -> Result<Option<Self>, Fault> {
        let (shape, rank) = (x.shape(), x.rank());
        if indices.len() > rank {
            return Err(format!("{} indices for {rank} axes", indices.len()));
        }
        if indices.iter().flatten().any(|index| !index.dtype().is_integer()) {
            return Err("a mask chooses elements, so that the shape is known only at run time".into());
        }
        let (mut axes, mut place) = (vec![], None::<Tensor>);
        for (axis, index) in indices.into_iter().enumerate() {
            let Some(index) = index else { continue };
            let extent = shape[axis] as f64;
            // Counted from the end, if negative.
            let index = index.lt(0).select(&index + extent, index);
            place = Some(match place {
                None => index,
                Some(place) => place * extent + index,
            });
            axes.push(axis);
        }
        let (Some(place), Some(&first), Some(&last)) = (place, axes.first(), axes.last()) else {
            return Ok(None);
        };
        let neighbours = last - first + 1 == axes.len();
        let before: Vec<usize> = if neighbours { (0..first).collect() } else { vec![] };
        let after = (0..rank).filter(|axis| !axes.contains(axis) && !before.contains(axis)).collect();
        Ok(Some(Indexed { shape, before, axes, after, place }))
    }

    fn extents(&self, axes: &[usize]) -> Vec<usize> {
        axes.iter().map(|&axis| self.shape[axis]).collect()
    }

    fn count(&self) -> usize {
        self.extents(&self.axes).iter().product()
    }

    pub(super) fn read(&self, x: &Tensor) -> Tensor {
        let order = [&self.before[..], &self.axes, &self.after].concat();
        let x = if order.is_sorted() { x.clone() } else { x.permute(&order) };
        let flat = [self.extents(&self.before), vec![self.count()], self.extents(&self.after)].concat();
        let x = if self.axes.len() == 1 { x } else { x.reshape(flat) };
        x.gather(self.before.len() as isize, &self.place)
    }

    /// The shape of what is read.
    pub(super) fn result_shape(&self) -> Vec<usize> {
        [self.extents(&self.before), self.place.shape(), self.extents(&self.after)].concat()
    }

    /// What has the shape of a result, with the axes of the index in front.
    pub(super) fn as_rows(&self, values: &Tensor) -> Tensor {
        let (before, index) = (self.before.len(), self.place.rank());
        let order: Vec<_> =
            (before..before + index).chain(0..before).chain(before + index..values.rank()).collect();
        if order.is_sorted() { values.clone() } else { values.permute(&order) }
    }

    /// The tensor with the indexed axes as one, in front: `[elements of the indexed axes, others..]`.
    pub(super) fn table(&self, x: &Tensor) -> Tensor {
        let others = [&self.before[..], &self.after].concat();
        let flat = [vec![self.count()], self.extents(&others)].concat();
        x.permute(&[&self.axes[..], &others].concat()).reshape(flat)
    }

    /// The inverse of [`table`](Self::table).
    pub(super) fn restored(&self, table: &Tensor) -> Tensor {
        let order = [&self.axes[..], &self.before, &self.after].concat();
        let mut inverse = vec![0; order.len()];
        order.iter().enumerate().for_each(|(place, &axis)| inverse[axis] = place);
        table.reshape(self.extents(&order)).permute(&inverse)
    }
}

fn diagonal(call: &Call<'_>) -> Result<i32, String> {
    let diagonal = call.int_or("diagonal", 0)?;
    i32::try_from(diagonal).map_err(|_| format!("there is no diagonal {diagonal}"))
}

fn order(call: &Call<'_>, name: &str, default: bool) -> Result<Sorted, String> {
    Ok(if call.flag_or(name, default)? { Sorted::Descending } else { Sorted::Ascending })
}

fn largest(call: &Call<'_>) -> Built {
    let x = call.tensor("self")?;
    let (axis, k) = (call.axis("dim", -1, x.rank())?, call.int("k")?);
    let count = usize::try_from(k).map_err(|_| format!("there are no {k} largest"))?;
    let indices = x.argsort(axis, order(call, "largest", true)?).narrow(axis, 0, count);
    let rows = x.transpose(axis, -1);
    let picked = rows.pick_in_rows(&indices.transpose(axis, -1)).transpose(axis, -1);
    Ok(vec![picked, as_dtype(&indices, DType::I32)])
}

fn sorted(call: &Call<'_>) -> Built {
    let x = call.tensor("self")?;
    let axis = call.axis("dim", -1, x.rank())?;
    let order = order(call, "descending", false)?;
    Ok(vec![x.sort(axis, order), x.argsort(axis, order)])
}
