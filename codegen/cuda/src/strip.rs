//! Chains on tensor cores, whose values stay in registers from the first product to the second one.
//!
//! Each warp has some rows and all columns of a tile (`chain.cuh`). Its rows of the products' first operands are held in registers, or lie in
//! shared memory where warpgroups multiply. What columns need is in panels, one for each operand, or one for two that are the same
//! numbers, such as the keys in q·kᵀ and in the gradient of q.

use super::body::Body;
use super::chain::Stream;
use super::source::{Axes, value_name};
use super::strip_layout::{Panel, STAGES, Strips};
use super::sweeps::{Layout, Needs, each_part};
use super::tiles::element_type;
use kernfusion_ir::kernel::{InstrKind, Scalar};
use std::collections::{BTreeMap, BTreeSet};

impl Layout for Strips {
    fn declare(&self, stream: &Stream<'_>, body: &mut Body<'_>) {
        let Strips { dtype, depths, .. } = self;
        let element = element_type(*dtype);
        body.code.line(format!("using Tile = {};", self.tile(self.columns)));
        body.code.line(format!("LAUNCHED_SHARED({element}, panels, 0, {});", self.memory()));
        let (rows, _) = stream.row_and_column_extents();
        for (number, depth) in depths.iter().enumerate() {
            let terms: usize = stream.kernel.products()[number].k.iter().product();
            let place = self.place_of_rows(number);
            body.code.line(format!(
                "fill_rows<Tile, {depth}>(panels + {place}, first_row, {rows}, {terms}, a{number});"
            ));
            if self.is_held {
                let panel = self.panel_of_rows(number);
                body.code.line(format!("u32 rows{number}[{}];", self.down * depth / 4));
                body.code.line(format!("Tile::load_rows<{depth}>(rows{number}, {panel});"));
                // The next rows, or the first tile, take their place.
                body.code.line("__syncthreads();");
            }
        }
        for (number, width) in self.widths.iter().enumerate() {
            body.code.line(format!("using Out{number} = {};", self.tile(*width)));
            body.code.line(format!("Out{number} out{number};"));
        }
    }

    fn of_columns(&self) -> BTreeMap<Scalar, String> {
        let text = |value: &Scalar| format!("of_columns_{}[Tile::column(at)]", value_name(*value));
        self.vectors.iter().map(|value| (*value, text(value))).collect()
    }

    /// Panels are filled while the tile before is at work.
    fn each_tile(
        &self,
        stream: &Stream<'_>,
        body: &mut Body<'_>,
        needs: &Needs,
        inside: &mut dyn FnMut(&mut Body<'_>),
    ) {
        self.declare_fill(stream, body, needs);
        let head = format!(
            "for_each_tile<{STAGES}, {}, Tile>(panels, begin, end, fill{}, [&](int first_column, {}* stage, const auto& fill_next)",
            self.stage(),
            needs.number,
            element_type(self.dtype)
        );
        body.block_with(head, ");", |body| {
            for (value, offset) in self.vectors_of(needs) {
                let name = value_name(value);
                body.code.line(format!("const float* of_columns_{name} = (const float*)(stage + {offset});"));
            }
            // Products that go on by themselves are started before the threads have something else to do.
            if !self.by_warpgroups {
                body.code.line("fill_next();");
            }
            self.first_products(body, &needs.products);
            if self.by_warpgroups {
                body.code.line("fill_next();");
            }
            for number in 0..needs.values.len() {
                body.code.line(format!("u32 packed{number}[Tile::COUNT / 2];"));
            }
            each_part(body, |body| {
                // Groups of products end in their order: those of this part, when as many have been started since.
                body.code.line("Tile::wait<Tile::PARTS - 1>();");
                for number in &needs.products {
                    body.code.line(format!("product{number}.keep(part);"));
                }
                inside(body);
            });
            self.end_products(body, needs);
        });
    }

    /// Values of two columns are packed as the fragments of an operand.
    fn each_value(
        &self,
        body: &mut Body<'_>,
        count: usize,
        inside: &mut dyn FnMut(&mut Body<'_>, &[String]),
    ) {
        let places: Vec<_> = (0..count).map(|number| format!("value{number}[at % 2]")).collect();
        body.code.line("UNROLL");
        let pairs =
            "for (int pair = part * Tile::OF_PART / 2; pair < (part + 1) * Tile::OF_PART / 2; pair++)";
        body.block(pairs, |body| {
            let declared = (0..count).map(|number| format!("value{number}[2] = {{}}"));
            body.code.line(format!("float {};", declared.collect::<Vec<_>>().join(", ")));
            body.code.line("UNROLL");
            body.block("for (int at = 2 * pair; at < 2 * pair + 2; at++)", |body| inside(body, &places));
            for number in 0..count {
                let [x, y] = [0, 1].map(|at| format!("value{number}[{at}]"));
                body.code.line(format!("packed{number}[pair] = Tile::pack({x}, {y});"));
            }
        });
    }

    /// A group of products, if only an empty one.
    fn second_products(&self, _: &Stream<'_>, body: &mut Body<'_>, needs: &Needs) {
        let columns = self.columns;
        body.code.line("Tile::begin();");
        for (number, value) in needs.values.iter().enumerate() {
            for &at in &value.consumers {
                let (width, panel) = (self.widths[at], &self.panels[self.of_consumer[at]]);
                body.code.line(format!(
                    "out{at}.multiply<{columns}>(part, packed{number}, Tile::panel<{width}, {columns}>(stage + {}, with{at}));",
                    panel.offset
                ));
            }
        }
        body.code.line("Tile::commit();");
    }
}

impl Strips {
    /// The panel of a product's rows.
    fn panel_of_rows(&self, number: usize) -> String {
        let (depth, place) = (self.depths[number], self.place_of_rows(number));
        format!("Tile::panel<Tile::ROWS, {depth}>(panels + {place}, a{number})")
    }

    /// Loads of columns that a sweep needs, and where they are in a stage.
    fn vectors_of(&self, needs: &Needs) -> Vec<(Scalar, usize)> {
        let vectors = self.vectors.iter().enumerate().filter(|(_, value)| needs.all.contains(value));
        vectors.map(|(at, value)| (*value, self.vector(at))).collect()
    }

    /// The function that fills a stage.
    fn declare_fill(&self, stream: &Stream<'_>, body: &mut Body<'_>, needs: &Needs) {
        let consumers =
            needs.values.iter().flat_map(|value| &value.consumers).map(|at| self.of_consumer[*at]);
        let products = needs.products.iter().map(|number| self.of_product[*number]);
        let panels: BTreeSet<_> = products.chain(consumers).collect();
        let head = format!(
            "const auto fill{} = [&](int first_column, {}* stage)",
            needs.number,
            element_type(self.dtype)
        );
        body.code.open(head);
        for Panel { operand, size: [rows, depth], range, offset } in panels.iter().map(|at| &self.panels[*at])
        {
            body.code
                .line(format!("fill_deep<Tile, {rows}, {depth}>(stage + {offset}, {range}, {operand});"));
        }
        let domain = &stream.kernel.domain;
        let mut names = stream.outer.clone();
        names.resize(domain.axes.len() - 1, "0".into());
        names.push("first_column".into());
        let axes = Axes { names, extents: domain.axes.clone() };
        let (_, columns) = stream.row_and_column_extents();
        for (value, offset) in self.vectors_of(needs) {
            let InstrKind::Load { buffer, index, .. } = &stream.kernel.region.instr(value).kind else {
                unreachable!("vectors are loads")
            };
            let name = stream.slots[buffer.0 as usize].read();
            body.code.line(format!(
                "fill_vector<Tile::BLOCK, {}>((float*)(stage + {offset}), {name} + {}, {columns} - first_column);",
                self.columns,
                axes.affine(index)
            ));
        }
        body.code.close(";");
    }

    /// Starts the products of a tile that values are made of, those of each part as a group.
    fn first_products(&self, body: &mut Body<'_>, products: &BTreeSet<usize>) {
        let columns = self.columns;
        products.iter().for_each(|number| body.code.line(format!("Tile product{number};")));
        each_part(body, |body| {
            body.code.line("Tile::begin();");
            for &number in products {
                let depth = self.depths[number];
                let offset = self.panels[self.of_product[number]].offset;
                let of_columns = format!("Tile::panel<{columns}, {depth}>(stage + {offset}, b{number})");
                body.code.line(match self.is_held {
                    true => format!("product{number}.multiply<{depth}>(part, rows{number}, {of_columns});"),
                    false => {
                        let of_rows = self.panel_of_rows(number);
                        format!("product{number}.multiply_panels<{depth}>(part, {of_rows}, {of_columns});")
                    }
                });
            }
            body.code.line("Tile::commit();");
        });
    }

    /// Waits for second products: panels may be filled again, and values change.
    fn end_products(&self, body: &mut Body<'_>, needs: &Needs) {
        body.code.line("Tile::wait<0>();");
        let values = needs.values.len();
        let outs = if values > 0 { self.widths.len() } else { 0 };
        each_part(body, |body| {
            (0..outs).for_each(|number| body.code.line(format!("out{number}.keep(part);")));
        });
        (0..values).for_each(|number| body.code.line(format!("Tile::keep_words(packed{number});")));
    }
}
