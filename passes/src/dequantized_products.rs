//! Products of numbers that are kept as bytes multiply the bytes.
//!
//! ```text
//! x = s (p − z)
//! w = t q           Σ x w  =  s t (Σ p q  −  z Σ q)
//! ```
//!
//! A quantized model has bytes, a scale and a zero point for each of its matrices, and for each value that one of them is multiplied with (Jacob
//! et al., "Quantization and training of neural networks for efficient integer-arithmetic-only inference", 2018). Both are the same along the axes
//! that are summed, so they can be taken behind the product. What is left are sums of whole numbers, as [`int8_products`](crate::int8_products)
//! makes them; the sums of q alone follow from parameters, and are computed once. Around an image, where x is 0, p is z. Such models make bytes again
//! of what was only moved: these are the bytes, moved.
//!
//! Invariant: but for rounding, the program computes what it did; inputs and outputs keep their types.

use crate::fuse::chain::number;
use crate::product_operands::{Side, spread};
use crate::{Rebuild, loops, parameters, simplify};
use kernfusion_ir::{
    Binary, Builder, Cast, DType, DotGeneral, Graph, KernelEntry, Literal, Op, Pad, ReduceOp, Result, Unary,
    ValueId,
};
use std::collections::BTreeSet;

/// The largest zero point: of `i8` and of `u8` they are no larger.
const LARGEST_ZERO: f64 = 255.0;

pub(crate) fn multiply_bytes(graph: &mut Graph) -> Result<()> {
    loops::change_bodies(graph, multiply_bytes)?;
    if !graph.ids().any(|id| graph[id].ty.dtype == DType::I8) {
        return Ok(());
    }
    let values = Values::of(graph);
    let mut rebuild = Rebuild::new(graph);
    for id in graph.ids() {
        if let Some(product) = values.product(id) {
            product.rewritten(&mut rebuild, id)?;
        } else if let Some(value) = values.quantized_again(id) {
            let bytes = value.shown(graph, &mut rebuild)?;
            rebuild.replace(id, bytes);
        } else {
            rebuild.copy(id)?;
        }
    }
    *graph = rebuild.finish();
    Ok(())
}

/// Whether there is such a product.
pub(crate) fn are_in(graph: &Graph) -> bool {
    let values = Values::of(graph);
    graph.ids().any(|id| values.product(id).is_some())
}

/// What is known of a program.
struct Values<'a> {
    graph: &'a Graph,
    /// Those that follow from parameters.
    known: BTreeSet<ValueId>,
    /// Of those that are made of whole numbers the largest magnitude.
    whole: Vec<Option<f64>>,
}

/// A product of such numbers with others that follow from parameters.
struct Product<'a> {
    graph: &'a Graph,
    dot: &'a DotGeneral,
    sides: [Side; 2],
    operands: [Dequantized; 2],
}

/// An operand that is `(bytes − zero) · scale`, and is seen through views.
struct Dequantized {
    /// The bytes.
    bytes: ValueId,
    zero: Option<Spread>,
    scale: Option<Spread>,
    /// What the operand shows of it: views and padding, the last one first.
    views: Vec<ValueId>,
}

/// What all elements, or all of a row, have in common.
#[derive(Clone, Copy)]
enum Spread {
    Number(Literal),
    /// A broadcast.
    Value(ValueId),
}

impl<'a> Values<'a> {
    fn of(graph: &'a Graph) -> Self {
        Values { graph, known: parameters::computed_of(graph), whole: simplify::largest_whole(graph) }
    }

    /// The product that a node is, if it is one.
    fn product(&self, id: ValueId) -> Option<Product<'a>> {
        let graph = self.graph;
        let node = &graph[id];
        let Op::DotGeneral(dot) = &node.op else { return None };
        let operands = [node.operands[0], node.operands[1]];
        let are_f32 = operands.into_iter().chain([id]).all(|value| graph[value].ty.dtype == DType::F32);
        let [left, right] = operands.map(|operand| self.known.contains(&operand));
        if !are_f32 || left == right || dot.lhs_contract.is_empty() {
            return None;
        }
        let sides = Side::both(dot, operands.map(|operand| graph[operand].ty.rank()));
        let operand = |side: usize| self.operand(operands[side], &sides[side]);
        let operands = [operand(0)?, operand(1)?];
        Some(Product { graph, dot, sides, operands })
    }

    /// What an operand of a product stands for, if it is such a one.
    fn operand(&self, operand: ValueId, side: &Side) -> Option<Dequantized> {
        let found = self.dequantized(operand)?;
        let has_rows =
            |common: Option<Spread>| common.is_none_or(|common| found.has_rows(self.graph, common, side));
        let is_zero_point = found.zero.is_none_or(|zero| self.is_zero_point(zero));
        (is_zero_point && has_rows(found.zero) && has_rows(found.scale)).then_some(found)
    }

    /// The value that a byte is made of with its own scale and zero point, so that it is the byte that the value has: `x / s` is whole but for
    /// its last bits. Those of `bf16` are half a step of large bytes.
    fn quantized_again(&self, id: ValueId) -> Option<Dequantized> {
        let graph = self.graph;
        let node = &graph[id];
        if node.op != Op::from(Cast { dtype: DType::I8 }) {
            return None;
        }
        let sum = node.operands[0];
        let (rounded, zero) = match Spread::of_operands(graph, sum, Binary::Add) {
            Some((rounded, zero)) => (rounded, Some(zero)),
            None => (sum, None),
        };
        let Op::Unary(Unary::Round) = graph[rounded].op else { return None };
        let (x, scale) = Spread::of_operands(graph, graph[rounded].operands[0], Binary::Div)?;
        if graph[x].ty.dtype == DType::BF16 {
            return None;
        }
        let found = self.dequantized(x)?;
        let has_scale = found.scale.is_some_and(|own| own.is_same_number(graph, scale));
        let has_zero = match (found.zero, zero.filter(|zero| !zero.is_nothing())) {
            (Some(own), Some(zero)) => own.is_same_number(graph, zero) && self.is_zero_point(zero),
            (own, zero) => own.is_none() && zero.is_none(),
        };
        (has_scale && has_zero).then_some(found)
    }

    /// What a value stands for, if it is `(bytes − zero) · scale` behind views.
    fn dequantized(&self, value: ValueId) -> Option<Dequantized> {
        let graph = self.graph;
        let (mut value, mut views) = (value, vec![]);
        while is_view(graph, value) {
            views.push(value);
            value = graph[value].operands[0];
        }
        let (difference, scale) = match Spread::of_operands(graph, value, Binary::Mul) {
            Some((difference, scale)) => (difference, Some(scale)),
            None => (value, None),
        };
        let (wide, zero) = match Spread::of_operands(graph, difference, Binary::Sub) {
            Some((wide, zero)) => (wide, Some(zero).filter(|zero| !zero.is_nothing())),
            None => (difference, None),
        };
        let Op::Cast(_) = graph[wide].op else { return None };
        let bytes = graph[wide].operands[0];
        if graph[bytes].ty.dtype != DType::I8 {
            return None;
        }
        let found = Dequantized { bytes, zero, scale, views };
        found.can_pad(graph).then_some(found)
    }

    /// Whether it is a zero point: whole, and not much more than bytes are. With others the difference of sums would lose digits
    /// that sums of differences have.
    fn is_zero_point(&self, zero: Spread) -> bool {
        let magnitude = match zero {
            Spread::Number(number) => Some(number.value().abs()).filter(|number| number.fract() == 0.0),
            Spread::Value(value) => self.whole[value.index()],
        };
        magnitude.is_some_and(|magnitude| magnitude <= LARGEST_ZERO)
    }
}

impl Product<'_> {
    fn rewritten(self, rebuild: &mut Rebuild<'_>, id: ValueId) -> Result<()> {
        let Product { graph, dot, sides, operands } = self;
        let shape = &graph[id].ty.shape;
        let mut wide = vec![];
        for operand in &operands {
            let bytes = operand.shown(graph, rebuild)?;
            wide.push(rebuild.builder(operand.bytes).cast(bytes, DType::F32)?);
        }
        // What each operand has in common, as of the result's type.
        let mut common = |of: fn(&Dequantized) -> Option<Spread>| -> Result<[Option<ValueId>; 2]> {
            let mut values = [None, None];
            for ((value, operand), side) in values.iter_mut().zip(&operands).zip(&sides) {
                *value = match of(operand) {
                    Some(common) => Some(common.in_result(graph, rebuild, operand, side, id)?),
                    None => None,
                };
            }
            Ok(values)
        };
        let (zeros, scales) = (common(|operand| operand.zero)?, common(|operand| operand.scale)?);
        let mut b = rebuild.builder(id);
        let mut sum = b.op(dot.clone(), &wide)?;
        for (side, zero) in zeros.into_iter().enumerate() {
            let Some(zero) = zero else { continue };
            let sums = sides[1 - side].sums(&mut b, wide[1 - side], shape)?;
            let too_much = b.mul(zero, sums)?;
            sum = b.sub(sum, too_much)?;
        }
        if let [Some(left), Some(right)] = zeros {
            let terms: usize = sides[0].summed.iter().map(|&axis| b.ty(wide[0]).shape[axis]).product();
            let both = b.mul(left, right)?;
            let both = b.scale(both, terms as f64)?;
            sum = b.add(sum, both)?;
        }
        if let Some(scale) = match scales {
            [Some(left), Some(right)] => Some(b.mul(left, right)?),
            [left, right] => left.or(right),
        } {
            sum = b.mul(sum, scale)?;
        }
        rebuild.replace(id, sum);
        Ok(())
    }
}

impl Dequantized {
    /// Whether what elements have in common is the same along the axes that are summed.
    fn has_rows(&self, graph: &Graph, common: Spread, side: &Side) -> bool {
        let Spread::Value(broadcast) = common else { return true };
        let Op::Broadcast(spread) = &graph[broadcast].op else { return false };
        let axes = self.views.iter().rev().try_fold(spread.axes.clone(), |axes, &view| {
            let shape = &graph[graph[view].operands[0]].ty.shape;
            let shown = |axis: usize| axes_shown(&graph[view].op, shape, axis);
            axes.into_iter().map(shown).collect::<Option<Vec<_>>>().map(|axes| axes.concat())
        });
        axes.is_some_and(|axes| axes.iter().all(|axis| !side.summed.contains(axis)))
    }

    /// Whether a byte stands for the 0 that is padded with.
    fn can_pad(&self, graph: &Graph) -> bool {
        let is_padded = self.views.iter().any(|&view| matches!(graph[view].op, Op::Pad(_)));
        let is_byte = |zero: f64| DType::I8.round(zero) == zero;
        match self.zero {
            Some(Spread::Value(_)) => !is_padded,
            Some(Spread::Number(zero)) => !is_padded || is_byte(zero.value()),
            None => true,
        }
    }

    /// The bytes as the views show them. What is moved or padded may be in memory.
    fn shown(&self, graph: &Graph, rebuild: &mut Rebuild<'_>) -> Result<ValueId> {
        let mut value = rebuild.place(self.bytes);
        for &view in self.views.iter().rev() {
            let op = match (&graph[view].op, self.zero) {
                (Op::Pad(pad), Some(Spread::Number(zero))) => Pad { value: zero, ..pad.clone() }.into(),
                (op, _) => op.clone(),
            };
            value = rebuild.builder(view).op(op, &[value])?;
        }
        Ok(value)
    }
}

impl Spread {
    /// Whether it changes nothing where it is subtracted.
    fn is_nothing(self) -> bool {
        matches!(self, Spread::Number(number) if number.value() == 0.0)
    }

    /// Whether both are the same number everywhere.
    fn is_same_number(self, graph: &Graph, other: Spread) -> bool {
        match (self, other) {
            (Spread::Number(number), Spread::Number(other)) => number == other,
            (Spread::Value(value), Spread::Value(other)) => {
                let [value, other] = [value, other].map(|value| single(graph, value));
                value.is_some() && value == other
            }
            _ => false,
        }
    }

    fn of(graph: &Graph, value: ValueId) -> Option<Self> {
        let broadcast = || matches!(graph[value].op, Op::Broadcast(_)).then_some(Spread::Value(value));
        number(graph, value).map(Spread::Number).or_else(broadcast)
    }

    /// The operands of `x op y`, of which y, or one of both where they can be exchanged, is such a value.
    fn of_operands(graph: &Graph, value: ValueId, op: Binary) -> Option<(ValueId, Spread)> {
        let node = &graph[value];
        let [x, y] = node.operands[..] else { return None };
        let exchanged = || if op == Binary::Mul { Some((y, Spread::of(graph, x)?)) } else { None };
        (node.op == Op::Binary(op)).then(|| Spread::of(graph, y).map(|y| (x, y)).or_else(exchanged))?
    }

    /// In the type of the product, for each row of the operand.
    fn in_result(
        self,
        graph: &Graph,
        rebuild: &mut Rebuild<'_>,
        operand: &Dequantized,
        side: &Side,
        product: ValueId,
    ) -> Result<ValueId> {
        let ty = &graph[product].ty;
        let broadcast = match self {
            Spread::Number(number) => return rebuild.builder(product).full(number.value(), ty),
            Spread::Value(broadcast) => broadcast,
        };
        let inner = graph[broadcast].operands[0];
        if graph[inner].ty.rank() == 0 {
            let number = rebuild.place(inner);
            return rebuild.builder(product).broadcast(number, &ty.shape, &[]);
        }
        // As the operand shows it, at the first place of what is summed.
        let mut value = rebuild.place(broadcast);
        for &view in operand.views.iter().rev() {
            value = rebuild.builder(view).op(graph[view].op.clone(), &[value])?;
        }
        let mut b = rebuild.builder(product);
        let whole = b.ty(value).shape.clone();
        let end = |axis: usize| if side.summed.contains(&axis) { whole[axis].min(1) } else { whole[axis] };
        let end: Vec<_> = (0..whole.len()).map(end).collect();
        let first = b.slice(value, &vec![0; whole.len()], &end)?;
        let rows: Vec<_> = (0..whole.len()).filter(|axis| !side.summed.contains(axis)).collect();
        let rows: Vec<_> = rows.into_iter().map(|axis| whole[axis]).collect();
        let value = b.reshape(first, &rows)?;
        spread(&mut b, value, side.row_places(), &ty.shape)
    }
}

impl Side {
    /// The sum of each row of an operand, in a shape of the product.
    fn sums(&self, b: &mut Builder<'_>, operand: ValueId, shape: &[usize]) -> Result<ValueId> {
        let mut summed = self.summed.clone();
        summed.sort_unstable();
        let sums = b.reduce(ReduceOp::Sum, &summed, operand)?;
        spread(b, sums, self.row_places(), shape)
    }
}

/// The value of one element that all elements are views of.
fn single(graph: &Graph, value: ValueId) -> Option<ValueId> {
    let (mut value, is_view) = (value, |value: ValueId| graph[value].op.entry() == KernelEntry::View);
    while is_view(value) {
        value = graph[value].operands[0];
    }
    (graph[value].ty.elements() == 1).then_some(value)
}

/// Whether a value is what another one shows, or zeros.
fn is_view(graph: &Graph, value: ValueId) -> bool {
    match &graph[value].op {
        Op::Pad(pad) => pad.value.value() == 0.0,
        op => op.entry() == KernelEntry::View,
    }
}

/// The axes of what a view shows along which an axis of its operand, of this shape, is seen; nothing of views that do more than that.
fn axes_shown(view: &Op, shape: &[usize], axis: usize) -> Option<Vec<usize>> {
    match view {
        Op::Permute(permute) => permute.axes.iter().position(|&other| other == axis).map(|place| vec![place]),
        Op::Broadcast(spread) => Some(vec![spread.axes[axis]]),
        Op::Reshape(reshape) => {
            let stride = |shape: &[usize], axis: usize| shape[axis + 1..].iter().product::<usize>();
            let own = (stride(shape, axis), shape[axis..].iter().product::<usize>());
            let is_seen = |&other: &usize| {
                let shown = (stride(&reshape.shape, other), reshape.shape[other..].iter().product::<usize>());
                let is_part = |whole: usize, part: usize| part > 0 && whole.is_multiple_of(part);
                !is_part(own.0, shown.1) && !is_part(shown.0, own.1)
            };
            Some((0..reshape.shape.len()).filter(is_seen).collect())
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::product_operands::is_widened;
    use kernfusion_ir::evaluate::{Array, Precision, evaluate_arrays};
    use kernfusion_ir::{Input, InputRole, Origin, TensorType, Windows};
    use std::collections::BTreeMap;

    fn input(b: &mut Builder<'_>, name: &str, role: InputRole, dtype: DType, shape: &[usize]) -> ValueId {
        b.op(Input { name: name.into(), role, ty: TensorType::new(dtype, shape) }, &[]).unwrap()
    }

    /// What bytes stand for, with this zero point and this scale.
    fn real(b: &mut Builder<'_>, bytes: ValueId, zero: ValueId, scale: ValueId) -> ValueId {
        let wide = b.cast(bytes, DType::F32).unwrap();
        let centred = b.sub(wide, zero).unwrap();
        b.mul(scale, centred).unwrap()
    }

    /// The product of the last axes of both, behind as many axes of a batch.
    fn product(b: &mut Builder<'_>, batch: usize, [x, y]: [ValueId; 2]) -> ValueId {
        let batch: Vec<_> = (0..batch).collect();
        let last = |value: ValueId| vec![b.ty(value).rank() - 1];
        let (lhs_contract, rhs_contract) = (last(x), last(y));
        let dot = DotGeneral {
            lhs_batch: batch.clone(),
            rhs_batch: batch,
            lhs_contract,
            rhs_contract,
            dtype: DType::F32,
        };
        b.op(dot, &[x, y]).unwrap()
    }

    fn numbers(ty: &TensorType, seed: usize) -> Array {
        let whole = |at: usize| ((at * 7919 + seed * 104_729) % 251) as f64 - 125.0;
        let value = |at| if ty.dtype == DType::I8 { whole(at) } else { 0.01 + 0.001 * whole(at) };
        Array { ty: ty.clone(), values: (0..ty.elements()).map(value).collect() }
    }

    /// The program after the pass, if it changed the product; its results are then what they were.
    fn multiplied(mut graph: Graph, y: ValueId) -> Option<Graph> {
        graph.output("y", y);
        let is_found = are_in(&graph);
        let mut after = graph.clone();
        multiply_bytes(&mut after).unwrap();
        let inputs =
            graph.inputs().map(|(id, name, _)| (name.to_string(), numbers(&graph[id].ty, id.index())));
        let inputs: BTreeMap<_, _> = inputs.collect();
        let [expected, found] = [&graph, &after].map(|graph| {
            evaluate_arrays(graph, inputs.clone(), Precision::Double).unwrap().remove("y").unwrap()
        });
        assert_eq!(expected.ty, found.ty);
        for (x, y) in expected.values.iter().zip(&found.values) {
            assert!((x - y).abs() <= 1e-9 * (1.0 + x.abs()), "{x} {y}");
        }
        let dot = after.ids().find(|&id| matches!(after[id].op, Op::DotGeneral(_))).unwrap();
        let reads_bytes = after[dot].operands.iter().all(|&operand| is_widened(&after, operand));
        assert_eq!(is_found, reads_bytes);
        reads_bytes.then_some(after)
    }

    /// Scales and zero points of rows and of all, wherever views of a matrix leave its rows.
    #[test]
    fn bytes_are_multiplied_and_scales_moved_behind() {
        for (of_rows, is_viewed) in [(false, false), (true, false), (true, true), (false, true)] {
            let mut graph = Graph::default();
            let mut b = Builder::new(&mut graph, Origin::default());
            let x = input(&mut b, "x", InputRole::Data, DType::I8, &[2, 3, 12]);
            let zero = b.full(-5.0, &TensorType::new(DType::F32, [2, 3, 12])).unwrap();
            let scale = input(&mut b, "scale", InputRole::Data, DType::F32, &[]);
            let scale = b.broadcast(scale, &[2, 3, 12], &[]).unwrap();
            let x = real(&mut b, x, zero, scale);
            // [features, channels, places], as the weight of a convolution.
            let shape = [8, 4, 3];
            let w = input(&mut b, "w", InputRole::State, DType::I8, &shape);
            let axes: &[usize] = if of_rows { &[0] } else { &[] };
            let common = |b: &mut Builder<'_>, name, dtype| {
                let own = input(b, name, InputRole::State, dtype, &shape[..axes.len()]);
                let own = b.cast(own, DType::F32).unwrap();
                b.broadcast(own, &shape, axes).unwrap()
            };
            let (zero, scale) = (common(&mut b, "zeros", DType::I8), common(&mut b, "scales", DType::F32));
            let w = real(&mut b, w, zero, scale);
            let y = match is_viewed {
                false => {
                    let rows = b.reshape(w, &[8, 12]).unwrap();
                    product(&mut b, 0, [x, rows])
                }
                true => {
                    // Groups of rows, for each of a batch.
                    let rows = b.reshape(w, &[2, 4, 12]).unwrap();
                    let rows = b.permute(rows, &[1, 0, 2]).unwrap();
                    let rows = b.broadcast(rows, &[2, 4, 2, 12], &[1, 2, 3]).unwrap();
                    product(&mut b, 1, [x, rows])
                }
            };
            assert!(multiplied(graph, y).is_some(), "{of_rows} {is_viewed}");
        }
    }

    /// Around an image, the byte that stands for 0.
    #[test]
    fn images_are_padded_with_their_zero_point() {
        for zero in [None, Some(-128.0), Some(7.0), Some(0.5)] {
            let mut graph = Graph::default();
            let mut b = Builder::new(&mut graph, Origin::default());
            let image = input(&mut b, "image", InputRole::Data, DType::I8, &[2, 3, 5, 6]);
            let mut x = b.cast(image, DType::F32).unwrap();
            if let Some(zero) = zero {
                let zero = b.full_like(zero, x).unwrap();
                x = b.sub(x, zero).unwrap();
            }
            let x = b.scale(x, 0.25).unwrap();
            let x = b.pad(x, &[0, 0, 1, 2], &[0, 0, 1, 0], 0.0).unwrap();
            let windows = Windows { places: vec![3, 3], stride: vec![1, 2], dilation: vec![1, 1] };
            let seen = b.op(windows, &[x]).unwrap();
            let turned = b.permute(seen, &[0, 2, 3, 1, 4, 5]).unwrap();
            let columns = b.reshape(turned, &[2, 15, 27]).unwrap();
            let w = input(&mut b, "w", InputRole::State, DType::I8, &[4, 27]);
            let w = b.cast(w, DType::F32).unwrap();
            let w = b.scale(w, 0.5).unwrap();
            let y = product(&mut b, 0, [w, columns]);
            let Some(after) = multiplied(graph, y) else {
                assert_eq!(zero, Some(0.5), "another one is a byte");
                continue;
            };
            assert_ne!(zero, Some(0.5));
            let is_of_bytes =
                |id: ValueId| matches!(after[id].op, Op::Pad(_)) && after[id].ty.dtype == DType::I8;
            assert!(after.ids().any(is_of_bytes));
        }
    }

    /// Bytes of a moved value are the value's bytes, moved, if scale and zero point are its own.
    #[test]
    fn what_was_moved_is_not_rounded_again() {
        let ty = TensorType::new(DType::F32, [3, 4]);
        let rounds = |scales: [f64; 2], zeros: [f64; 2], is_parameter: bool| {
            let mut graph = Graph::default();
            let mut b = Builder::new(&mut graph, Origin::default());
            let bytes = input(&mut b, "x", InputRole::Data, DType::I8, &ty.shape);
            let scale = input(&mut b, "scale", InputRole::State, DType::F32, &[1]);
            let number = |b: &mut Builder<'_>, place: usize, shape: &[usize]| match is_parameter {
                true => b.reshape(scale, &[]).and_then(|scale| b.broadcast(scale, shape, &[])),
                false => b.full(scales[place], &ty.with_shape(shape)),
            };
            let (zero, own) = (b.full(zeros[0], &ty).unwrap(), number(&mut b, 0, &[3, 4]).unwrap());
            let x = real(&mut b, bytes, zero, own);
            let turned = b.permute(x, &[1, 0]).unwrap();
            let padded = b.pad(turned, &[0, 1], &[2, 0], 0.0).unwrap();
            let other = number(&mut b, 1, &[6, 4]).unwrap();
            let quotient = b.div(padded, other).unwrap();
            let rounded = b.unary(Unary::Round, quotient).unwrap();
            let zero = b.full_like(zeros[1], rounded).unwrap();
            let moved = b.add(rounded, zero).unwrap();
            let again = b.cast(moved, DType::I8).unwrap();
            graph.output("y", again);
            let mut after = graph.clone();
            multiply_bytes(&mut after).unwrap();
            crate::dce::remove_dead_code(&mut after).unwrap();
            let inputs = graph.inputs().map(|(id, name, _)| (name.to_string(), numbers(&graph[id].ty, 3)));
            let inputs: BTreeMap<_, _> = inputs.collect();
            let [expected, found] = [&graph, &after]
                .map(|graph| evaluate_arrays(graph, inputs.clone(), Precision::Declared).unwrap());
            assert_eq!(expected["y"].values, found["y"].values);
            after.ids().any(|id| matches!(after[id].op, Op::Unary(Unary::Round)))
        };
        assert!(!rounds([0.25, 0.25], [7.0, 7.0], false));
        assert!(!rounds([f64::from(0.013_f32); 2], [-128.0, -128.0], false));
        assert!(!rounds([0.0, 0.0], [-3.0, -3.0], true));
        assert!(rounds([0.25, 0.5], [7.0, 7.0], false));
        assert!(rounds([0.25, 0.25], [7.0, 8.0], false));
        // No byte stands for 0, and half a step is rounded to an even one.
        assert!(rounds([0.25, 0.25], [0.5, 0.5], false));
    }

    /// A scale along an axis that is summed stays; so do products of computed values, which may be attention, and of parameters alone.
    #[test]
    fn other_products_are_left_alone() {
        let is_changed = |roles: [InputRole; 2], axis: usize, shape: [usize; 2]| {
            let mut graph = Graph::default();
            let mut b = Builder::new(&mut graph, Origin::default());
            let x = input(&mut b, "x", roles[0], DType::I8, &[3, 12]);
            let x = b.cast(x, DType::F32).unwrap();
            let w = input(&mut b, "w", roles[1], DType::I8, &shape);
            let w = b.cast(w, DType::F32).unwrap();
            let scale = input(&mut b, "scale", InputRole::State, DType::F32, &[shape[axis]]);
            let scale = b.broadcast(scale, &shape, &[axis]).unwrap();
            let w = b.mul(w, scale).unwrap();
            let w = b.reshape(w, &[4, 12]).unwrap();
            let y = product(&mut b, 0, [x, w]);
            multiplied(graph, y).is_some()
        };
        use InputRole::{Data, State};
        assert!(is_changed([Data, State], 0, [4, 12]));
        assert!(!is_changed([Data, State], 1, [4, 12]), "each term has a scale of its own");
        assert!(!is_changed([Data, State], 0, [8, 6]), "half a row has one");
        assert!(is_changed([Data, State], 0, [2, 24]), "two rows have one");
        assert!(!is_changed([Data, Data], 0, [4, 12]) && !is_changed([State, State], 0, [4, 12]));
        // Views of what was widened are not looked through.
        let mut graph = Graph::default();
        let mut b = Builder::new(&mut graph, Origin::default());
        let x = input(&mut b, "x", Data, DType::I8, &[3, 12]);
        let x = b.cast(x, DType::F32).unwrap();
        let w = input(&mut b, "w", State, DType::I8, &[48]);
        let w = b.cast(w, DType::F32).unwrap();
        let w = b.reshape(w, &[4, 12]).unwrap();
        let scale = input(&mut b, "scale", State, DType::F32, &[4]);
        let scale = b.broadcast(scale, &[4, 12], &[0]).unwrap();
        let w = b.mul(w, scale).unwrap();
        let y = product(&mut b, 0, [x, w]);
        assert!(multiplied(graph, y).is_none());
    }
}
