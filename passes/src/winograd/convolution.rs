//! Convolutions in a graph, and their gradients as differentiation leaves them.

use super::{ROWS, TAPS};
use crate::product_operands;
use crate::window_sums::{Sum, Term};
use kernfusion_ir::{Builder, Cast, DType, DotGeneral, Graph, Op, Result, ValueId, Windows};

/// Matrices of images: `[images, channels, rows, columns]`, in any shape, or with the channels first.
pub(super) struct Image {
    pub(super) value: ValueId,
    pub(super) channels_first: bool,
    pub(super) channels: usize,
    pub(super) size: [usize; 2],
}

/// A convolution of images, or one of its gradients.
pub(super) struct Convolution {
    /// Without its padding.
    pub(super) image: Image,
    /// How many zeros stand before and after the image's rows and columns.
    pub(super) padding: [[usize; 2]; 2],
    pub(super) images: usize,
    pub(super) features: usize,
    /// Rows and columns of the result.
    pub(super) size: [usize; 2],
    /// Along the width: places of the window, its steps and their distance.
    pub(super) places: usize,
    pub(super) stride: usize,
    pub(super) dilation: usize,
    pub(super) form: Form,
}

/// What is computed with the image.
pub(super) enum Form {
    /// The result, by weights `[features, channels, 3, places]`, in any shape; images come first in it, or features.
    Result { weights: ValueId, images_first: bool },
    /// The gradient of another convolution by its image, whose result's gradient the image is: a convolution, too, by those weights in the opposite
    /// order, and `[channels, features, 3, places]` seen from here. The rest is added to it.
    ImageGradient { weights: ValueId, rest: Vec<Term> },
    /// The gradient by the weights, from that of the result.
    WeightGradient { gradient: Image },
}

impl Convolution {
    /// The product of weights with windows of an image that a node is.
    pub(super) fn of(graph: &Graph, types: &[DType], id: ValueId) -> Option<Convolution> {
        let Op::DotGeneral(dot) = &graph[id].op else { return None };
        let [kernel, columns] = graph[id].operands[..] else { return None };
        let (weights, images_first) = weights(graph, dot, kernel, 0)?;
        let &[.., features, summed] = &graph[kernel].ty.shape[..] else { return None };
        let form = |_| Form::Result { weights, images_first };
        let seen = Convolution::seen(graph, types, columns, features, form)?;
        let is_product = dot.rhs_contract == [2] && summed == seen.summed();
        (is_product && are_of(types, graph, &[id, kernel])).then_some(seen)
    }

    /// The product of a result's gradient with windows of the image, over all places that these see.
    pub(super) fn weight_gradient(graph: &Graph, types: &[DType], id: ValueId) -> Option<Convolution> {
        let Op::DotGeneral(dot) = &graph[id].op else { return None };
        let [value, columns] = graph[id].operands[..] else { return None };
        let shape = &graph[value].ty.shape[..];
        let (channels_first, features) = match (&dot.lhs_batch[..], &dot.lhs_contract[..], shape) {
            ([1], [0, 3], &[_, 1, features, _]) => (false, features),
            ([0], [2, 3], &[1, features, ..]) => (true, features),
            _ => return None,
        };
        let gradient = |size| Image { value, channels_first, channels: features, size };
        let form = |size| Form::WeightGradient { gradient: gradient(size) };
        let seen = Convolution::seen(graph, types, columns, features, form)?;
        let is_product = dot.rhs_batch == [1] && dot.rhs_contract == [0, 3];
        (is_product && are_of(types, graph, &[id, value])).then_some(seen)
    }

    /// One of the image whose windows, three rows high, are columns `[images, 1, channels · 3 · places, places of the result]` of a matrix; `form`
    /// gets the size of the result.
    fn seen(
        graph: &Graph,
        types: &[DType],
        columns: ValueId,
        features: usize,
        form: impl FnOnce([usize; 2]) -> Form,
    ) -> Option<Convolution> {
        let operand = |of: ValueId| graph[of].operands.first().copied();
        let shape = |of: ValueId| &graph[of].ty.shape[..];
        let Op::Reshape(_) = graph[columns].op else { return None };
        let turned = operand(columns)?;
        let Op::Permute(permute) = &graph[turned].op else { return None };
        let seen = operand(turned)?;
        let Op::Windows(Windows { places, stride, dilation }) = &graph[seen].op else { return None };
        let (&[images, channels, height, width, ..], &[TAPS, along]) = (shape(seen), &places[..]) else {
            return None;
        };
        let whole = [images, 1, channels * TAPS * along, height * width];
        let is_plain = permute.axes == [0, 1, 4, 5, 2, 3] && (stride[0], dilation[0]) == (1, 1);
        if !is_plain || shape(columns) != whole {
            return None;
        }
        let padded = operand(seen)?;
        let (value, padding) = match &graph[padded].op {
            Op::Pad(pad) if pad.value.value() == 0.0 && pad.low[..2] == [0, 0] && pad.high[..2] == [0, 0] => {
                (operand(padded)?, [2, 3].map(|axis| [pad.low[axis], pad.high[axis]]))
            }
            _ => (padded, [[0; 2]; 2]),
        };
        let &[_, _, rows, columns] = shape(value) else { return None };
        are_of(types, graph, &[value]).then_some(Convolution {
            image: Image { value, channels_first: false, channels, size: [rows, columns] },
            padding,
            images,
            features,
            size: [height, width],
            places: along,
            stride: stride[1],
            dilation: dilation[1],
            form: form([height, width]),
        })
    }

    /// The gradient by its image that a sum contains: for each place of the window what the weights there make of the result's gradient, moved to
    /// where the window saw it.
    pub(super) fn image_gradient(
        graph: &Graph,
        types: &[DType],
        root: ValueId,
        sum: Sum,
    ) -> Option<Convolution> {
        let &[images, features, height, width] = &graph[root].ty.shape[..] else { return None };
        let Spread { whole, offset, rest } = Spread::of(graph, root, sum)?;
        let &[_, _, TAPS, places, rows, columns] = &graph[whole].ty.shape[..] else { return None };
        let (weights, image) = spread_product(graph, whole)?;
        let padding = [(TAPS, offset[0], height, rows), (places, offset[1], width, columns)];
        let padding = padding.map(|(places, offset, extent, of)| {
            let low = places as i64 - 1 - offset;
            [low, (extent + places - 1) as i64 - of as i64 - low]
        });
        if padding.iter().flatten().any(|&zeros| zeros < 0) {
            return None;
        }
        are_of(types, graph, &[root, weights, image.value]).then_some(Convolution {
            image,
            padding: padding.map(|sides| sides.map(|zeros| zeros as usize)),
            images,
            features,
            size: [height, width],
            places,
            stride: 1,
            dilation: 1,
            form: Form::ImageGradient { weights, rest },
        })
    }

    /// Elements of a feature's weights.
    fn summed(&self) -> usize {
        self.image.channels * TAPS * self.places
    }

    /// How often the result has four rows.
    pub(super) fn fours(&self) -> usize {
        self.size[0].div_ceil(ROWS)
    }

    /// Columns of the padded image.
    pub(super) fn padded_width(&self) -> usize {
        self.image.size[1] + self.padding[1].iter().sum::<usize>()
    }
}

/// A sum of what there is for each place of a window, moved to where the window saw it.
struct Spread {
    /// `[images, features, 3, places, rows, columns]`
    whole: ValueId,
    /// How many rows and columns the window's place (0, 0) is moved.
    offset: [i64; 2],
    /// What else is added.
    rest: Vec<Term>,
}

impl Spread {
    /// The one that a sum is, of all places of a window three rows high, each once.
    fn of(graph: &Graph, root: ValueId, sum: Sum) -> Option<Spread> {
        let whole = sum.terms.iter().find_map(|term| place(graph, term))?.0;
        let &[_, _, TAPS, places, ..] = &graph[whole].ty.shape[..] else { return None };
        let is_part =
            |term: &Term| place(graph, term).is_some_and(|(of, _)| of == whole) && !term.is_weighed();
        let (found, rest): (Vec<_>, Vec<_>) = sum.terms.into_iter().partition(is_part);
        let first = found.iter().find(|term| matches!(place(graph, term), Some((_, [0, 0]))))?;
        let offset = [first.view.offset[2], first.view.offset[3]];
        // Each other place is moved by as many rows and columns less.
        let is_in_place = |term: &Term| {
            let Some((_, [tap, along])) = place(graph, term) else { return false };
            let moved = [0, 0, offset[0] - tap as i64, offset[1] - along as i64];
            let [seen, shape] = [root, term.value].map(|value| &graph[value].ty.shape[..]);
            term.view.offset == moved && term.view.is_window(seen, shape)
        };
        let mut seen: Vec<_> = found.iter().filter_map(|term| place(graph, term)).collect();
        seen.sort_unstable();
        seen.dedup();
        let is_whole =
            seen.len() == TAPS * places && found.len() == seen.len() && found.iter().all(is_in_place);
        is_whole.then_some(Spread { whole, offset, rest })
    }
}

/// The place of a window that a term is for, and what has all places.
fn place(graph: &Graph, term: &Term) -> Option<(ValueId, [usize; 2])> {
    let operand = |of: ValueId| graph[of].operands.first().copied();
    let shape = |of: ValueId| &graph[of].ty.shape[..];
    let Op::Reshape(_) = graph[term.value].op else { return None };
    let part = operand(term.value)?;
    let Op::Slice(slice) = &graph[part].op else { return None };
    let (&[images, features, rows, columns], &[0, 0, tap, along, 0, 0]) =
        (shape(term.value), &slice.start[..])
    else {
        return None;
    };
    let whole = operand(part)?;
    let (cut, of) = (shape(part), shape(whole));
    let is_place =
        cut == [images, features, 1, 1, rows, columns] && of[..2] == cut[..2] && of[4..] == cut[4..];
    is_place.then_some((whole, [tap, along]))
}

/// The weights and the image whose product `[images, features, 3, places, rows, columns]` is.
fn spread_product(graph: &Graph, whole: ValueId) -> Option<(ValueId, Image)> {
    let operand = |of: ValueId| graph[of].operands.first().copied();
    let shape = |of: ValueId| &graph[of].ty.shape[..];
    let &[images, features, _, places, rows, columns] = shape(whole) else { return None };
    let (Op::Reshape(_), mut product) = (&graph[whole].op, unrounded(graph, operand(whole)?)) else {
        return None;
    };
    let is_turned = matches!(&graph[product].op, Op::Permute(permute) if permute.axes == [2, 0, 1, 3]);
    if is_turned {
        product = unrounded(graph, operand(product)?);
    }
    let Op::DotGeneral(dot) = &graph[product].op else { return None };
    let [kernel, value] = graph[product].operands[..] else { return None };
    let (weights, images_first) = weights(graph, dot, kernel, 1)?;
    let &[.., channels, summed] = shape(kernel) else { return None };
    let (channels_first, seen) = match dot.rhs_contract[..] {
        [1] => (true, [1, channels, images, rows * columns]),
        [2] => (false, [images, 1, channels, rows * columns]),
        _ => return None,
    };
    let made = match images_first {
        true => [images, 1, summed, rows * columns],
        false => [1, summed, images, rows * columns],
    };
    let is_whole = summed == features * TAPS * places && is_turned != images_first;
    let is_product = is_whole && shape(value) == seen && shape(product) == made;
    is_product.then_some((weights, Image { value, channels_first, channels, size: [rows, columns] }))
}

/// What a value was widened from, if that is a number of bf16: a product's result that was rounded.
fn unrounded(graph: &Graph, value: ValueId) -> ValueId {
    match graph[value].op {
        Op::Cast(Cast { dtype: DType::F32 }) if graph[graph[value].operands[0]].ty.dtype == DType::BF16 => {
            graph[value].operands[0]
        }
        _ => value,
    }
}

impl Image {
    /// As `[images, channels, rows, columns]`; `value` is its own in the graph that is built.
    pub(super) fn with_images_first(
        &self,
        b: &mut Builder<'_>,
        value: ValueId,
        images: usize,
    ) -> Result<ValueId> {
        let [rows, columns] = self.size;
        if !self.channels_first {
            return b.reshape(value, &[images, self.channels, rows, columns]);
        }
        let value = b.reshape(value, &[self.channels, images, rows, columns])?;
        b.permute(value, &[1, 0, 2, 3])
    }
}

/// The weights that a product multiplies, if they are the same for all images; and whether they are repeated for each, so that images come first in
/// the result. The product sums over their last axis but `later`.
fn weights(graph: &Graph, dot: &DotGeneral, kernel: ValueId, later: usize) -> Option<(ValueId, bool)> {
    let shape = &graph[kernel].ty.shape[..];
    let weights = match (&graph[kernel].op, shape) {
        (Op::Broadcast(broadcast), [_, 1, _, _]) if broadcast.axes == [1, 2, 3] => {
            (*graph[kernel].operands.first()?, true)
        }
        (_, [1, 1, _, _]) => (kernel, true),
        (_, [1, _, _]) => (kernel, false),
        _ => return None,
    };
    let is_matrix = dot.lhs_contract == [shape.len() - 1 - later] && dot.lhs_batch.len() + 2 == shape.len();
    is_matrix.then_some(weights)
}

/// Whether values are of these types, and no widened bytes, which have products of their own.
fn are_of(types: &[DType], graph: &Graph, values: &[ValueId]) -> bool {
    let is_of = |value: ValueId| types.contains(&graph[value].ty.dtype);
    values.iter().all(|&value| is_of(value) && !product_operands::is_widened(graph, value))
}
