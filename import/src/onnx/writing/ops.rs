//! Op → nodes: what each op of a graph is in ONNX.

use super::super::messages::AttributeProto;
use super::{Writer, Written, element_code, whole_number, whole_numbers};
use kernfusion::HostTensor;
use kernfusion_ir::{
    Binary, Broadcast, Compare, DType, DotGeneral, Iota, Op, Pad, Reduce, ReduceOp, Slice, TensorType, Unary,
    ValueId, Windows,
};

/// Whether an op has a counterpart, where its result is of this type.
pub(super) fn is_known(op: &Op, ty: &TensorType) -> bool {
    match op {
        Op::Binary(op) => binary(*op, ty.dtype).is_some(),
        Op::RandomBits(_)
        | Op::ScatterAdd(_)
        | Op::DynamicSlice(_)
        | Op::DynamicUpdate(_)
        | Op::Scan(_)
        | Op::Collective(_) => false,
        Op::Input(_)
        | Op::Constant(_)
        | Op::Iota(_)
        | Op::Unary(_)
        | Op::Compare(_)
        | Op::Select(_)
        | Op::Cast(_)
        | Op::Reduce(_)
        | Op::Reshape(_)
        | Op::Permute(_)
        | Op::Broadcast(_)
        | Op::Slice(_)
        | Op::Windows(_)
        | Op::Pad(_)
        | Op::Concat(_)
        | Op::DotGeneral(_)
        | Op::Gather(_) => true,
    }
}

/// Writes the nodes of a value whose op is known.
pub(super) fn write(w: &mut Writer<'_>, id: ValueId) -> Written {
    let node = &w.graph[id];
    let (ids, ty) = (node.operands.as_slice(), &node.ty);
    let name = match &node.op {
        Op::Constant(constant) => {
            w.constant(&HostTensor::from_f64(&TensorType::scalar(constant.dtype), &[constant.value.value()]))
        }
        Op::Iota(op) => return iota(w, op),
        Op::Broadcast(op) => return broadcast(w, op, ids[0]),
        Op::Unary(op) => return of_each(w, unary(*op, ty.dtype), ids[0], vec![]),
        Op::Cast(op) => {
            let to = whole_number("to", element_code(op.dtype).into());
            let from = w.ty(ids[0]).dtype;
            let is_wide = op.dtype == DType::I8 && !matches!(from, DType::Bool | DType::I8);
            return match (is_wide, w.values[&ids[0]].clone()) {
                (false, _) => of_each(w, "Cast", ids[0], vec![to]),
                (true, Written::Whole(x)) => Written::Whole(bytes(w, x, from, to)),
                (true, Written::Broadcast(x)) => Written::Broadcast(bytes(w, x, from, to)),
            };
        }
        Op::Binary(op) => {
            let operands = w.elementwise(ids);
            w.node(binary(*op, ty.dtype).expect("checked before"), operands, vec![])
        }
        Op::Compare(op) => compare(w, *op, ids),
        Op::Select(_) => {
            let operands = w.elementwise(ids);
            w.node("Where", operands, vec![])
        }
        Op::Reduce(op) => reduce(w, op, ids[0]),
        Op::Reshape(op) => {
            let x = w.whole(ids[0]);
            reshaped(w, x, &op.shape)
        }
        Op::Permute(op) => {
            let x = w.whole(ids[0]);
            transposed(w, x, &op.axes)
        }
        Op::Slice(op) => slice(w, op, ids[0]),
        Op::Windows(op) => windows(w, op, ids[0]),
        Op::Pad(op) => pad(w, op, ids[0]),
        Op::Concat(op) => {
            let parts = ids.iter().map(|&id| w.whole(id)).collect();
            w.node("Concat", parts, vec![whole_number("axis", op.axis as i64)])
        }
        Op::DotGeneral(op) => product(w, op, ids, ty),
        Op::Gather(op) => gather(w, op.axis, ids),
        other => unreachable!("{} has no counterpart, which was checked before", other.name()),
    };
    Written::Whole(name)
}

fn unary(op: Unary, dtype: DType) -> &'static str {
    match op {
        Unary::Neg => "Neg",
        Unary::Abs => "Abs",
        Unary::Sign => "Sign",
        Unary::Floor => "Floor",
        Unary::Round => "Round",
        Unary::Exp => "Exp",
        Unary::Log => "Log",
        Unary::Sqrt => "Sqrt",
        Unary::Tanh => "Tanh",
        Unary::Sigmoid => "Sigmoid",
        Unary::Erf => "Erf",
        Unary::Sin => "Sin",
        Unary::Cos => "Cos",
        Unary::Not if dtype == DType::Bool => "Not",
        Unary::Not => "BitwiseNot",
    }
}

/// ONNX shifts by fewer bits than a number has, and no signed numbers.
fn binary(op: Binary, dtype: DType) -> Option<&'static str> {
    Some(match (op, dtype) {
        (Binary::Add, _) => "Add",
        (Binary::Sub, _) => "Sub",
        (Binary::Mul, _) => "Mul",
        (Binary::Div, _) => "Div",
        (Binary::Max, _) => "Max",
        (Binary::Min, _) => "Min",
        (Binary::Pow, _) => "Pow",
        (Binary::And, DType::Bool) => "And",
        (Binary::Or, DType::Bool) => "Or",
        (Binary::Xor, DType::Bool) => "Xor",
        (Binary::And, _) => "BitwiseAnd",
        (Binary::Or, _) => "BitwiseOr",
        (Binary::Xor, _) => "BitwiseXor",
        (Binary::Shl | Binary::Shr, _) => return None,
    })
}

fn compare(w: &mut Writer<'_>, op: Compare, ids: &[ValueId]) -> String {
    let operands = w.elementwise(ids);
    match op {
        Compare::Eq => w.node("Equal", operands, vec![]),
        Compare::Ne => {
            let equal = w.node("Equal", operands, vec![]);
            w.node("Not", vec![equal], vec![])
        }
        Compare::Lt => w.node("Less", operands, vec![]),
        Compare::Le => w.node("LessOrEqual", operands, vec![]),
        Compare::Gt => w.node("Greater", operands, vec![]),
        Compare::Ge => w.node("GreaterOrEqual", operands, vec![]),
    }
}

/// A node that does the same with each element: what is broadcast stays so.
fn of_each(w: &mut Writer<'_>, operator: &str, x: ValueId, attributes: Vec<AttributeProto>) -> Written {
    match w.values[&x].clone() {
        Written::Whole(x) => Written::Whole(w.node(operator, vec![x], attributes)),
        Written::Broadcast(x) => Written::Broadcast(w.node(operator, vec![x], attributes)),
    }
}

/// The nearest bytes: ONNX would wrap what is beyond them.
fn bytes(w: &mut Writer<'_>, x: String, from: DType, to: AttributeProto) -> String {
    let least = if from == DType::U32 { 0.0 } else { f64::from(i8::MIN) };
    let bounds = [least, f64::from(i8::MAX)]
        .map(|bound| w.constant(&HostTensor::from_f64(&TensorType::scalar(from), &[bound])));
    let bounded = w.node("Clip", [vec![x], bounds.into()].concat(), vec![]);
    w.node("Cast", vec![bounded], vec![to])
}

fn broadcast(w: &mut Writer<'_>, op: &Broadcast, x: ValueId) -> Written {
    let x = w.whole(x);
    spread(w, x, &op.axes, &op.shape)
}

/// A value whose axes are these ones of a shape, with extents of 1 between them.
fn spread(w: &mut Writer<'_>, x: String, axes: &[usize], shape: &[usize]) -> Written {
    let own: Vec<_> = axes.iter().map(|&axis| shape[axis]).collect();
    let mut with_ones = vec![1; shape.len()];
    axes.iter().for_each(|&axis| with_ones[axis] = shape[axis]);
    // Axes in front are there without being written.
    let is_last = axes.iter().copied().eq(shape.len() - axes.len()..shape.len());
    let (x, found) = if is_last { (x, own) } else { (reshaped(w, x, &with_ones), with_ones) };
    if found == shape { Written::Whole(x) } else { Written::Broadcast(x) }
}

/// Coordinates along one axis, broadcast along the others.
fn iota(w: &mut Writer<'_>, op: &Iota) -> Written {
    let bounds = [0, op.ty.shape[op.axis], 1];
    let bounds = bounds.map(|x| w.constant(&HostTensor::new(vec![], vec![x as i32])));
    let mut x = w.node("Range", bounds.into(), vec![]);
    if op.ty.dtype != DType::I32 {
        x = w.node("Cast", vec![x], vec![whole_number("to", element_code(op.ty.dtype).into())]);
    }
    spread(w, x, &[op.axis], &op.ty.shape)
}

fn reduce(w: &mut Writer<'_>, op: &Reduce, x: ValueId) -> String {
    let x = w.whole(x);
    if op.axes.is_empty() {
        return x;
    }
    let operator = match op.op {
        ReduceOp::Sum => "ReduceSum",
        ReduceOp::Max => "ReduceMax",
        ReduceOp::Min => "ReduceMin",
    };
    let axes = w.extents(&op.axes);
    w.node(operator, vec![x, axes], vec![whole_number("keepdims", 0)])
}

fn reshaped(w: &mut Writer<'_>, x: String, shape: &[usize]) -> String {
    let extents = w.extents(shape);
    // Otherwise an extent of 0 would be that of the operand.
    w.node("Reshape", vec![x, extents], vec![whole_number("allowzero", 1)])
}

fn transposed(w: &mut Writer<'_>, x: String, axes: &[usize]) -> String {
    match axes.is_sorted() {
        true => x,
        false => w.node("Transpose", vec![x], vec![whole_numbers("perm", axes)]),
    }
}

fn slice(w: &mut Writer<'_>, op: &Slice, x: ValueId) -> String {
    let shape = &w.ty(x).shape;
    let axes: Vec<_> =
        (0..shape.len()).filter(|&axis| (op.start[axis], op.end[axis]) != (0, shape[axis])).collect();
    let x = w.whole(x);
    if axes.is_empty() {
        return x;
    }
    let of = |all: &[usize]| axes.iter().map(|&axis| all[axis]).collect::<Vec<_>>();
    let bounds = [of(&op.start), of(&op.end), axes.clone()].map(|numbers| w.extents(&numbers));
    w.node("Slice", [vec![x], bounds.into()].concat(), vec![])
}

/// `[batch.., positions..]` to `[batch.., results.., places..]`: positions are gathered along each axis, then places go last.
fn windows(w: &mut Writer<'_>, op: &Windows, x: ValueId) -> String {
    let (rank, axes) = (w.ty(x).rank(), op.places.len());
    let (first, positions) = (rank - axes, w.ty(x).shape[rank - axes..].to_vec());
    let mut x = w.whole(x);
    for (axis, extent) in positions.into_iter().enumerate() {
        let (places, stride, dilation) = (op.places[axis], op.stride[axis], op.dilation[axis]);
        let results = (extent - dilation * (places - 1) - 1) / stride + 1;
        let seen = (0..results).flat_map(|i| (0..places).map(move |j| (stride * i + dilation * j) as i32));
        let seen = w.constant(&HostTensor::new([results, places], seen.collect::<Vec<_>>()));
        x = w.node("Gather", vec![x, seen], vec![whole_number("axis", (first + 2 * axis) as i64)]);
    }
    let results = (0..axes).map(|axis| first + 2 * axis);
    let places = (0..axes).map(|axis| first + 2 * axis + 1);
    transposed(w, x, &(0..first).chain(results).chain(places).collect::<Vec<_>>())
}

/// Indices are clamped, as they are here; ONNX would count those below 0 from the end.
fn gather(w: &mut Writer<'_>, axis: usize, ids: &[ValueId]) -> String {
    let last = w.ty(ids[0]).shape[axis].saturating_sub(1) as i32;
    let bounds = [0, last].map(|bound| w.constant(&HostTensor::new(vec![], vec![bound])));
    let (table, indices) = (w.whole(ids[0]), w.whole(ids[1]));
    let indices = w.node("Clip", [vec![indices], bounds.into()].concat(), vec![]);
    w.node("Gather", vec![table, indices], vec![whole_number("axis", axis as i64)])
}

fn pad(w: &mut Writer<'_>, op: &Pad, x: ValueId) -> String {
    let dtype = w.ty(x).dtype;
    let x = w.whole(x);
    let pads = w.extents(&[&op.low[..], &op.high].concat());
    let value = w.constant(&HostTensor::from_f64(&TensorType::scalar(dtype), &[op.value.value()]));
    w.node("Pad", vec![x, pads, value], vec![])
}

/// A product of stacks of matrices: `[batch.., rows, sum] · [batch.., sum, columns]`, each of the last axes what it has several of as one.
fn product(w: &mut Writer<'_>, op: &DotGeneral, ids: &[ValueId], ty: &TensorType) -> String {
    let (a, b) = (w.ty(ids[0]), w.ty(ids[1]));
    let (rows, columns) = (op.lhs_free(a.rank()), op.rhs_free(b.rank()));
    let extents =
        |ty: &TensorType, axes: &[usize]| axes.iter().map(|&axis| ty.shape[axis]).collect::<Vec<_>>();
    let batch = extents(a, &op.lhs_batch);
    let sum: usize = extents(a, &op.lhs_contract).iter().product();
    // Without a batch rows may have several axes.
    let of_rows = extents(a, &rows);
    let of_rows = if batch.is_empty() && !rows.is_empty() { of_rows } else { vec![of_rows.iter().product()] };
    let of_columns: usize = extents(b, &columns).iter().product();
    let left = [&batch[..], &of_rows, &[sum]].concat();
    let right = [&batch[..], &[sum, of_columns]].concat();
    let order = |parts: [&[usize]; 3]| parts.concat();
    let a = operand(w, ids[0], ty.dtype, &order([&op.lhs_batch, &rows, &op.lhs_contract]), &left);
    let b = operand(w, ids[1], ty.dtype, &order([&op.rhs_batch, &op.rhs_contract, &columns]), &right);
    let result = w.node("MatMul", vec![a, b], vec![]);
    let shape = [&batch[..], &of_rows, &[of_columns]].concat();
    if shape == ty.shape { result } else { reshaped(w, result, &ty.shape) }
}

/// An operand of a product in that dtype, its axes in that order and then of that shape.
fn operand(w: &mut Writer<'_>, id: ValueId, dtype: DType, order: &[usize], shape: &[usize]) -> String {
    let ty = w.ty(id);
    let mut x = w.whole(id);
    if ty.dtype != dtype {
        x = w.node("Cast", vec![x], vec![whole_number("to", element_code(dtype).into())]);
    }
    x = transposed(w, x, order);
    let is_there = order.iter().map(|&axis| ty.shape[axis]).eq(shape.iter().copied());
    if is_there { x } else { reshaped(w, x, shape) }
}
