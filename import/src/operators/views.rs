//! How a view shares memory with its base: what the base becomes when the view takes other values.

use crate::schema::{Argument, Name, NamedArgument, Node, Size, TensorMeta, operator_name};

/// What an operator makes of its operand without a copy.
#[derive(Clone, Copy)]
pub(crate) enum View {
    /// The same elements in the same order. Where their strides do not allow it, some of these operators copy.
    Whole,
    /// Some of the elements, or all of them in another order. The function is the operator that gives the base with other values there.
    Part(fn(&Change<'_>) -> Option<Operation>),
    /// Elements several times over: PyTorch forbids to change these.
    Spread,
}

/// An operator and its arguments.
pub(crate) type Operation = (String, Vec<NamedArgument>);

/// A view that takes other values.
pub(crate) struct Change<'a> {
    /// The node whose result the view is, and which of them.
    pub(crate) node: &'a Node,
    pub(crate) result: usize,
    /// What the base was, and what the view is.
    pub(crate) base: &'a str,
    pub(crate) value: &'a str,
    /// The recorded types of the base and of the node's results.
    pub(crate) base_meta: &'a TensorMeta,
    pub(crate) metas: Vec<&'a TensorMeta>,
}

impl View {
    /// The operator that gives the base with the view's values. Nothing where they cannot be told apart.
    pub(crate) fn written(self, change: &Change<'_>) -> Option<Operation> {
        match self {
            View::Whole => {
                let shape = change.base_meta.sizes.iter().map(Size::number).collect::<Option<_>>()?;
                let size = NamedArgument { name: "shape".into(), arg: Argument::Ints(shape) };
                Some(("aten.reshape.default".into(), vec![change.tensor("self", change.value), size]))
            }
            View::Part(operation) => operation(change),
            View::Spread => None,
        }
    }
}

pub(super) const PART_AT: View = View::Part(|change| change.scattered("aten.select_scatter.default", vec![]));
pub(super) const SLICE: View = View::Part(|change| change.scattered("aten.slice_scatter.default", vec![]));
pub(super) const NARROW: View = View::Part(|change| {
    let (start, length) = (change.int("start")?, change.int("length")?);
    let end = start.checked_add(length)?;
    // From the last index to the end of the axis.
    let end = if start < 0 && end == 0 { i64::MAX } else { end };
    change.scattered("aten.slice_scatter.default", vec![int("end", end)])
});
pub(super) const PIECE: View = View::Part(|change| {
    let axis = change.axis("dim", 0)?;
    let length = |meta: &&TensorMeta| meta.sizes.get(axis)?.number();
    let (before, own) = (change.metas.get(..change.result)?, change.metas.get(change.result)?);
    let start = before.iter().try_fold(0, |sum: i64, meta| sum.checked_add(length(meta)?))?;
    let end = start.checked_add(length(own)?)?;
    change.scattered("aten.slice_scatter.default", vec![int("start", start), int("end", end)])
});
pub(super) const PART_OF_ALL: View = View::Part(|change| {
    change.scattered("aten.select_scatter.default", vec![int("index", change.result as i64)])
});
/// Twice the operator gives what there was before.
pub(super) const EXCHANGED: View = View::Part(|change| change.again(&[]));
pub(super) const MOVED: View =
    View::Part(|change| change.again(&[("source", "destination"), ("destination", "source")]));
pub(super) const PERMUTED: View = View::Part(|change| {
    let rank = change.base_meta.sizes.len();
    let Argument::Ints(axes) = change.argument("dims")? else { return None };
    let mut inverse = vec![0; axes.len()];
    for (at, &axis) in axes.iter().enumerate() {
        *inverse.get_mut(crate::call::axis(axis, rank).ok()?.unsigned_abs())? = at as i64;
    }
    let dims = NamedArgument { name: "dims".into(), arg: Argument::Ints(inverse) };
    Some(("aten.permute.default".into(), vec![change.tensor("self", change.value), dims]))
});

fn int(name: &str, number: i64) -> NamedArgument {
    NamedArgument { name: name.into(), arg: Argument::Int(number) }
}

impl Change<'_> {
    fn tensor(&self, name: &str, value: &str) -> NamedArgument {
        NamedArgument { name: name.into(), arg: Argument::Tensor(Name { name: value.into() }) }
    }

    fn argument(&self, name: &str) -> Option<&Argument> {
        self.node.inputs.iter().find(|input| input.name == name).map(|input| &input.arg)
    }

    fn int(&self, name: &str) -> Option<i64> {
        match self.argument(name)? {
            Argument::Int(number) => Some(*number),
            _ => None,
        }
    }

    fn axis(&self, name: &str, default: i64) -> Option<usize> {
        let axis = self.int(name).unwrap_or(default);
        Some(crate::call::axis(axis, self.base_meta.sizes.len()).ok()?.unsigned_abs())
    }

    /// The base with the view's values where these arguments, and else those of the node, say.
    fn scattered(&self, target: &str, arguments: Vec<NamedArgument>) -> Option<Operation> {
        let mut inputs = vec![self.tensor("self", self.base), self.tensor("src", self.value)];
        let own = ["dim", "index", "start", "end", "step"].iter().filter_map(|name| {
            let input = self.node.inputs.iter().find(|input| input.name == *name)?;
            arguments.iter().all(|given| given.name != *name).then(|| input.clone())
        });
        inputs.extend(own);
        inputs.extend(arguments);
        Some((target.into(), inputs))
    }

    /// The same operator of the view, with arguments under other names.
    fn again(&self, renamed: &[(&str, &str)]) -> Option<Operation> {
        let mut inputs = self.node.inputs.clone();
        for input in &mut inputs {
            let other = renamed.iter().find(|(name, _)| *name == input.name);
            input.name = other.map_or_else(|| input.name.clone(), |(_, name)| name.to_string());
        }
        *inputs.iter_mut().find(|input| input.name == "self")? = self.tensor("self", self.value);
        Some((operator_name(&self.node.target).into(), inputs))
    }
}

/// Whether a result of an operator that gives the same elements shares their memory; nothing where extents are open.
pub(crate) fn is_shared(node: &Node, operand: &TensorMeta, result: &TensorMeta) -> Option<bool> {
    let copies = |name: &str| {
        node.inputs.iter().any(|input| input.name == name && matches!(input.arg, Argument::Bool(true)))
    };
    if operand.dtype != result.dtype || copies("copy") || copies("train") {
        return Some(false);
    }
    let numbers = |sizes: &[Size]| sizes.iter().map(Size::number).collect::<Option<Vec<_>>>();
    let (shape, strides) = (numbers(&result.sizes)?, numbers(&result.strides)?);
    let viewed = view_strides(&numbers(&operand.sizes)?, &numbers(&operand.strides)?, &shape);
    let is_same = |viewed: Vec<i64>| {
        shape
            .iter()
            .zip(strides.iter().zip(&viewed))
            .all(|(&extent, (own, viewed))| extent == 1 || own == viewed)
    };
    Some(shape.contains(&0) || viewed.is_some_and(is_same))
}

/// The strides of the same elements in another shape, if there are such.
fn view_strides(shape: &[i64], strides: &[i64], other: &[i64]) -> Option<Vec<i64>> {
    let mut found = vec![0; other.len()];
    let mut left = other.len();
    // From the last axis on: axes that lie behind each other as if they were one, with its extent and the stride of its elements.
    let mut axes = shape.iter().zip(strides).rev().filter(|(extent, _)| **extent != 1).peekable();
    while let Some((&extent, &stride)) = axes.next() {
        let mut whole = extent;
        while let Some((&extent, _)) = axes.next_if(|(_, outer)| Some(**outer) == whole.checked_mul(stride)) {
            whole = whole.checked_mul(extent)?;
        }
        let mut given = 1;
        while given < whole {
            left = left.checked_sub(1)?;
            found[left] = given.checked_mul(stride)?;
            given = given.checked_mul(other[left])?;
        }
        if given != whole {
            return None;
        }
    }
    other[..left].iter().all(|&extent| extent == 1).then_some(found)
}

#[cfg(test)]
mod tests {
    use super::view_strides;

    /// Shape, strides, another shape and its strides, if it has such; those of extents of 1 do not count.
    type Case = (&'static [i64], &'static [i64], &'static [i64], Option<&'static [i64]>);

    #[test]
    fn elements_keep_their_order_where_strides_allow_it() {
        let cases: [Case; 7] = [
            (&[2, 3, 4], &[12, 4, 1], &[6, 4], Some(&[4, 1])),
            (&[2, 3, 4], &[12, 4, 1], &[2, 6, 2], Some(&[12, 2, 1])),
            // Of a transposed matrix columns may be divided, and not joined to rows.
            (&[4, 6], &[1, 4], &[4, 2, 3], Some(&[1, 12, 4])),
            (&[4, 6], &[1, 4], &[24], None),
            // Every other column.
            (&[3, 2], &[4, 2], &[3, 2, 1], Some(&[4, 2, 0])),
            (&[3, 2], &[4, 2], &[6], Some(&[2])),
            (&[3, 2], &[5, 2], &[6], None),
        ];
        for (shape, strides, other, expected) in cases {
            let found = view_strides(shape, strides, other);
            let ones = |found: &mut Vec<i64>| {
                found.iter_mut().zip(other).filter(|(_, extent)| **extent == 1).for_each(|(s, _)| *s = 0);
            };
            assert_eq!(
                found
                    .map(|mut found| {
                        ones(&mut found);
                        found
                    })
                    .as_deref(),
                expected,
                "{shape:?} {strides:?} {other:?}"
            );
        }
    }
}
