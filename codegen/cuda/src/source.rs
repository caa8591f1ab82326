//! Pieces of C++: indented lines, names, types, constants, index maps and single instructions.

use kernfusion_ir::kernel::{Bound, Index, InstrKind, Region, Scalar};
use kernfusion_ir::{Binary, Compare, DType, Literal, ReduceOp, Unary};
use std::cell::Cell;
use std::fmt::Write;

/// Lines of C++ in the making.
#[derive(Debug, Default)]
pub(super) struct Code {
    text: String,
    depth: usize,
}

impl Code {
    /// One line.
    pub(super) fn line(&mut self, line: impl AsRef<str>) {
        let indent = 2 * self.depth;
        writeln!(self.text, "{:indent$}{}", "", line.as_ref()).expect("a string can be written");
    }

    /// A line that begins a block.
    pub(super) fn open(&mut self, head: impl AsRef<str>) {
        self.line(format!("{} {{", head.as_ref()).trim_start());
        self.depth += 1;
    }

    /// Ends a block, with something after its brace.
    pub(super) fn close(&mut self, tail: &str) {
        self.depth -= 1;
        self.line(format!("}}{tail}"));
    }

    pub(super) fn finish(self) -> String {
        self.text
    }
}

/// A buffer as the functions of a kernel know it.
#[derive(Debug, Clone)]
pub(super) struct Slot {
    name: String,
    pub(super) dtype: DType,
    pub(super) bytes: usize,
    /// Whether the kernel writes memory that the buffer lies in.
    pub(super) is_clobbered: bool,
    /// What the function in the making does with it.
    access: Cell<Option<Access>>,
}

/// What a function does with a buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Access {
    /// It reads elements.
    Read,
    /// It writes elements, and may read some.
    Write,
}

impl Slot {
    /// A buffer of this name, as [`buffer_name`] gives it, which no function has used yet.
    pub(super) fn new(name: String, dtype: DType, bytes: usize, is_clobbered: bool) -> Self {
        Slot { name, dtype, bytes, is_clobbered, access: Cell::new(None) }
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// The name, for code that reads elements.
    pub(super) fn read(&self) -> &str {
        self.access.set(self.access.get().max(Some(Access::Read)));
        &self.name
    }

    /// The name, for code that writes elements.
    pub(super) fn write(&self) -> &str {
        self.access.set(Some(Access::Write));
        &self.name
    }

    /// What the function that is finished now did with it; the next one begins anew.
    pub(super) fn take_access(&self) -> Option<Access> {
        self.access.take()
    }
}

/// An identifier, or the rest of one, from any name.
fn identifier(name: &str) -> String {
    let mut result = String::new();
    for c in name.chars() {
        match c {
            'a'..='z' | 'A'..='Z' | '0'..='9' => result.push(c),
            _ if result.ends_with('_') => {}
            _ => result.push('_'),
        }
    }
    result.trim_matches('_').into()
}

/// The name of a function for a kernel. Nothing else in a text begins like it, words of C++ included.
pub(super) fn function_name(kernel: &str) -> String {
    format!("kernel_{}", identifier(kernel))
}

/// The name of a buffer in global memory. Nothing else in a text begins like it, words of C++ included.
pub(super) fn buffer_name(buffer: &str) -> String {
    format!("g_{}", identifier(buffer))
}

/// The type of an element in memory.
pub(super) fn memory_type(dtype: DType) -> &'static str {
    match dtype {
        DType::F32 => "float",
        DType::BF16 => "bf16",
        DType::F16 => "f16",
        DType::F64 => "double",
        DType::I32 => "int",
        DType::U32 => "u32",
        DType::I8 => "i8",
        DType::Bool => "u8",
    }
}

/// The type of a value in a register; narrow floats are rounded floats.
pub(super) fn register_type(dtype: DType) -> &'static str {
    match dtype {
        DType::F32 | DType::BF16 | DType::F16 => "float",
        DType::F64 => "double",
        DType::I32 | DType::I8 => "int",
        DType::U32 => "u32",
        DType::Bool => "bool",
    }
}

/// The type in which values are summed: `f32` for narrow floats.
pub(super) fn sum_type(dtype: DType) -> DType {
    match dtype {
        DType::BF16 | DType::F16 => DType::F32,
        dtype => dtype,
    }
}

pub(super) fn is_narrow(dtype: DType) -> bool {
    matches!(dtype, DType::BF16 | DType::F16)
}

/// A number as C++ writes it.
pub(super) fn constant(value: f64, dtype: DType) -> String {
    let value = dtype.round(value);
    let sign = if value < 0.0 { "-" } else { "" };
    match dtype {
        DType::F64 if value.is_nan() => "double_of_bits(0x7ff8000000000000ull)".into(),
        DType::F64 if value.is_infinite() => format!("{sign}double_of_bits(0x7ff0000000000000ull)"),
        DType::F64 => format!("{value:?}"),
        DType::F32 | DType::BF16 | DType::F16 if value.is_nan() => "float_of_bits(NOT_A_NUMBER)".into(),
        DType::F32 | DType::BF16 | DType::F16 if value.is_infinite() => {
            format!("{sign}float_of_bits(POSITIVE_INFINITY)")
        }
        DType::F32 | DType::BF16 | DType::F16 => format!("{:?}f", value as f32),
        DType::I32 if value == f64::from(i32::MIN) => "(-2147483647 - 1)".into(),
        DType::I32 | DType::I8 => format!("{}", value as i32),
        DType::U32 => format!("{}u", value as u32),
        DType::Bool => format!("{}", value != 0.0),
    }
}

/// The class of the reduction's combination.
pub(super) fn combiner(op: ReduceOp) -> &'static str {
    match op {
        ReduceOp::Sum => "Sum",
        ReduceOp::Max => "Max",
        ReduceOp::Min => "Min",
    }
}

/// The name of a region's value.
pub(super) fn value_name(value: Scalar) -> String {
    format!("v{}", value.0)
}

/// What index maps refer to: the names and extents of axes.
#[derive(Debug, Clone, Default)]
pub(super) struct Axes {
    pub(super) names: Vec<String>,
    pub(super) extents: Vec<usize>,
}

impl Axes {
    /// An index map as an expression; a sum of 64 bits where one of 32 might overflow.
    pub(super) fn affine(&self, index: &Index) -> String {
        let wide = if self.reach(index) > i64::from(i32::MAX) { "ll" } else { "" };
        let strided = index.strides.iter().zip(&self.names).zip(&self.extents);
        let strided = strided
            .filter(|((stride, _), extent)| **stride != 0 && **extent > 1)
            .map(|((stride, name), _)| (*stride, name.clone()));
        let clamped = |value: Scalar, limit| format!("clamped({}, {limit})", value_name(value));
        let indirect = index.indirect.iter().map(|term| (term.stride, clamped(term.value, term.limit)));
        let mut text = String::new();
        for (factor, term) in strided.chain(indirect).filter(|(factor, _)| *factor != 0) {
            let sign = match (factor < 0, text.is_empty()) {
                (true, true) => "-",
                (true, false) => " - ",
                (false, true) => "",
                (false, false) => " + ",
            };
            let factor = factor.unsigned_abs();
            let factor =
                if factor == 1 && wide.is_empty() { String::new() } else { format!("{factor}{wide} * ") };
            write!(text, "{sign}{factor}{term}").expect("a string can be written");
        }
        match (index.offset, text.is_empty()) {
            (offset, true) => format!("{offset}{wide}"),
            (0, false) => text,
            (offset, false) if offset < 0 => format!("{text} - {}{wide}", offset.unsigned_abs()),
            (offset, false) => format!("{text} + {offset}{wide}"),
        }
    }

    /// No partial sum of the map is larger.
    fn reach(&self, index: &Index) -> i64 {
        let strided = index.strides.iter().zip(&self.extents).map(|(&stride, &extent)| (stride, extent));
        let indirect = index.indirect.iter().map(|term| (term.stride, term.limit));
        let reach = |(stride, extent): (i64, usize)| stride.abs().saturating_mul((extent as i64 - 1).max(0));
        strided.chain(indirect).map(reach).fold(index.offset.abs(), i64::saturating_add)
    }

    /// Whether `length` neighbours along an axis are neighbours in memory, too, and begin there at a multiple of `length`.
    pub(super) fn has_runs(&self, index: &Index, axis: usize, length: usize) -> bool {
        let mut others = index.strides.iter().enumerate().filter(|(at, _)| *at != axis);
        let length = length as i64;
        index.indirect.is_empty()
            && index.strides[axis] == 1
            && index.offset % length == 0
            && others.all(|(at, stride)| stride % length == 0 || self.extents[at] == 1)
    }

    /// What is loaded, or zero beyond these bounds.
    pub(super) fn guarded(&self, element: String, guard: &[Bound], dtype: DType) -> String {
        match guard {
            [] => element,
            _ => format!("{} ? {element} : {}", self.bounds(guard), constant(0.0, dtype)),
        }
    }

    fn bounds(&self, bounds: &[Bound]) -> String {
        let within = |bound: &Bound| format!("within({}, {})", self.affine(&bound.coordinate), bound.extent);
        bounds.iter().map(within).collect::<Vec<_>>().join(" && ")
    }
}

/// The expression of one instruction of a region, over the names of its operands.
pub(super) fn expression(region: &Region, value: Scalar, axes: &Axes, slots: &[Slot]) -> String {
    let instr = region.instr(value);
    let dtype = instr.dtype;
    let name = |x: &Scalar| value_name(*x);
    let operand_type = |x: &Scalar| region.instr(*x).dtype;
    let rounded = |text: String| match dtype {
        DType::BF16 | DType::F16 => format!("round_to<{}>({text})", memory_type(dtype)),
        _ => text,
    };
    match &instr.kind {
        InstrKind::Constant(literal) => constant(Literal::value(*literal), dtype),
        InstrKind::Coordinate(index) => {
            rounded(format!("({})({})", register_type(dtype), axes.affine(index)))
        }
        InstrKind::Load { buffer, index, guard } => {
            let slot = &slots[buffer.0 as usize];
            let element = format!("{}[{}]", slot.read(), axes.affine(index));
            let is_same = memory_type(slot.dtype) == register_type(slot.dtype);
            let element = if is_same { element } else { format!("widen({element})") };
            axes.guarded(element, guard, slot.dtype)
        }
        InstrKind::Random { seed, step, node, element } => {
            let element = axes.affine(element);
            format!("random_bits({}, {}, {node}u, (u64)({element}))", name(seed), name(step))
        }
        InstrKind::InRange(bounds) if bounds.is_empty() => "true".into(),
        InstrKind::InRange(bounds) => axes.bounds(bounds),
        InstrKind::Unary(op, x) => rounded(unary(*op, &name(x), dtype)),
        InstrKind::Binary(op, x, y) => rounded(binary(*op, &name(x), &name(y), dtype)),
        InstrKind::Compare(op, x, y) => {
            let sign = match op {
                Compare::Eq => "==",
                Compare::Ne => "!=",
                Compare::Lt => "<",
                Compare::Le => "<=",
                Compare::Gt => ">",
                Compare::Ge => ">=",
            };
            format!("{} {sign} {}", name(x), name(y))
        }
        InstrKind::Select(c, x, y) => format!("{} ? {} : {}", name(c), name(x), name(y)),
        InstrKind::Cast(x) => cast(&name(x), operand_type(x), dtype),
        InstrKind::Producer(_) | InstrKind::Reduce(..) => {
            unreachable!("products and reductions are known before the region runs on them")
        }
    }
}

fn unary(op: Unary, x: &str, dtype: DType) -> String {
    let function = |name: &str| {
        let suffix = if dtype == DType::F64 { "" } else { "f" };
        format!("{name}{suffix}({x})")
    };
    match op {
        Unary::Neg if dtype == DType::I32 => format!("(int)(0u - (u32){x})"),
        Unary::Neg => format!("-{x}"),
        Unary::Abs if dtype == DType::I32 => format!("({x} < 0 ? (int)(0u - (u32){x}) : {x})"),
        Unary::Abs => function("fabs"),
        Unary::Sign => format!("sign_of({x})"),
        Unary::Floor => function("floor"),
        Unary::Round => function("rint"),
        Unary::Exp => function("exp"),
        Unary::Log => function("log"),
        Unary::Sqrt => function("sqrt"),
        Unary::Tanh => function("tanh"),
        Unary::Sigmoid => format!("sigmoid({x})"),
        Unary::Erf => function("erf"),
        Unary::Sin => format!("sine({x})"),
        Unary::Cos => format!("cosine({x})"),
        Unary::Not if dtype == DType::Bool => format!("!{x}"),
        Unary::Not => format!("~{x}"),
    }
}

fn binary(op: Binary, x: &str, y: &str, dtype: DType) -> String {
    let infix = |sign: &str| match dtype {
        // Signed integers wrap, as unsigned ones do.
        DType::I32 if matches!(op, Binary::Add | Binary::Sub | Binary::Mul) => {
            format!("(int)((u32){x} {sign} (u32){y})")
        }
        DType::Bool => format!("({x} {sign} {y}) != 0"),
        _ => format!("{x} {sign} {y}"),
    };
    let shift = |name: &str| format!("({})shift_{name}((u32){x}, (u32){y})", register_type(dtype));
    match op {
        Binary::Add => infix("+"),
        Binary::Sub => infix("-"),
        Binary::Mul => infix("*"),
        Binary::Div => infix("/"),
        Binary::Max => format!("larger({x}, {y})"),
        Binary::Min => format!("smaller({x}, {y})"),
        Binary::Pow => format!("{}({x}, {y})", if dtype == DType::F64 { "pow" } else { "powf" }),
        Binary::And => infix("&"),
        Binary::Or => infix("|"),
        Binary::Xor => infix("^"),
        Binary::Shl => shift("left"),
        Binary::Shr => shift("right"),
    }
}

fn cast(x: &str, from: DType, to: DType) -> String {
    match (from.is_float(), to) {
        (_, DType::Bool) => format!("{x} != {}", constant(0.0, from)),
        (true, DType::I32) => format!("to_i32({x})"),
        (true, DType::I8) => format!("to_i8(to_i32({x}))"),
        (false, DType::I8) if from != to => format!("to_i8({x})"),
        (true, DType::U32) => format!("to_u32({x})"),
        (_, DType::BF16 | DType::F16) if from == to => x.into(),
        (_, DType::BF16 | DType::F16) => format!("round_to<{}>((float){x})", memory_type(to)),
        (_, to) => format!("({}){x}", register_type(to)),
    }
}

/// What is written to memory for a value.
pub(super) fn narrowed(value: &str, dtype: DType) -> String {
    match dtype {
        DType::BF16 | DType::F16 => format!("narrow<{}>({value})", memory_type(dtype)),
        DType::I8 => format!("(i8){value}"),
        DType::Bool => format!("(u8){value}"),
        DType::F32 | DType::F64 | DType::I32 | DType::U32 => value.into(),
    }
}

/// Lines that make the coordinates of some axes from their number in row-major order; returns the coordinates' names.
/// Axes that stand alone keep the name of the number.
pub(super) fn coordinates(code: &mut Code, number: &str, prefix: char, extents: &[usize]) -> Vec<String> {
    if extents.len() == 1 {
        return vec![number.into()];
    }
    let names: Vec<_> = (0..extents.len()).map(|axis| format!("{prefix}{axis}")).collect();
    let mut terms = vec![];
    for (axis, name) in names.iter().enumerate() {
        let inner: usize = extents[axis + 1..].iter().product();
        let divided = if inner == 1 { number.into() } else { format!("{number} / {inner}") };
        let wrapped = if axis == 0 { divided } else { format!("{divided} % {}", extents[axis]) };
        terms.push(format!("{name} = {wrapped}"));
    }
    if !terms.is_empty() {
        code.line(format!("const int {};", terms.join(", ")));
    }
    names
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::HEADERS;

    #[test]
    fn buffers_and_functions_have_names_that_nothing_else_begins_with() {
        assert_eq!(buffer_name("blocks.0.attn/reduce%12"), "g_blocks_0_attn_reduce_12");
        assert_eq!((buffer_name("new"), buffer_name("7")), ("g_new".into(), "g_7".into()));
        assert_eq!((function_name("and"), function_name("+")), ("kernel_and".into(), "kernel_".into()));
        let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
        for (file, text) in HEADERS {
            let mut words = text.split(|c| !is_word(c));
            assert!(!words.any(|word| word.starts_with("g_") || word.starts_with("kernel_")), "{file}");
        }
    }

    #[test]
    fn slots_know_what_a_function_did_with_them() {
        let slot = Slot::new(buffer_name("x"), DType::F32, 4, false);
        assert_eq!(slot.take_access(), None);
        assert_eq!((slot.read(), slot.take_access()), ("g_x", Some(Access::Read)));
        assert_eq!((slot.write(), slot.read(), slot.take_access()), ("g_x", "g_x", Some(Access::Write)));
        assert_eq!(slot.take_access(), None);
    }

    #[test]
    fn index_maps_that_reach_far_are_of_64_bits() {
        let axes = |extent| Axes { names: vec!["r0".into(), "c0".into()], extents: vec![extent, 1000] };
        let index = Index { offset: -3, strides: vec![1000, 1], indirect: vec![] };
        assert_eq!(axes(5).affine(&index), "1000 * r0 + c0 - 3");
        assert_eq!(axes(5_000_000).affine(&index), "1000ll * r0 + 1ll * c0 - 3ll");
        assert_eq!(axes(1).affine(&Index::constant(2, 0)), "0");
    }

    #[test]
    fn constants_are_written_exactly() {
        assert_eq!(constant(0.1, DType::F32), "0.1f");
        assert_eq!(constant(f64::NEG_INFINITY, DType::F32), "-float_of_bits(POSITIVE_INFINITY)");
        assert_eq!(constant(-2_147_483_648.0, DType::I32), "(-2147483647 - 1)");
        assert_eq!(constant(1e-8, DType::F64), "1e-8");
    }
}
