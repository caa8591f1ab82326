//! Chains whose values go through shared memory from the first product to the second one: those that are not multiplied by tensor cores,
//! and those whose sums are too many for registers.

use super::body::Body;
use super::chain::{SIZE, Stream};
use super::contraction::operand_type;
use super::invariants::invariants;
use super::source::{narrowed, value_name};
use super::sweeps::{Layout, Needs, Value, each_part};
use super::tiles::{Tiles, element_type, tile_type};
use kernfusion_ir::DType;
use kernfusion_ir::kernel::{Consumer, Direction, Scalar};
use std::collections::{BTreeMap, BTreeSet};

/// How such a chain lies: products are computed as those outside of chains, one after the other.
pub(super) struct ThroughMemory {
    tiles: Tiles,
    tf32: bool,
    /// Types of values that are multiplied again.
    types: BTreeSet<DType>,
    /// Values of columns, which are loaded while products are computed.
    of_columns: BTreeSet<Scalar>,
}

impl ThroughMemory {
    pub(super) fn new(stream: &Stream<'_>, tiles: Tiles, tf32: bool) -> Self {
        let consumers = stream.kernel.consumers().iter();
        let types = consumers.map(|consumer| operand_type(&consumer.with)).collect();
        ThroughMemory { tiles, tf32, types, of_columns: invariants(stream.kernel, Direction::Rows) }
    }

    pub(super) fn shared_bytes(&self) -> usize {
        self.place_of_values(None)
    }

    /// Where in shared memory values of a type are, behind panels and values of other types; of none, where all of them end.
    fn place_of_values(&self, dtype: Option<DType>) -> usize {
        let before = self.types.iter().take_while(|other| Some(**other) != dtype);
        let bytes = |dtype: &DType| SIZE * values_stride(*dtype) * dtype.size();
        self.tiles.shared_bytes(SIZE, SIZE) + before.map(bytes).sum::<usize>()
    }

    /// Starts to fill panels with the operand of a second product.
    fn fill(&self, stream: &Stream<'_>, body: &mut Body<'_>, value: &Value, number: usize) {
        let p: usize = stream.kernel.consumers()[number].p.iter().product();
        let (_, columns) = stream.row_and_column_extents();
        let panels = format!("({}*){}", element_type(value.dtype), self.tiles.panels(0));
        let bytes = self.tiles.panel_bytes(SIZE, SIZE);
        body.code.line(format!(
            "fill_for_values<Out{number}, {bytes}, {SIZE}>({panels}, {p}, with{number}, first_column, {columns});"
        ));
    }
}

impl Layout for ThroughMemory {
    fn declare(&self, stream: &Stream<'_>, body: &mut Body<'_>) {
        for (number, consumer) in stream.kernel.consumers().iter().enumerate() {
            let (dtype, width) = (operand_type(&consumer.with), width(consumer));
            body.code.line(format!("using Out{number} = {};", tile_type(dtype, self.tf32, SIZE, width)));
            body.code.line(format!("Out{number} out{number};"));
        }
        for dtype in &self.types {
            let (values, element) = (values_name(*dtype), element_type(*dtype));
            let (place, count) = (self.place_of_values(Some(*dtype)), SIZE * values_stride(*dtype));
            body.code.line(format!("LAUNCHED_SHARED({element}, {values}, {place}, {count});"));
        }
    }

    fn of_columns(&self) -> BTreeMap<Scalar, String> {
        let text = |value: &Scalar| format!("column_{}[Tile::column_slot(at)]", value_name(*value));
        self.of_columns.iter().map(|value| (*value, text(value))).collect()
    }

    fn each_tile(
        &self,
        stream: &Stream<'_>,
        body: &mut Body<'_>,
        needs: &Needs,
        inside: &mut dyn FnMut(&mut Body<'_>),
    ) {
        let head = format!("for (int first_column = begin; first_column < end; first_column += {SIZE})");
        body.block(head, |body| {
            let of_columns = self.of_columns.intersection(&needs.all).copied().collect();
            stream.hoist(body, &of_columns, Direction::Rows);
            for &number in &needs.products {
                self.tiles.multiply(&mut body.code, stream.kernel, number);
            }
            // The first operand comes while values are computed.
            if let Some(value) = needs.values.first() {
                self.fill(stream, body, value, value.consumers[0]);
            }
            for number in 0..needs.values.len() {
                body.code.line(format!("float value{number}[Tile::COUNT] = {{}};"));
            }
            each_part(body, inside);
        });
    }

    fn each_value(
        &self,
        body: &mut Body<'_>,
        count: usize,
        inside: &mut dyn FnMut(&mut Body<'_>, &[String]),
    ) {
        let places: Vec<_> = (0..count).map(|number| format!("value{number}[at]")).collect();
        body.code.line("UNROLL");
        body.block("for (int at = 0; at < Tile::COUNT; at++)", |body| inside(body, &places));
    }

    fn second_products(&self, stream: &Stream<'_>, body: &mut Body<'_>, needs: &Needs) {
        let panels = self.tiles.panels(0);
        for (at, value) in needs.values.iter().enumerate() {
            let (values, stride) = (values_name(value.dtype), values_stride(value.dtype));
            let element = format!("{values}[Tile::row(at) * {stride} + Tile::column(at)]");
            for (use_of, &number) in value.consumers.iter().enumerate() {
                if at + use_of > 0 {
                    self.fill(stream, body, value, number);
                }
                if use_of == 0 {
                    body.code.line("UNROLL");
                    let narrow = narrowed(&format!("value{at}[at]"), value.dtype);
                    body.code.line(format!("for (int at = 0; at < Tile::COUNT; at++) {element} = {narrow};"));
                }
                let panels = format!("({}*){panels}", element_type(value.dtype));
                body.code.line(format!(
                    "multiply_values<{SIZE}, {stride}>(out{number}, {values}, {panels}, with{number});"
                ));
            }
        }
    }
}

/// Columns of the tile of a second product: two warps share them, each of which takes 16 at a time.
fn width(consumer: &Consumer) -> usize {
    consumer.p.iter().product::<usize>().next_multiple_of(32).max(32)
}

fn values_name(dtype: DType) -> String {
    format!("values_{}", dtype.name())
}

/// Distance of rows of values in shared memory.
fn values_stride(dtype: DType) -> usize {
    SIZE + 16 / dtype.size()
}
